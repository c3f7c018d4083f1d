"""Keeps the files of the best models so far: of what is on record, and of each checkpoint to go on from."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim.errors import RunFolderError
from raysim.experiment.row import Row
from raysim.experiment.stop import BestMetric
from raysim.run_folder import checkpoint, files
from raysim.server.state import ServerState
from raysim.storage.remote import removed


def improvements(rows: Iterable[Mapping[str, Any]], metric: BestMetric | None) -> dict[int, float]:
    """Return the values that were the best when they were recorded, by the number of finished rounds.

    >>> rows = [{"round": index, "eval/test/loss": loss} for index, loss in enumerate([3.0, 4.0, 2.0])]
    >>> improvements(rows, BestMetric(metric="eval/test/loss"))
    {1: 3.0, 3: 2.0}
    """
    found = dict[int, float]()
    for row in rows:
        value = None if metric is None else row.get(metric.metric)
        if metric is None or value is None or math.isnan(value):
            continue
        best = next(reversed(found.values()), None)
        if best is None or (value > best if metric.is_maximised else value < best):
            found[row["round"] + 1] = value
    return found


def file_of(path: Path, done: int) -> Path:
    """Return the file of the best model on record; RunFolderError if it is lost."""
    file = files.best_file(path, done)
    if not os.path.lexists(file):
        raise RunFolderError(
            f"{file} is missing: the best model of {path} is that after {done} rounds. If the run is at work, "
            f"try again; if it was killed, go on with it (raysim resume); else put the file back, or run the "
            f"experiment again."
        )
    return file


def check_kept(path: Path, metric: BestMetric | None, kept_by: BestMetric | None, rows: Sequence[Row]) -> None:
    """Refuse to go on by a metric whose best model, of these rows, the folder does not have.

    Args:
        path: the run's folder.
        metric: by which a model is the best from here on; None: no model is kept.
        kept_by: by which it has been the best.
        rows: of the rounds before.

    Raises:
        RunFolderError: it was lost; or it was not kept, because it was the best by another metric, or none was kept.
    """
    found = improvements(rows, metric)
    if metric is None or not found:
        return
    done = next(reversed(found))
    if metric != kept_by and not os.path.lexists(files.best_file(path, done)):
        kept = "kept no best model" if kept_by is None else f"kept the best model by {kept_by.metric!r}"
        was = "leave checkpoint.best out" if kept_by is None else "leave checkpoint.best as it was"
        raise RunFolderError(
            f"{path} does not have the best model by checkpoint.best = {metric.metric!r}, which is that after {done} "
            f"rounds: until now the run {kept}. To go on, {was}; else start afresh (--overwrite, overwrite=True)."
        )
    file_of(path, done)


class BestModels:
    """The evaluations that were the best when they were recorded, and whose models are kept.

    A model is kept if it is the best so far, or was when a kept checkpoint was written, or one that may yet be written:
    a run that goes on from there then has the files of an undisturbed one. Of these, evaluations that were due only
    because a run ended do not count for one that goes on beyond its end, so the best of the others stays too.

    Args:
        path: the run's folder.
        metric: by which a model is the best; None: no model is kept.
        every: rounds between evaluations.
    """

    def __init__(self, path: Path, metric: BestMetric | None = None, every: int = 1) -> None:
        self._path, self._metric, self._every = path, metric, every
        self._kept: dict[int, float] = {}
        """Values by the number of finished rounds, each better than those before it."""

    def open(self, rows: Sequence[Row]) -> None:
        """Begin with the rows of a run that goes on, which `check_kept` allows; files of other rounds are deleted."""
        if self._metric is not None:
            found = improvements(rows, self._metric)
            models = files.best_models(self._path)
            self._kept = {done: value for done, value in found.items() if done in models}
            self._delete(done for done in models if done not in self._kept)

    def add(self, row: Row) -> bool:
        """Take a row; return whether it has the best value so far, so that its model has to be written."""
        if self._metric is None:
            return False
        before = [{"round": done - 1, self._metric.metric: value} for done, value in [*self._kept.items()][-1:]]
        better = improvements([*before, row], self._metric)
        self._kept |= better
        return row["round"] + 1 in better

    def write(self, state: ServerState, fingerprint: str) -> None:
        """Write a model that `add` has found to be the best."""
        checkpoint.write(state, files.best_file(self._path, state.round), fingerprint)

    def prune(self, recorded: int = 0) -> None:
        """Delete the models that no reader and no resumed run needs.

        recorded: rounds whose state may get a checkpoint though a later round's model is the best: that round is not
        recorded yet, and may be broken off.
        """
        ends = [*files.checkpoints(self._path), *list(self._kept)[-1:], recorded]
        regular = [done for done in self._kept if done % self._every == 0]
        needed = {
            max(before) for end in ends for among in (self._kept, regular) if (before := [d for d in among if d <= end])
        }
        self._delete([done for done in self._kept if done not in needed])

    def _delete(self, rounds: Iterable[int]) -> None:
        for done in list(rounds):
            self._kept.pop(done, None)
            removed.unlink(files.best_file(self._path, done))
