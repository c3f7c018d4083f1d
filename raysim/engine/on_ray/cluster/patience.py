"""Says how long a run waits for workers: a minute where others hold what they need, minutes where they are starting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

ROOM_S = 60.0
"""How long to wait for resources that others hold."""

START_S = 300.0
"""How long a worker's process may take to start: on a busy machine it imports its libraries for minutes."""

ALMOST = 1e-6
"""Shares of a CPU that sums of fractions may be off."""


@dataclass(frozen=True)
class Room:
    """Resources by Ray's names: of the whole cluster, free now, and what each of this run's workers needs."""

    total: Mapping[str, float]
    free: Mapping[str, float]
    each: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether one more worker fits."""
        return all(self.free.get(name, 0.0) >= need - ALMOST for name, need in self.each.items())

    def is_there(self, workers: int) -> bool:
        """Whether one more worker fits, or no more is held than `workers` of this run do: then they may be starting."""
        return self.fits or all(self._held(name) <= workers * need + ALMOST for name, need in self.each.items())

    def is_over(self, waited_s: float, workers: int) -> bool:
        """Whether a run that has waited so long for one of its `workers` gives up."""
        return waited_s > START_S or (waited_s > ROOM_S and not self.is_there(workers))

    @property
    def why(self) -> str:
        """What a worker needs, what there is, and what follows, for people."""
        has = {name: self.free.get(name, 0.0) for name in self.each}
        said = f"each needs {_text(self.each)}, and Ray has {_text(has)} free"
        if self.fits:
            return f"{said}, so they are starting: the machine may be busy, or short of memory; Ray's logs say more"
        return f"{said}. Other jobs on the cluster may hold the rest"

    def _held(self, name: str) -> float:
        return self.total.get(name, 0.0) - self.free.get(name, 0.0)


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
