"""Gathering: sums that lie on a node are added up there, so that one record travels."""

from __future__ import annotations

from raysim.engine.on_ray.calls import Work
from raysim.engine.on_ray.crew import Crew
from raysim.engine.on_ray.running import Running


def gather(running: Running, crew: Crew) -> None:
    """Where nothing more of the job comes from a node, have what lies there added up and sent."""
    if not running.on_nodes:
        return
    busy = {crew.workers[call.worker].node for call in crew.calls.of_job(running.ticket) if isinstance(call, Work)}
    for node in [node for node in running.on_nodes if node not in busy]:
        here, sums = crew.workers.of_node(node), running.on_nodes.pop(node)
        if len(sums) > 1 and here:
            number = min(here, key=lambda number: crew.workers[number].in_flight)
            crew.have_combined(number, running, sums)
        else:
            for one in sums:
                crew.fetch(node, running, one)
