"""Keeps the files of the best models so far: of what is on record, and of each checkpoint to go on from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from raysim.experiment.row import Row
from raysim.experiment.stop import BestMetric
from raysim.run_folder import checkpoint, files
from raysim.server.state import ServerState


class BestModels:
    """The evaluations that were the best when they were recorded, and whose models are kept.

    A model is kept if it is the best so far, or was when a kept checkpoint was written: a run that goes on from there
    then has the files of an undisturbed one. Of these, evaluations that were due only because a run ended do not count
    for one that goes on beyond its end, so the best of the others stays too.

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
        """Begin with the rows of a run that goes on; files of other rounds are deleted."""
        if self._metric is not None:
            models = files.best_models(self._path)
            for done in [done for done in models if done <= len(rows)]:
                self.add(rows[done - 1])
            self._delete(done for done in models if done not in self._kept)

    def add(self, row: Row) -> bool:
        """Take a row; return whether it has the best value so far, so that its model has to be written."""
        value = None if self._metric is None else row.get(self._metric.metric)
        if self._metric is None or value is None or math.isnan(value):
            return False
        best = next(reversed(self._kept.values()), None)
        if best is not None and not (value > best if self._metric.is_maximised else value < best):
            return False
        self._kept[row["round"] + 1] = value
        return True

    def write(self, state: ServerState, fingerprint: str) -> None:
        """Write a model that `add` has found to be the best."""
        checkpoint.write(state, files.best_file(self._path, state.round), fingerprint)

    def prune(self) -> None:
        """Delete the models that no reader and no resumed run needs."""
        ends = [*files.checkpoints(self._path), *list(self._kept)[-1:]]
        regular = [done for done in self._kept if done % self._every == 0]
        needed = {
            max(before) for end in ends for among in (self._kept, regular) if (before := [d for d in among if d <= end])
        }
        self._delete([done for done in self._kept if done not in needed])

    def _delete(self, rounds: Iterable[int]) -> None:
        for done in list(rounds):
            self._kept.pop(done, None)
            files.best_file(self._path, done).unlink(missing_ok=True)
