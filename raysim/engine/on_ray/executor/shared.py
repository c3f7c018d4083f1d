"""Defines the executor on Ray that several runs share. A worker receives a run with the first segment of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import ray

from raysim.engine.on_ray.cluster import sendable
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.cluster.data_on_nodes import SentDataset, SentRuns, receive_plan, send, send_plan
from raysim.engine.on_ray.executor.shell import OnRay
from raysim.engine.plan.plan import Plan


class SharedOnRay(OnRay):
    """See `SharedExecutor`; `log_level`: of raysim's log on the workers.

    Raises:
        ResourceError: Ray does not have what `placement` asks for.
    """

    def __init__(self, placement: Placement, log_level: int) -> None:
        self._datasets: dict[str, SentDataset] = {}
        self._log_level = log_level
        super().__init__(self._runs(), placement)

    @property
    def workers(self) -> int:
        """See `SharedExecutor`. Workers that have yet to start count: how runs are divided must not depend on them."""
        return len(self._table.workers)

    def send(self, plan: Plan) -> Callable[[], Plan]:
        """See `SharedExecutor`; runs with the same data share one copy."""
        sendable.check(plan)
        data = plan.dataset.fingerprint
        if data not in self._datasets:
            self._datasets[data] = send(plan.dataset)
            self._plan_ref = ray.put(self._runs())
        return partial(_received, ray.put(send_plan(plan, self._datasets[data])))

    def _runs(self) -> SentRuns:
        return SentRuns(tuple(self._datasets.values()), self._log_level)


def _received(plan: Any) -> Plan:
    return receive_plan(ray.get(plan))
