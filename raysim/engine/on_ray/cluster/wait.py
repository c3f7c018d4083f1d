"""Says what a run without a worker waits for, and ends it when it has waited long enough."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from raysim.errors import ResourceError

log = logging.getLogger("raysim")

SAID_S = 15.0
"""A run that has waited for this long says so: a worker on an idle machine starts sooner."""

ALMOST = 1e-6
"""Shares of a CPU that sums of fractions may be off."""


@dataclass(frozen=True)
class Room:
    """Resources by Ray's names: free now, and what a worker needs."""

    free: Mapping[str, float]
    each: Mapping[str, float]

    @property
    def fits(self) -> bool:
        """Whether a worker fits."""
        return all(self.free.get(name, 0.0) >= need - ALMOST for name, need in self.each.items())

    @property
    def why(self) -> str:
        """What a worker needs, what there is, and what follows, for people."""
        has = {name: self.free.get(name, 0.0) for name in self.each}
        text = f"each needs {_text(self.each)}, and Ray has {_text(has)} free"
        if self.fits:
            return f"{text}, so they are starting: the machine may be busy, or short of memory; Ray's logs say more"
        return f"{text}. Other jobs on the cluster, or this run's own workers while they start, may hold the rest"


class Wait:
    """Waits for a worker while a run has none.

    Args:
        wait_s: for how long.
        room: returns what there is for a worker now.
    """

    def __init__(self, wait_s: float, room: Callable[[], Room]) -> None:
        self._wait_s, self._room = wait_s, room
        self._has_said = False

    def check(self, waited_s: float, had_some: bool) -> None:
        """Say that the run waits, once in a while without a worker.

        Args:
            waited_s: how long there has been none.
            had_some: whether there were any before.

        Raises:
            ResourceError: it has waited long enough.
        """
        if waited_s <= min(SAID_S, self._wait_s):
            self._has_said = False
            return
        what = "no other started" if had_some else "no worker has started"
        text = f"{'All workers were lost, and for' if had_some else 'For'} {waited_s:.0f} s {what}: {self._room().why}"
        if waited_s > self._wait_s:
            further = " The run can be resumed from its last checkpoint." if had_some else ""
            raise ResourceError(f"{text}. engine.wait_s says how long to wait.{further}")
        if not self._has_said:
            log.warning("%s. The run waits for up to %g s (engine.wait_s)", text, self._wait_s)
            self._has_said = True


def _text(resources: Mapping[str, float]) -> str:
    return " and ".join(f"{amount:g} {name}" for name, amount in resources.items())
