"""What holds for the table of dispatch between any two events."""

from __future__ import annotations

from raysim.engine import failure
from raysim.engine.on_ray.executor.table import Call, DispatchTable, Gather, JobState, Ping, Unit, Work


def check(table: DispatchTable) -> None:
    """Each unit is in one state, whoever it names has it, and nobody has another one."""
    for job in table.jobs.values():
        _check_units(table, job)
        assert all(count <= failure.BUDGETS[cause] for (cause, _), count in job.failures.items())
    assert _by_worker(table) == {worker: calls for worker, calls in table.calls_of.items() if calls}
    placed = {(node, number) for node, numbers in table.workers_on.items() for number in numbers}
    assert placed == {(worker.node, number) for number, worker in table.workers.items() if worker.node}
    for number, call in table.calls.items():
        assert number < table.num_calls
        assert call.worker is None or call.worker in table.workers
        if isinstance(call, Ping) or call.ticket not in table.jobs:
            assert not isinstance(call, Work) or call.cancelled
            continue
        job = table.jobs[call.ticket]
        if isinstance(call, Gather):
            handed = [unit for unit in job.units.values() if unit.call in call.handed]
            assert {unit.call for unit in handed} == set(call.handed)
            assert all((unit.state, unit.node) == ("on_node", call.node) for unit in handed)
        elif call.late_worker is not None and not call.cancelled:
            assert call.late_worker in job.raced
            assert call.late_worker != call.worker
            assert set(call.units) <= job.units_of(call.late_worker)


def _check_units(table: DispatchTable, job: JobState) -> None:
    assert sorted(job.units) == list(range(len(job.facts.costs)))
    assert sorted(job.schedule) == sorted(index for index, unit in job.units.items() if unit.state == "waiting")
    assert len(job.schedule) == len(list(job.schedule))
    own = {
        number: call
        for number, call in table.calls.items()
        if isinstance(call, Work) and call.key == (job.ticket, None) and not call.cancelled
    }
    called = {index: (unit.call, unit.worker) for index, unit in job.units.items() if unit.state == "called"}
    asked = [(index, number, call.worker) for number, call in own.items() for index in call.units]
    # A worker's replies are counted in any order: what a call carried out may have come with a later one's reply.
    ahead = {index for index, number, _ in asked if handed_over_later(job.units[index], number)}
    assert called == {index: (number, worker) for index, number, worker in asked if index not in ahead}
    assert len({index for index, _, _ in asked}) == len(asked)
    for unit in job.units.values():
        # Who holds a result that nobody has asked for is asked when there is no more to give, so it has to be there.
        assert unit.state != "held" or (unit.worker in table.workers and unit.call not in table.calls)
        assert (unit.worker is not None) == (unit.state in ("called", "held"))
        assert (unit.node in table.nodes) == (unit.state == "on_node")
        assert unit.state != "on_node" or job.facts.results == "gathered"
    gathers = [call for call in table.calls.values() if isinstance(call, Gather) and call.ticket == job.ticket]
    gathered = [one for call in gathers for one in call.handed]
    assert len(gathered) == len(set(gathered))
    there = {(unit.node, unit.call) for unit in job.units.values() if unit.state == "on_node"}
    landed = [(node, number) for node, numbers in job.landed.items() for number in numbers]
    assert sorted(landed) == sorted((node, number) for node, number in there if number not in gathered)
    last = {worker: table.last_hand_over(worker, job.ticket) for worker in table.workers}
    kept = [unit for unit in job.units.values() if unit.worker is not None and unit.call > last[unit.worker]]
    # Of two calls, the reply to the later one may say first that the results of the earlier one are not handed over.
    assert {unit.worker for unit in kept if unit.state == "held"} <= set(job.owing) <= {unit.worker for unit in kept}


def _by_worker(table: DispatchTable) -> dict[int | None, dict[int, Call]]:
    found: dict[int | None, dict[int, Call]] = {}
    for number, call in table.calls.items():
        found.setdefault(call.worker, {})[number] = call
    return found


def handed_over_later(unit: Unit, call: int) -> bool:
    """Whether the result is known to have been handed over in a later call than this one."""
    return unit.state in ("on_node", "arrived") and unit.call > call
