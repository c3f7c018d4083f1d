"""The rules of dispatch against a model of workers and nodes: whatever happens, every unit counts once, and it ends."""

from __future__ import annotations

import copy
import itertools
import re
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from raysim.engine.failure import BUDGETS, Cause
from raysim.engine.job import COMBINE, UNITS, Kind, UpdatesLost
from raysim.engine.on_ray.executor import events
from raysim.engine.on_ray.executor.assigning import most_calls
from raysim.engine.on_ray.executor.rules import change
from raysim.engine.on_ray.executor.table import Call, DispatchTable, Gather, JobFacts, Key, Ping, Work
from raysim.errors import ResourceError, WorkerLostError
from tests.support.dispatch_table import check

NODES = ["here", "there", "yonder"]


class Task(NamedTuple):
    """What a worker was sent: a call by its number, or a key to let go of."""

    number: int
    call: Call | Key
    broadcast: bool = False


class Answer(NamedTuple):
    """What a worker made of a call, on its way to the driver: an event, and the units whose results come with it."""

    worker: int
    event: events.Event
    result: list[int]


@dataclass
class ModelWorker:
    """Carries out what it was sent, in order, when the test has it do so.

    held: by key, the units whose results it has. told: keys whose broadcast it has.
    """

    node: str
    dead: bool = False
    tasks: deque[Task] = field(default_factory=deque)
    held: dict[Key, list[int]] = field(default_factory=dict)
    told: set[Key] = field(default_factory=set)

    def let_go(self) -> None:
        """Drop what it is to drop before its next call."""
        while self.tasks and isinstance(self.tasks[0].call, tuple) and not isinstance(self.tasks[0].call, Call):
            key: Any = self.tasks.popleft().call
            self.held.pop(key, None)
            self.told.discard(key)


