"""Resolves runs that share workers and data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from raysim.api.preflight import check_one
from raysim.config.section import replaced
from raysim.data.dataset import FederatedDataset
from raysim.data.prepare import prepare
from raysim.engine.parts import Parts
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.experiment.experiment import EngineSection, Experiment
from raysim.run_folder.files import STATES


class SharedPlans:
    """Resolves runs one after another, and opens the same data once.

    Args:
        engine: the section that says the workers.
        parts: what the script passed, the same for every run.
    """

    def __init__(self, engine: EngineSection, parts: Parts) -> None:
        self._engine, self._parts = engine, parts
        self._datasets: dict[str, FederatedDataset] = {}

    def plan(self, experiment: Experiment, path: Path) -> Plan:
        """Resolve a run and its folder; nothing is written."""
        check_one(experiment)
        placed = replaced(experiment, engine=self._engine_of(experiment))
        plan = resolve(placed, self._data(placed), **self._parts)
        if not plan.algorithm().state_vectors:
            return plan
        return replace(plan, states=path.absolute() / STATES, states_of=plan.owner)

    def _engine_of(self, experiment: Experiment) -> Any:
        """Return the run's engine section, with the placement of the workers."""
        return replaced(experiment.engine, **{key: getattr(self._engine, key) for key in self._engine.PLACEMENT})

    def _data(self, experiment: Experiment) -> FederatedDataset | None:
        """Return what `[data]` opens, the same object for runs with the same data, so the data are sent once."""
        if self._parts.get("dataset") is not None or experiment.data is None:
            return None
        key = f"{experiment.data.model_dump_json()} {experiment.seed}"
        if key not in self._datasets:
            self._datasets[key] = prepare(experiment.data, experiment.seed)
        return self._datasets[key]
