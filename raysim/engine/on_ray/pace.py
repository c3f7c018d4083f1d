"""How fast the workers are: seconds per cost, as last measured for each kind of work."""

from __future__ import annotations

from raysim.engine.on_ray.calls import WorkKind
from raysim.engine.on_ray.running import Running


class Pace:
    """Remembers what work took, from job to job."""

    def __init__(self) -> None:
        self._s_per_cost: dict[WorkKind, float] = {}

    def note(self, running: Running) -> None:
        """Some units of a job were done."""
        if running.s_per_cost is not None:
            self._s_per_cost[running.work] = running.s_per_cost

    def expected_s(self, work: WorkKind, cost: float) -> float | None:
        """What units of that cost should take; None where nothing of the kind was measured yet."""
        return cost * self._s_per_cost[work] if work in self._s_per_cost else None
