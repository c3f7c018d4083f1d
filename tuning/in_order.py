"""Puts the reports of a trial's seeds into the order of one process, however fast each of them advances.

One process carries out the segments of a trial's runs in turn: the first segment of every seed, then the second one of
each. On workers one seed may be ahead of another, and the runs of a study that goes on report all their rows at once.
What the study learns of a trial, and what the trial has used up when it is stopped, shall not depend on that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from raysim import Experiment, RaysimError, Report
from raysim.experiment.pauses import pauses_after
from raysim.experiment.row import Row
from tuning.objective import divergence


@dataclass(frozen=True)
class SeedNews:
    """What a study learns of a seed at a time: the rows of a segment; `finished` or `error`: its last."""

    place: int
    rows: tuple[Row, ...]
    finished: bool = False
    error: RaysimError | None = None


class InOrder:
    """The reports of runs that advance at the same time, by the places of their seeds."""

    def __init__(self, runs: Sequence[Experiment]) -> None:
        self._runs = runs
        self._begun: list[list[Row]] = [[] for _ in runs]
        """Rows of the segment under way; a segment that takes long is reported in parts."""
        self._waiting: list[deque[SeedNews]] = [deque() for _ in runs]
        self._over: set[int] = set()
        self._turn = 0

    def add(self, place: int, report: Report) -> None:
        """Add a report of the run with this place."""
        for row in report.rows:
            self._begun[place].append(row)
            # A divergence stops the trial, and the rest of its segment, which may be reported already, is in vain.
            if pauses_after(self._runs[place], row["round"] + 1) or divergence([row]) is not None:
                self._end_segment(place)
        if report.finished or report.error is not None:
            self._end_segment(place)
            last = self._waiting[place].pop() if self._waiting[place] and report.error is None else SeedNews(place, ())
            self._waiting[place].append(replace(last, finished=report.finished, error=report.error))

    def take(self) -> Iterator[SeedNews]:
        """Yield what has its turn now; what comes after it waits for another seed."""
        while len(self._over) < len(self._runs):
            if self._turn not in self._over:
                if not self._waiting[self._turn]:
                    return
                news = self._waiting[self._turn].popleft()
                if news.finished or news.error is not None:
                    self._over.add(self._turn)
                yield news
            self._turn = (self._turn + 1) % len(self._runs)

    @property
    def num_waiting(self) -> int:
        """Number of rows that have not had their turn."""
        return sum(map(len, self._begun)) + sum(len(news.rows) for waiting in self._waiting for news in waiting)

    def _end_segment(self, place: int) -> None:
        if self._begun[place]:
            self._waiting[place].append(SeedNews(place, tuple(self._begun[place])))
            self._begun[place] = []
