"""Scores the models between the last models of two runs, and draws their loss."""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

import pyarrow as pa

from raysim.api.preflight import check_one, check_same, with_executor
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.interpolation import scored
from raysim.errors import RunFolderError
from raysim.models.model import Weights
from raysim.report.gallery import interpolated
from raysim.report.picture_files import save
from raysim.run_folder import records
from raysim.storage.remote.folder import read_only_copy


@takes_parts
def interpolate(
    first: str | Path, second: str | Path, *, split: str = "train", out: Path | None = None, **parts: Unpack[Parts]
) -> pa.Table:
    """Return theta, loss and accuracy of theta w + (1 - theta) w' on a split of the first run's data.

    Args:
        first, second: folders of runs with models of one kind, or their URIs; w and w' are their newest checkpoints.
        split: of the data.
        out: where the picture and its CSV go; None: nowhere.
        parts: the same parts as for the first run.

    Raises:
        RunFolderError: a run has no checkpoint, or the models are not of one kind.
        DataError: the data have no such split, or it is empty.
    """
    where = read_only_copy(first)
    experiment = records.stored_experiment(where)
    check_one(experiment, where)
    plan = resolve(with_executor(experiment, "local"), **parts)
    check_same(plan, where)
    w, other = (_newest(read_only_copy(folder), plan.initial) for folder in (first, second))
    rows = scored(plan, w, other, split)
    drawn = interpolated.figure(rows, (where.resolve().name, Path(second).name), split)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        save(drawn, out, out)
    return drawn.data.drop_columns(["group"])


def _newest(folder: Path, initial: Weights) -> Weights:
    check_one(records.stored_experiment(folder), folder)
    state = records.newest_state(folder, records.stored_fingerprint(folder))
    if state is None:
        raise RunFolderError(f"{folder} has no checkpoint, so there is no model of it.")
    for name in ("params", "buffers", "counters"):
        found, expected = getattr(state.weights, name), getattr(initial, name)
        if (found.shape, found.dtype) != (expected.shape, expected.dtype):
            raise RunFolderError(
                f"{folder} must have a model of the first run's kind, with {len(expected):,} {name} of "
                f"{expected.dtype}, but has {len(found):,} of {found.dtype}."
            )
    return state.weights
