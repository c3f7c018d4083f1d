"""Defines the executor on Ray that several runs share. A worker receives a run with the first segment of it."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING

import ray

from raysim.engine.job import Job, Outcome
from raysim.engine.on_ray.cluster import sendable
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.cluster.data_on_nodes import SentDataset, SentPlan, SentRuns, receive_plan, send, send_plan
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.plan.plan import Plan

if TYPE_CHECKING:
    from ray import ObjectRef


class SharedOnRay:
    """See `SharedExecutor`: the executor of one run, whose workers hold the data of several.

    Args:
        placement: as for `OnRay`.
        log_level: of raysim's log on the workers.

    Raises:
        ResourceError: Ray does not have what `placement` asks for.
    """

    def __init__(self, placement: Placement, log_level: int) -> None:
        self._datasets: dict[str, SentDataset] = {}
        self._wait_s = placement.wait_s
        self._log_level = log_level
        self._on_ray = OnRay(self._runs(), placement)

    @property
    def workers(self) -> int:
        """See `SharedExecutor`. Workers that have yet to start count: how runs are divided must not depend on them."""
        return self._on_ray.workers

    def send(self, plan: Plan) -> Callable[[], Plan]:
        """See `SharedExecutor`; runs with the same data share one copy."""
        plan = sendable.checked(plan)
        self._on_ray.connection.check()
        data = plan.dataset.fingerprint
        if data not in self._datasets:
            self._datasets[data] = send(plan.dataset, self._wait_s)
            self._on_ray.resend(self._runs())
        return partial(_received, ray.put(send_plan(plan, self._wait_s, self._datasets[data])))

    def submit(self, job: Job) -> int:
        """See `Executor`."""
        return self._on_ray.submit(job)

    def first(self, tickets: Collection[int]) -> int:
        """See `SharedExecutor`."""
        return self._on_ray.first(tickets)

    def result(self, ticket: int) -> Outcome:
        """See `Executor`."""
        return self._on_ray.result(ticket)

    def close(self) -> None:
        """See `Executor`."""
        self._on_ray.close()

    def _runs(self) -> SentRuns:
        return SentRuns(tuple(self._datasets.values()), self._log_level)


def _received(plan: ObjectRef[SentPlan]) -> Plan:
    return receive_plan(ray.get(plan))