class Dispatch(RuleBasedStateMachine):
    """Has events happen, in any order that Ray allows, and carries out what the rules command."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.table = DispatchTable(("here",), 0.0)
        self.workers: dict[int, ModelWorker] = {}
        self.fetches: list[Task] = []
        self.replies: list[Answer] = []
        self.nodes = list(NODES)
        self.handed: dict[int, list[int]] = {}
        """By call: the units whose results it handed over."""
        self.taken: dict[int, list[int]] = {}
        """By job: the units whose results the driver took."""
        self.runs: dict[int, tuple[int, ...]] = {}
        """By job: whose segment it is."""
        self.tickets = itertools.count(1)
        self.ended = False

    # What the rules command

    def happen(self, event: events.Event, result: list[int] | None = None) -> None:
        """Have an event, with the units whose results came with it; then what follows."""
        same = copy.deepcopy(self.table)
        commands = change(self.table, event, self.now_s)
        check(self.table)
        # All that the rules go by is in the table.
        assert text(commands) == text(change(same, event, self.now_s))
        assert text(self.table) == text(same)
        for command in commands:
            if not self.ended:
                self.carry_out(command, result or [], isinstance(event, events.RepliesRead))

    def carry_out(self, command: events.Command, result: list[int], given_out: bool) -> None:
        match command:
            case events.Send(number, call, broadcast):
                self.send(Task(number, call, broadcast), given_out)
            case events.Drop(worker, key):
                self.workers[worker].tasks.append(Task(-1, key))
            case events.End(worker):
                del self.workers[worker]
                self.replies = [one for one in self.replies if one.worker != worker]
            case events.Count(call):
                self.taken[call.ticket] += result
            case events.FinishJob(job):
                assert sorted(self.taken.pop(job.ticket)) == list(range(len(job.facts.costs)))
                # Updates that are kept are those of the calls that the table names.
                assert all(index in self.handed[unit.call] for index, unit in job.units.items())
            case events.Raise(error, ticket):
                if ticket is not None:
                    # It ends alone.
                    assert isinstance(error, UpdatesLost) or self.runs.pop(ticket)
                    assert ticket not in self.table.jobs
                    del self.taken[ticket]
                    return
                assert isinstance(error, WorkerLostError | ResourceError)
                if "died while it started" in str(error):
                    assert not self.table.workers
                    self.ended = True
                    return
                memory: list[Cause] = ["out_of_memory"]
                causes = memory if isinstance(error, ResourceError) else ["worker_lost", "hung"]
                counts = [item for job in self.table.jobs.values() for item in job.failures.items()]
                assert any(count == BUDGETS[cause] and cause in causes for (cause, _), count in counts)
                self.ended = True

    def send(self, task: Task, given_out: bool) -> None:
        call: Any = task.call
        if call.worker is None:
            self.fetches.append(task)
            return
        worker = self.workers.setdefault(call.worker, ModelWorker(self.nodes[call.worker % len(self.nodes)]))
        if isinstance(call, Work) and call.units:
            others = [one for n, one in self.table.calls.items() if one.worker == call.worker and n < task.number]
            work = [one for one in others if isinstance(one, Work)]
            if given_out:
                # What did not fit into memory is done by the same worker, whatever else it has to do.
                assert sum(bool(one.units) for one in work) < most_calls(self.table, self.table.jobs[call.ticket])
            assert call.late_worker is None or not self.runs[call.ticket]
            if given_out or call.late_worker is not None:
                assert not any(one.cancelled for one in work)
                assert not any(isinstance(one, Ping) for one in others)
        worker.tasks.append(task)

    # What happens

    def advance(self, number: int, out_of_memory_at: int | None = None) -> None:
        """A worker carries out its next call; or it turns out to be dead."""
        worker = self.workers[number]
        worker.let_go()
        if not worker.tasks:
            return
        task = worker.tasks.popleft()
        if worker.dead:
            self.replies.append(Answer(number, events.WorkerLost(task.number, "died"), []))
            return
        match task.call:
            case Ping():
                self.replies.append(Answer(number, events.Ready(task.number, worker.node), []))
            case Gather(_, _, _, handed):
                units = [unit for one in handed for unit in self.handed[one]]
                self.replies.append(Answer(number, events.Gathered(task.number), units))
            case Work() as call:
                self.replies.append(self.work(number, task, call, out_of_memory_at))

    def count(self, index: int) -> None:
        """The driver finds a reply, not always in the order in which the worker replied."""
        answer = self.replies.pop(index)
        self.happen(answer.event, answer.result)

    def work(self, number: int, task: Task, call: Work, out_of_memory_at: int | None) -> Answer:
        worker = self.workers[number]
        if task.broadcast:
            worker.told.add(call.key)
        assert not call.units or call.key in worker.told
        num = len(call.units) if out_of_memory_at is None else min(out_of_memory_at, len(call.units))
        held = worker.held.setdefault(call.key, [])
        held += call.units[:num]
        assert len(held) == len(set(held))
        if call.hand_over:
            worker.told.discard(call.key)
        handed = worker.held.pop(call.key) if call.hand_over and num == len(call.units) else []
        self.handed[task.number] = handed
        seconds = (call.cost / len(call.units),) * num if call.units else ()
        worked = events.UnitsDone(task.number, seconds, tuple(handed), num < len(call.units))
        return Answer(number, worked, [] if call.apart else handed)

    def fetch(self, index: int) -> None:
        """Results that lie on a node come, or turn out to be lost."""
        task = self.fetches.pop(index)
        assert isinstance(task.call, Gather)
        lost = task.call.node not in self.nodes
        self.happen(events.Gathered(task.number, lost), self.handed[task.call.handed[0]])

    def has_to_do(self) -> list[int]:
        return [number for number, worker in self.workers.items() if worker.tasks]

    @initialize(workers=st.integers(1, 5))
    def start(self, workers: int) -> None:
        self.happen(events.CapacityAdded(workers))

    @precondition(lambda self: not self.ended and len(self.taken) < 3)
    @rule(
        costs=st.sampled_from([(0.001, 1.0, 2.0), (0.001, 0.05)]).flatmap(
            lambda seconds: st.lists(st.sampled_from(seconds), min_size=1, max_size=9)
        ),
        results=st.sampled_from(["summed", "gathered"]),
        kind=st.sampled_from(["train", "evaluate"]),
    )
    def submit(self, costs: list[float], results: Any, kind: Kind) -> None:
        ticket = next(self.tickets)
        self.taken[ticket], self.runs[ticket] = [], ()
        self.happen(events.Submitted(ticket, JobFacts(1, (kind, 0), costs, 10**6, results)))
        self.happen(events.RepliesRead())

    @precondition(lambda self: not self.ended and len(self.taken) < 3)
    @rule(runs=st.sampled_from([(0,), (1, 2), (2,)]))
    def submit_segment(self, runs: tuple[int, ...]) -> None:
        ticket = next(self.tickets)
        self.taken[ticket], self.runs[ticket] = [], runs
        self.happen(events.Submitted(ticket, JobFacts(1, ("segment", runs[0]), [1.0], 10**6, "summed", runs)))
        self.happen(events.RepliesRead())

    @precondition(lambda self: not self.ended and self.has_to_do())
    @rule(data=st.data(), times=st.integers(1, 4))
    def workers_carry_out(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if self.has_to_do():
                self.advance(data.draw(st.sampled_from(self.has_to_do())))

    @precondition(lambda self: not self.ended and self.replies)
    @rule(data=st.data(), times=st.integers(1, 4))
    def replies_come(self, data: st.DataObject, times: int) -> None:
        for _ in range(times):
            if not self.ended and self.replies:
                self.count(data.draw(st.integers(0, len(self.replies) - 1)))
        self.give_out()

    @precondition(lambda self: not self.ended and self.has_to_do())
    @rule(data=st.data(), at=st.integers(0, 2))
    def memory_runs_out(self, data: st.DataObject, at: int) -> None:
        self.advance(data.draw(st.sampled_from(self.has_to_do())), at)

    @precondition(lambda self: not self.ended and self.fetches)
    @rule(data=st.data())
    def results_come(self, data: st.DataObject) -> None:
        self.fetch(data.draw(st.integers(0, len(self.fetches) - 1)))
        self.give_out()

    @precondition(lambda self: not self.ended)
    @rule(data=st.data())
    def worker_dies(self, data: st.DataObject) -> None:
        self.workers[data.draw(st.sampled_from(sorted(self.workers)))].dead = True

    @precondition(lambda self: not self.ended and len(self.nodes) > 1)
    @rule(index=st.integers(1, 2))
    def node_is_lost(self, index: int) -> None:
        lost = self.nodes.pop(min(index, len(self.nodes) - 1))
        for worker in self.workers.values():
            worker.dead |= worker.node == lost

    @precondition(lambda self: not self.ended)
    @rule(seconds=st.sampled_from([0.5, 6.0, 30.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds
        self.happen(events.Timeout())
        self.give_out()

    @precondition(lambda self: not self.ended and len(self.workers) < 8)
    @rule()
    def node_joins(self) -> None:
        self.happen(events.CapacityAdded(1))

    @precondition(lambda self: not self.ended and any(self.next_work(number) for number in self.workers))
    @rule(data=st.data())
    def updates_are_lost(self, data: st.DataObject) -> None:
        """What a call was to look at is gone."""
        number = data.draw(st.sampled_from([number for number in self.workers if self.next_work(number)]))
        task = self.workers[number].tasks.popleft()
        if task.broadcast and isinstance(task.call, Work):
            self.workers[number].told.add(task.call.key)
        self.replies.append(Answer(number, events.Failed(task.number, KeyError(), updates_lost=True), []))

    @precondition(lambda self: self.ended)
    @rule()
    def nothing_follows_the_end(self) -> None:
        assert self.ended

    def next_work(self, number: int) -> bool:
        worker = self.workers[number]
        worker.let_go()
        return (
            bool(worker.tasks)
            and isinstance(call := worker.tasks[0].call, Work)
            and bool(call.units)
            and not worker.dead
        )

    def give_out(self) -> None:
        if not self.ended:
            self.happen(events.RepliesRead())

    def teardown(self) -> None:
        """When nothing more befalls, all jobs come to their end, and no worker keeps anything."""
        for _ in range(100):
            if self.ended or not (self.has_to_do() or self.replies or self.fetches):
                break
            while self.has_to_do():
                self.advance(self.has_to_do()[0])
            while self.replies and not self.ended:
                # The last one first: the least that a rule may expect.
                self.count(-1)
            while self.fetches and not self.ended:
                self.fetch(0)
            self.give_out()
        if not self.ended:
            assert not self.table.jobs
            assert not self.taken
            assert not any(units for worker in self.workers.values() for units in worker.held.values())
            assert not any(worker.told for worker in self.workers.values())


def text(value: Any) -> str:
    """All that it says, schedules by what they hold."""
    jobs = value.jobs.values() if isinstance(value, DispatchTable) else []
    return re.sub("<.*?>", "", repr(value)) + repr([list(job.schedule) for job in jobs])


TestDispatch = Dispatch.TestCase
TestDispatch.settings = settings(max_examples=150, stateful_step_count=40)


def measured_table(unit_s: float | None, workers: int = 2) -> DispatchTable:
    """Workers, whose units for training take `unit_s` each; None: not measured."""
    table = DispatchTable(("here",), 0.0, seconds_per_cost={} if unit_s is None else {("train", 0): unit_s})
    change(table, events.CapacityAdded(workers), 0.0)
    make_ready(table, 0.0)
    return table


def make_ready(table: DispatchTable, now_s: float) -> None:
    """Have every worker that is starting reply."""
    for number, call in list(table.calls.items()):
        if isinstance(call, Ping):
            change(table, events.Ready(number, "here"), now_s)


@pytest.mark.parametrize(
    ("kind", "named"), [("train", "chunk"), ("evaluate", "slice"), ("personal", "slice"), ("gram", "shard")]
)
def test_a_message_calls_a_unit_what_it_is(kind: Kind, named: str) -> None:
    facts = JobFacts(4, (kind, 0), [1.0] * 3, 10**6, "summed")
    assert (facts.one(2), facts.several(3)) == (f"{named} 2 of round 4", f"3 {named}s of round 4")


def test_a_message_calls_a_segment_by_its_runs() -> None:
    facts = JobFacts(4, ("segment", 7), [1.0], 10**6, "summed", (7, 9))
    assert facts.one(0) == facts.several(1) == "a segment of 2 runs from round 4"


def test_every_kind_of_unit_has_a_name() -> None:
    assert set(UNITS) == set(COMBINE)


@pytest.mark.parametrize(("unit_s", "waiting"), [(0.05, 1), (0.2, 0), (None, 0)])
def test_a_call_waits_for_a_worker_only_if_it_is_short(unit_s: float | None, waiting: int) -> None:
    table = measured_table(unit_s)
    change(table, events.Submitted(0, JobFacts(1, ("train", 0), [1.0] * 8, 10**6, "summed")), 0.0)
    change(table, events.RepliesRead(), 0.0)
    assert table.available() == dict.fromkeys((0, 1), 1 + waiting)


def test_a_hang_counts_only_against_the_job_whose_unit_hangs() -> None:
    """Another job's unit that waits behind it keeps its retry, and is not given up when the first one is."""
    table = measured_table(0.01, workers=1)
    table.seconds_per_cost["evaluate", 0] = 0.01
    kinds: list[Kind] = ["train", "evaluate"]
    for ticket, kind in enumerate(kinds):
        change(table, events.Submitted(ticket, JobFacts(1, (kind, 0), [1.0], 0, "summed")), 0.0)
    change(table, events.RepliesRead(), 0.0)
    first = change(table, events.Timeout(), 100.0)
    make_ready(table, 100.0)
    change(table, events.RepliesRead(), 100.0)
    second = change(table, events.Timeout(), 200.0)
    assert [table.jobs[ticket].failures for ticket in (0, 1)] == [{("hung", 0): 1}, {}]
    assert [table.jobs[ticket].retries for ticket in (0, 1)] == [1, 2]
    assert not any(isinstance(command, events.Raise) for command in first)
    assert [str(command.error) for command in second if isinstance(command, events.Raise)] == [
        "worker 1 has not replied for 100 s with 1 chunk of round 1: giving up after 1 of 1 retries"
    ]
