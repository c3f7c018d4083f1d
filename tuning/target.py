"""Counts the rounds of a run until a figure reaches a target.

The value of a run that does not reach it is in the description of `[tuning.objective]`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from raysim.experiment.row import Row
from raysim.report.series import crossing
from tuning.mean import mean
from tuning.watched_figure import WatchedFigure


class RoundsToTarget(NamedTuple):
    """A value of a figure that is to be reached."""

    figure: WatchedFigure
    aim: float

    @property
    def label(self) -> str:
        """The objective's name for people."""
        # A figure is rounded for people, but a target is what was asked for: 0.99996 is not 100 %.
        aim = f"{100 * self.aim:.10g} %" if self.figure.is_share else f"{self.aim:.10g}"
        return f"rounds to {aim} {self.figure.label}"

    def so_far(self, rows: Iterable[Row], total: int) -> dict[int, float]:
        """Return the value that a run would have if it ended with one of its rounds, by the round."""
        rounds, best = self._best_so_far(rows)
        if not len(rounds):
            return {}
        aim = self._rising(self.aim)
        reached = crossing(rounds + 1.0, best, aim)
        values = [total * (1 + aim - figure) if figure < aim else reached for figure in best.tolist()]
        return {index: value for index, value in zip(rounds.tolist(), values, strict=True) if value is not None}

    def combined(self, values: Sequence[float], total: int) -> float:
        """Return a trial's value, from those of its seeds: their mean; if one missed the target, worse than `total`."""
        missed = [max(0.0, value - total) for value in values]
        return total + mean(missed) if any(missed) else mean(values)

    def best(self, rows: Iterable[Row]) -> str:
        """Return the best figure of a run, for people."""
        _, best = self._best_so_far(rows)
        return self.figure.text(self._rising(best[-1])) if len(best) else "nothing"

    def _best_so_far(self, rows: Iterable[Row]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Return the rounds with the figure, and the best until then, as numbers that rise."""
        column = self.figure.column
        known = [(row["round"], self._rising(row[column])) for row in rows if self.figure.is_known(row)]
        rounds, found = np.array(known, np.float64).reshape(-1, 2).T
        return rounds.astype(np.int64), np.maximum.accumulate(found)

    def _rising(self, figure: float) -> float:
        """Return the figure, or its negative if it is to be small; its own inverse."""
        return figure if self.figure.rises else -figure
