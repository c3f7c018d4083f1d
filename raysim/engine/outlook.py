"""Estimates whether workers that must start first would end a run sooner than this process.

A start takes seconds, in which a short run is over. So a run with `engine.workers = "auto"` begins in this process, and
moves to workers once they are worth their start. The bits are the same: they do not depend on the executor.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from raysim.engine import cores

START_S = 6.0
"""Seconds from the start of Ray to the first local step of its workers, on two cores (docs/performance.md)."""

ROUND_S = 0.005
"""Seconds that a round on Ray takes beside training, however small it is (docs/performance.md)."""

SURE_S = 0.5
"""Seconds of work before an estimate counts: the first local steps take longer than the others."""


class Outlook:
    """Counts the work of a run in this process, and says when workers would end the run sooner.

    Args:
        rounds: that are left.
        workers: that could be started.
        may_move: asked once, when workers would end the run sooner.
        round_s: what a round on workers takes beside training.
    """

    def __init__(
        self, rounds: int, workers: int, may_move: Callable[[], bool] = lambda: True, round_s: float = ROUND_S
    ) -> None:
        self._rounds, self._workers, self._ask, self._beside_s = rounds, workers, may_move, round_s
        self._done, self._share = 0, 0.0
        self._before_s, self._round_s = 0.0, 0.0

    def work(self, took_s: float, share: float) -> None:
        """Count a unit of work.

        Args:
            took_s: its seconds.
            share: of its round's training that is done with it, in (0, 1]; 0 where there is no training.
        """
        self._round_s += took_s
        self._share = max(self._share, share)

    def round(self, rounds: int = 1) -> None:
        """Count a finished round; of several runs, all that were finished by the work since the last call."""
        self._before_s += self._round_s
        self._done += rounds
        self._share, self._round_s = 0.0, 0.0

    def expect(self, left: int) -> None:
        """Say how many rounds are left now: runs begin and end."""
        self._rounds = self._done + left

    @property
    def left_s(self) -> float:
        """Seconds until the run would end in this process; 0 before an estimate counts.

        >>> outlook = Outlook(rounds=100, workers=2)
        >>> outlook.work(1.0, share=0.5)
        >>> outlook.left_s
        199.0
        """
        worked_s, done = self._before_s + self._round_s, self._done + self._share
        return worked_s * (self._rounds / done - 1) if done and worked_s >= SURE_S else 0.0

    @property
    def moves(self) -> bool:
        """Whether workers would end the run sooner, their start included, and it may move."""
        return self.is_long and self._may_move

    @property
    def is_long(self) -> bool:
        """Whether workers would end the run sooner, their start included."""
        on_workers_s = self.left_s / self._workers + self._beside_s * (self._rounds - self._done - self._share)
        return self.left_s > START_S + on_workers_s

    @cached_property
    def _may_move(self) -> bool:
        return self._ask()

    @property
    def breaks_off(self) -> bool:
        """Whether it moves, and the present round would take so long that it is not ended here."""
        return self._share > 0 and self._round_s * (1 / self._share - 1) > START_S and self.moves


def workers_here(cpus_each: float) -> int:
    """Return how many workers of so many cores fit on this machine; at least 1."""
    return max(1, int(cores.own() / cpus_each + 1e-9))
