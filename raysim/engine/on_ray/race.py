"""Races: what a worker is late with is given to another one too, and the first to reply is the one that counts."""

from __future__ import annotations

import logging

from raysim.engine.on_ray.calls import Work
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.running import Running

log = logging.getLogger("raysim")


class Races:
    """Remembers who is late, and with which jobs, where somebody else does the units too.

    Args:
        crew: late workers, and those that step in.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._copied: set[tuple[int, int]] = set()
        """Late workers, and tickets."""

    def begin(self, late: int, running: Running) -> None:
        """Give all that a late worker has of a job to an idle one as well, where there is one."""
        ticket = running.ticket
        units = self._crew.units_of(late, ticket)
        workers = self._crew.workers
        idle = [number for number in workers.ready() if number != late and workers[number].is_idle]
        if not units or not idle or (late, ticket) in self._copied:
            return
        self._copied.add((late, ticket))
        # What it would have done next is anyone's.
        running.schedule.lose(late, ())
        log.warning("worker %d is late with %d chunk(s); worker %d does them too", late, len(units), idle[0])
        self._crew.give_copy(idle[0], running, tuple(sorted(units)), late)

    def count_reply(self, call: Work, running: Running) -> None:
        """The call has been replied to: in a race it has won, and one for its worker's units is off."""
        if call.copies is None:
            self.call_off(call.worker, call.ticket)
            return
        log.warning("worker %d was first with what worker %d is late with", call.worker, call.copies)
        self._copied.discard((call.copies, call.ticket))
        # It may have been given more since it was copied.
        others = self._crew.units_of(call.copies, call.ticket) - set(call.covers)
        self._crew.void(call.copies, call.ticket)
        running.schedule.lose(call.copies, others)

    def call_off(self, late: int, ticket: int) -> None:
        """Nobody wants what others do in the worker's place: it has replied itself, or is none any more."""
        if (late, ticket) in self._copied:
            self._copied.discard((late, ticket))
            self._crew.calls.void_copies(late, ticket)

    def lose(self, copy: Work) -> None:
        """The worker that did somebody's units too is none any more: another one may step in."""
        self._copied.discard((copy.copies, copy.ticket))
