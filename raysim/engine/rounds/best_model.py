"""Keeps the model with the best evaluation beside the newest checkpoints, by `checkpoint.best`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raysim.engine.plan.plan import Plan
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState


def keep(folder: RunFolder, plan: Plan, row: Mapping[str, Any], state: ServerState) -> None:
    """Write the round's model to the folder if the row has the best value so far; of equal ones the first is kept.

    It is the model that the metric is of: for "eval_average/..." the average that the algorithm evaluates.
    """
    best = plan.experiment.checkpoint.best
    if best is None or not folder.best.add(row):
        return
    averages = best.metric.startswith("eval_average/")
    average = plan.algorithm().average(state) if averages else None
    folder.write_best(state.round, state.weights if average is None else average)
