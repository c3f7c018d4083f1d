"""One turn of dispatch: the table while an event changes it, and the commands that follow."""

from __future__ import annotations

from dataclasses import dataclass, field

from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.table import Call, DispatchTable, Ping, Work, Worker


@dataclass
class Turn:
    """The table while an event changes it, and the commands so far. Functions with a turn as argument change the table,
    and the jobs and workers in it; all others change nothing."""

    table: DispatchTable
    now_s: float
    commands: list[events.Command] = field(default_factory=list)

    def send(self, call: Call, broadcast: bool = False) -> int:
        """Send a call; returns its number."""
        number = self.table.num_calls
        self.table.num_calls += 1
        self.table.put(number, call)
        self.commands.append(events.Send(number, call, broadcast))
        return number


def start_worker(turn: Turn, deaths: int = 0) -> None:
    """Start one more worker; `deaths`: see `Worker`."""
    worker = turn.table.num_workers
    turn.table.num_workers += 1
    turn.table.workers[worker] = Worker(deaths=deaths)
    turn.send(Ping(worker))


def remove_call(turn: Turn, number: int) -> Work:
    """Remove a call that has ended; its worker has begun the next one."""
    call = turn.table.remove(number)
    assert isinstance(call, Work)
    turn.table.workers[call.worker].since_s = turn.now_s
    return call


def first_work(table: DispatchTable, worker: int) -> Work | None:
    """The call that the worker carries out."""
    return next((call for call in table.calls_of.get(worker, {}).values() if isinstance(call, Work)), None)
