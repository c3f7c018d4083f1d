"""Publishes a run's newest figures as metrics of Ray, for its dashboard and Prometheus: raysim_loss{run="quickstart"}.

Ray exports them if it is installed as `ray[default]`; otherwise they cost nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from ray.util.metrics import Gauge

from raysim.experiment.stop import EVALUATIONS

PREFIX = "raysim_"
SHOWN = ("loss", "accuracy", "clients", "rejected", "retries", "wall_time_s", "idle_fraction")
"""The published figures of a round, beside those of its evaluations."""


class Dashboard:
    """Gauges of one run, created when their figures appear.

    Args:
        run: the name that tells runs on one cluster apart, as the tag `run`.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._gauges: dict[str, Gauge] = {}

    def row(self, row: Mapping[str, Any]) -> None:
        """Publish a finished round; a missing figure keeps its last value."""
        for name, value in figures(row).items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(name, description=f"raysim: {name}", tag_keys=("run",))
            self._gauges[name].set(value, tags={"run": self._run})


def figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Metric name -> finite value: raysim_finished_rounds, those of SHOWN, raysim_eval_test_accuracy."""
    evaluated = (name for name in row if name.startswith(EVALUATIONS) and name.endswith(("/loss", "/accuracy")))
    named = {name: row[name] for name in (*SHOWN, *evaluated) if row.get(name) is not None}
    found = {f"{PREFIX}{re.sub(r'[^A-Za-z0-9]', '_', name)}": float(value) for name, value in named.items()}
    found[f"{PREFIX}finished_rounds"] = float(row["round"] + 1)
    return {name: value for name, value in found.items() if math.isfinite(value)}
