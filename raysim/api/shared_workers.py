"""Carries out several runs in this process, on Ray, or here at first and on Ray once workers are worth their start.

A run's state is in the script between two segments, so a move repeats nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import ExitStack

from raysim.api.executors import begins, can_be_sent
from raysim.api.preflight import ExecutorName
from raysim.engine.many.shared_executor import SharedExecutor, SharedInProcess
from raysim.engine.outlook import Outlook, workers_here
from raysim.engine.plan.plan import Plan
from raysim.experiment.experiment import EngineSection

log = logging.getLogger("raysim")


class SharedWorkers:
    """The workers of several runs: this process, those of Ray, or this process until those of Ray are worth it.

    Args:
        engine: their number and size.
        executor, address: as for `Runs`.
        held: ends them when it closes.
        plans: returns the runs that have not ended.

    Raises:
        ResourceError: Ray does not have the requested resources.
    """

    def __init__(
        self,
        engine: EngineSection,
        executor: ExecutorName | None,
        address: str | None,
        held: ExitStack,
        plans: Callable[[], Iterable[Plan]],
    ) -> None:
        self._engine, self._address, self._held = engine, address, held
        # A script may change its own level before they start.
        self._log_level = log.getEffectiveLevel()
        begin = begins(engine, executor, address)
        self._outlook: Outlook | None = None
        if begin == "here at first":
            self._most = workers_here(engine.cpus_per_worker)
            # Rounds of a segment cost nothing on Ray beside training.
            self._outlook = Outlook(0, self._most, lambda: all(map(can_be_sent, plans())), round_s=0)
        self.executor: SharedExecutor = self._on_ray() if begin == "on Ray" else SharedInProcess()

    @property
    def number(self) -> int:
        """How many there are, or would be after a move: what a script does by it does not depend on the clock."""
        return self.executor.workers if self._outlook is None else self._most

    def worked(self, took_s: float, rounds: int) -> None:
        """Count a segment of so many rounds of all its runs."""
        if self._outlook is not None:
            self._outlook.work(took_s, 0)
            self._outlook.round(rounds)

    def move(self, left: int) -> bool:
        """Move to Ray if its workers would end the rounds that are left sooner; returns whether `executor` is new."""
        if self._outlook is None:
            return False
        self._outlook.expect(left)
        if not self._outlook.moves:
            return False
        log.info("about %.0f s are left in this process, so workers take over", self._outlook.left_s)
        self.executor, self._outlook = self._on_ray(), None
        return True

    def _on_ray(self) -> SharedExecutor:
        # Import Ray only if it is used.
        from raysim.engine.on_ray.cluster.cluster import connected, place
        from raysim.engine.on_ray.executor.shared_on_ray import SharedOnRay

        self._held.enter_context(connected(self._address))
        started = SharedOnRay(place(self._engine), self._log_level)
        self._held.callback(started.close)
        return started
