"""Mishaps on virtual time: whatever happens, every unit is counted once, in the tree's order."""

from __future__ import annotations

import itertools
import logging
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from raysim.cohort.tree import fold
from raysim.engine import failure
from raysim.engine.job import Job, Outcome, UpdatesLost
from raysim.engine.many.segment import job_of
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.executor import client_pool, rules
from raysim.engine.on_ray.executor import shared_on_ray as several
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.on_ray.executor.shared_on_ray import SharedOnRay
from raysim.errors import ClientError, RaysimError, ResourceError, WorkerLostError
from tests.support.simulated_ray import SimulatedRay, bracket, simulated

pytestmark = pytest.mark.usefixtures("loop_here")

Make = Callable[..., SimulatedRay]


@pytest.fixture
def make_ray(monkeypatch: pytest.MonkeyPatch) -> Make:
    """A cluster in Ray's place, of nodes with room for so many workers each, the driver's first."""
    return lambda **room: simulated(monkeypatch, room)


@dataclass(frozen=True)
class Model:
    """What a job sends: large enough to lie on the nodes, or small enough to travel with the calls."""

    round: int
    vector: Tensor
    phase: int = 0


SMALL, LARGE = torch.zeros(10), torch.zeros(20_000)


def started(ray: SimulatedRay, wait_s: float = 300.0) -> OnRay:
    """The executor, with as many workers as there is room for; the first of them has started."""
    plan: Any = SimpleNamespace(experiment=SimpleNamespace(engine=SimpleNamespace(threads=1, precision="float32")))
    return OnRay(plan, Placement(workers=sum(ray.room.values()), cpus=1, gpus=0, wait_s=wait_s))


def job(names: str | list[str], model: Tensor = SMALL, kind: Any = "train", phase: int = 0, shards: int = 0) -> Job:
    """A job of named units that cost alike; a string lists them with blanks between."""
    units = tuple(names.split() if isinstance(names, str) else names)
    broadcast: Any = Model(1, model, phase)
    return Job(kind, broadcast, units, [1.0] * len(units), keep=tuple((i, i + 1) for i in range(shards)))


def named(prefix: str, num: int) -> list[str]:
    return [f"{prefix}{index}" for index in range(num)]


def whole(units: Sequence[object]) -> str:
    """The sum of all units, each once."""
    return fold(map(str, units), bracket, len(units))


def done(on_ray: OnRay, asked: Job) -> Outcome:
    """Do the job, and see that its sum is whole."""
    outcome = on_ray.result(on_ray.submit(asked))
    assert outcome.value == whole(asked.units)
    return outcome


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_a_workers_replies_may_come_in_any_order(make_ray: Make, model: Tensor) -> None:
    ray = make_ray(here=1, there=2)
    delays = itertools.cycle([5.0, 0.0, 0.3])
    ray.reply_s = lambda: next(delays)
    on_ray = started(ray)
    for shards in (0, 2):
        done(on_ray, job(named("unit", 20), model, shards=shards))
    ray.let_pass(10)
    assert not any(process.holds for process in ray.processes)


def out_of_memory_at(*calls: int) -> Callable[[int, Any], float]:
    """Units of 2.5 s, of which these (counted from 1, retries included) run out of memory."""
    count = 0

    def seconds(worker: int, unit: Any) -> float:
        nonlocal count
        count += 1
        if count in calls:
            raise torch.OutOfMemoryError
        return 2.5

    return seconds


# Workers and nodes that die


@pytest.mark.parametrize(("live", "dead", "units"), [(1, 4, 5), (2, 8, 10), (4, 16, 20), (4, 32, 72)])
def test_a_node_that_is_lost_with_all_its_workers_costs_each_chunk_one_retry(
    live: int, dead: int, units: int, make_ray: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failure, "BUDGETS", {**failure.BUDGETS, "worker_lost": 1})
    ray = make_ray(here=live, there=dead)
    on_ray = started(ray)
    ray.after(1.5, lambda: ray.lose_node("there"))
    ray.seconds = lambda worker, unit: 2.0
    assert done(on_ray, job(named("u", units), LARGE)).retries


def test_a_sole_worker_that_dies_after_minutes_without_a_pause_is_replaced(make_ray: Make) -> None:
    ray = make_ray(here=1)
    on_ray = started(ray)
    ray.seconds = lambda worker, unit: 0.2
    ray.after(100, lambda: ray.processes[0].die())
    assert done(on_ray, job(named("u", 1000))).retries == 1


def test_workers_that_die_while_they_start_are_replaced(make_ray: Make) -> None:
    ray = make_ray(here=2, there=1)
    for number, at_s in ((0, 0.5), (2, 0.7), (3, 1.4)):
        ray.after(at_s, partial(lambda number: ray.processes[number].die(), number))
    on_ray = started(ray)
    ray.let_pass(4)
    done(on_ray, job(named("u", 9)))
    assert len(on_ray.started) == 3
    assert len(ray.processes) == 6


def test_workers_that_die_whenever_they_start_end_the_run(make_ray: Make) -> None:
    ray = make_ray(here=2)

    def kill() -> None:
        for process in list(ray.processes):
            if not process.dead:
                process.die()
        ray.after(0.6, kill)

    kill()
    with pytest.raises(
        WorkerLostError, match=r"died while it started: giving up after 3 of 3 retries, and there is no other"
    ):
        started(ray)
    assert ray.now_s < 5


def test_a_place_in_which_no_worker_starts_is_given_up_and_the_others_go_on(make_ray: Make) -> None:
    ray = make_ray(here=1, there=1)
    on_ray = started(ray)

    def kill() -> None:
        for process in list(ray.processes):
            if process.node == "there" and not process.dead:
                process.die()
        ray.after(0.6, kill)

    kill()
    done(on_ray, job(named("u", 20)))
    # The one that was there, and three in its place.
    assert len(ray.processes) == 5


# Workers that start late


def give_back(ray: SimulatedRay) -> None:
    """Others end, and with them what they held."""
    ray.taken = set()
    ray.fill()


@pytest.mark.parametrize("model", [SMALL, LARGE])
def test_a_run_begins_with_the_first_worker_and_the_others_join_it(make_ray: Make, model: Tensor) -> None:
    ray = make_ray(here=1, there=2)
    ray.taken = {"there"}
    on_ray = started(ray)
    begun_s = ray.now_s
    assert len(on_ray.started) == 1

    ray.after(6.5, lambda: give_back(ray))
    asked = job(named("u", 24), model)
    outcome = done(on_ray, asked)
    # Alone it would take 24 s; alone for 8 s, and then three together, 8 + 16 / 3 s.
    assert 13 < ray.now_s - begun_s < 15
    assert outcome.workers == 3
    assert len(on_ray.started) == 3
    assert done(on_ray, asked).value == outcome.value


def test_a_run_waits_for_its_first_worker_as_long_as_the_key_says(make_ray: Make) -> None:
    for wait_s, gives_up in ((100.0, False), (50.0, True)):
        ray = make_ray(here=1)
        ray.start_s = 70.0
        if gives_up:
            with pytest.raises(ResourceError, match=r"For 50\.?\d* s no worker has started: each needs 1 CPU"):
                started(ray, wait_s=wait_s)
            assert ray.now_s < 52
        else:
            done(started(ray, wait_s=wait_s), job("a b"))


def test_runs_are_divided_by_the_workers_that_were_asked_for(make_ray: Make) -> None:
    ray = make_ray(here=1, there=1)
    ray.taken = {"there"}
    assert shared(ray).workers == 2


# Chunks and nodes that fail


def test_a_chunk_that_is_lost_more_often_than_its_budget_ends_the_run(
    make_ray: Make, caplog: pytest.LogCaptureFixture
) -> None:
    ray = make_ray(here=2)
    on_ray = started(ray)

    def kill(worker: int, unit: Any) -> float:
        if unit == "bad":
            ray.after(0.5, ray.processes[worker].die)
        return 1.0

    ray.seconds = kill
    with pytest.raises(WorkerLostError, match="giving up after 3 of 3 retries"):
        done(on_ray, job("a b bad c"))
    # The error says it, and no warning before it.
    assert "retry 3 of 3" in caplog.text
    assert "giving up" not in caplog.text


def test_a_chunk_that_went_with_its_worker_may_run_out_of_memory_once(make_ray: Make) -> None:
    ray = make_ray(here=1)
    on_ray = started(ray)
    ray.seconds = out_of_memory_at(2)
    ray.after(1, lambda: ray.processes[0].die())
    assert done(on_ray, job("a")).retries == 2


def test_a_job_may_come_while_no_worker_is_known_to_be_there(make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = started(ray)
    slow = {"a": 2.0, "d": 5.0}
    ray.seconds = lambda worker, unit: slow.get(unit, 0.5)
    # One worker dies; when the first job is whole, the other has yet to say that it did not go with the node.
    ray.after(1.0, lambda: ray.processes[1].die())
    first, second = on_ray.submit(job("a b")), on_ray.submit(job("c d"))
    outcome = on_ray.result(first)
    assert (outcome.value, outcome.workers) == (whole(["a", "b"]), 1)
    done(on_ray, job("e f"))
    assert on_ray.result(second).value == whole(["c", "d"])


@pytest.mark.parametrize(("takes_s", "is_slow"), [(200.0, True), (400.0, False)])
def test_workers_in_the_place_of_lost_ones_have_minutes_to_start(takes_s: float, is_slow: bool, make_ray: Make) -> None:
    ray = make_ray(here=1)
    on_ray = started(ray)
    ray.start_s = takes_s
    ray.after(1, lambda: ray.processes[0].die())
    if is_slow:
        assert done(on_ray, job("a")).retries == 1
    else:
        with pytest.raises(
            ResourceError, match=r"All workers were lost, and for 30[01] s no other started: each needs 1 CPU"
        ):
            done(on_ray, job("a"))
        assert ray.now_s < 310


def test_a_run_gives_up_where_others_hold_the_room(make_ray: Make) -> None:
    ray = make_ray(here=1, there=1)
    on_ray = started(ray, wait_s=60)
    ray.room["elsewhere"] = 4

    def take() -> None:
        ray.taken = set(ray.room)
        for process in list(ray.processes):
            process.die()

    ray.after(1, take)
    with pytest.raises(ResourceError, match=r"for 6[01] s no other started: .* 0 CPU free\. Other jobs"):
        done(on_ray, job("a"))


# Memory


@pytest.mark.parametrize("when", [1, 2, 3, 4])
def test_sums_that_are_handed_over_after_memory_ran_out_count(when: int, make_ray: Make) -> None:
    ray = make_ray(here=1)
    on_ray = started(ray)
    ray.seconds = out_of_memory_at(when)
    assert done(on_ray, job("a b c")).retries == (when <= 3)
    ray.seconds = out_of_memory_at(when)
    done(on_ray, job("d e"))


def test_a_chunk_that_runs_out_of_memory_twice_ends_the_run(make_ray: Make) -> None:
    ray = make_ray(here=1)
    on_ray = started(ray)
    ray.seconds = out_of_memory_at(1, 2)
    with pytest.raises(ResourceError, match="giving up after 1 of 1 retries"):
        done(on_ray, job("a"))


# Late workers


def test_a_hang_in_the_first_round_is_seen(make_ray: Make) -> None:
    ray = make_ray(here=4)
    on_ray = started(ray)
    ray.seconds = lambda worker, unit: 1e9 if worker == 0 else 1.0
    done(on_ray, job(named("u", 4)))
    assert ray.now_s < 30


def test_units_that_wait_behind_one_that_hangs_keep_their_retry(
    make_ray: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "is_slow", lambda running_s, expected_s: False)
    ray = make_ray(here=3)
    on_ray = started(ray)
    done(on_ray, job(named("z", 3)))
    # Workers 0 and 1 hang, the second a second later: it has just been given what the first had. Worker 2 is slow.
    ray.seconds = lambda worker, unit: {0: 1e9, 1: 1.0 if unit == "u2" else 1e9, 2: 50.0}.get(worker, 1.0)
    assert done(on_ray, job(named("u", 6))).retries == 2


def test_units_given_to_a_late_worker_after_it_was_copied_are_not_lost(make_ray: Make) -> None:
    ray = make_ray(here=2, there=1)
    on_ray = started(ray)
    done(on_ray, job("a0 b0 c0"))
    start_s = ray.now_s
    late = {(0, "a1"): 50.0, (1, "a1"): 3.0, (2, "c1"): 8.0}
    ray.seconds = lambda worker, unit: late.get((worker, unit), 1.0)
    # Worker 1 copies what worker 0 is late with; then worker 2 goes with its node, and its unit to the late worker.
    ray.after(7.0, lambda: ray.lose_node("there"))
    done(on_ray, job("a1 b1 c1"))
    assert ray.now_s - start_s < 30


def test_what_a_copier_that_dies_was_doing_is_copied_again(make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = started(ray)
    done(on_ray, job("a0 b0"))
    start_s = ray.now_s
    ray.seconds = lambda worker, unit: 55.0 if (worker, unit) == (0, "a1") else 3.0 if unit == "a1" else 1.0
    ray.after(7.0, lambda: ray.processes[1].die())
    done(on_ray, job("a1 b1"))
    assert ray.now_s - start_s < 15


def test_sums_that_a_late_worker_combines_for_its_node_are_not_counted_twice(make_ray: Make) -> None:
    ray = make_ray(here=1, there=2)
    on_ray = started(ray)
    done(on_ray, job(named("z", 3)))
    on_there = [process.number for process in ray.processes if process.node == "there"]
    ray.seconds = lambda worker, unit: 30.0 if unit[0] == "b" and worker == on_there[0] else 1.0
    # What the node has of the first job waits behind a unit of the second that takes long.
    first, second = on_ray.submit(job("a0 a1 a2", LARGE)), on_ray.submit(job("b0 b1 b2", LARGE))
    assert on_ray.result(first).value == whole(["a0", "a1", "a2"])
    assert on_ray.result(second).value == whole(["b0", "b1", "b2"])


def test_a_phase_that_takes_longer_than_the_one_before_is_not_late(make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = started(ray)
    ray.seconds = lambda worker, unit: 1.0 if unit[0] == "g" else 70.0
    for _ in range(2):
        done(on_ray, job(named("g", 8), phase=0))
        assert not done(on_ray, job(named("t", 8), phase=1)).retries


# Kept updates


@pytest.mark.parametrize("shards", [1, 2, 4, 8, 16])
def test_the_workers_go_on_where_updates_were_lost_with_several_shards_each(shards: int, make_ray: Make) -> None:
    ray = make_ray(here=4, there=2)
    on_ray = started(ray)
    kept = done(on_ray, job(named("u", 12), shards=shards)).kept
    ray.lose_node("there")
    with pytest.raises(UpdatesLost):
        on_ray.result(on_ray.submit(look(kept)))
    outcome = done(on_ray, job(named("v", 12), shards=shards))
    assert outcome.workers == 4
    assert on_ray.result(on_ray.submit(look(outcome.kept))).value == whole([f"{list(range(12))}"] * shards)


def look(kept: Any, model: Tensor = SMALL) -> Job:
    """A second look at updates that a job kept."""
    broadcast: Any = Model(1, model)
    return Job("gram", broadcast, tuple(kept), [1.0] * len(kept))


def test_updates_that_went_with_the_sums_of_a_node_are_made_again_with_them(make_ray: Make) -> None:
    ray = make_ray(here=2, there=2)
    on_ray = started(ray)
    slow = {process.number for process in ray.processes if process.node == "here"}
    ray.seconds = lambda worker, unit: 2.0 if worker in slow else 0.5
    ray.combine_s = 5.0
    ray.after(1.5, lambda: ray.lose_node("there"))
    outcome = done(on_ray, job(named("u", 8), LARGE, shards=2))
    assert outcome.retries
    assert on_ray.result(on_ray.submit(look(outcome.kept))).value == whole([f"{list(range(8))}"] * 2)


def test_updates_may_be_lost_while_a_node_adds_up_its_sums(make_ray: Make) -> None:
    ray = make_ray(here=2, there=2, yonder=2)
    on_ray = started(ray)
    kept = done(on_ray, job(named("u", 12), shards=12)).kept
    slow = {process.number for process in ray.processes if process.node == "here"}
    ray.seconds = lambda worker, unit: 2.0 if worker in slow else 0.5
    ray.combine_s = 5.0
    ray.after(1.5, lambda: ray.lose_node("yonder"))
    with pytest.raises(UpdatesLost):
        on_ray.result(on_ray.submit(look(kept, LARGE)))
    done(on_ray, job(named("v", 24), LARGE))


# Segments of several runs


def shared(ray: SimulatedRay) -> SharedOnRay:
    return SharedOnRay(Placement(workers=sum(ray.room.values()), cpus=1, gpus=0), logging.WARNING)


def segment(*runs: int, start: int = 0) -> Job:
    """A segment of runs, all from that round."""
    plans: Any = dict.fromkeys(runs)
    state: Any = From(start)
    return job_of(plans, [state] * len(runs), set(runs))


@dataclass(frozen=True)
class From:
    """A state of a run."""

    round: int


def advanced(on_ray: SharedOnRay, ticket: int) -> list[str]:
    value = on_ray.result(ticket).value
    assert isinstance(value, list)
    return value


def test_a_segment_that_hangs_is_carried_out_again_elsewhere(make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = shared(ray)
    came: list[tuple[int, ...]] = []

    def seconds(worker: int, unit: Any) -> float:
        came.append((worker, *unit.plans))
        # The first worker never ends what it is given second; nothing else takes as long.
        return 1e9 if worker == 0 and len(came) > 2 else 2.0

    ray.seconds = seconds
    for ticket in [on_ray.submit(segment(0, 1)), on_ray.submit(segment(2))]:
        on_ray.result(ticket)
    hangs, other = on_ray.submit(segment(0, 1, start=5)), on_ray.submit(segment(2, start=5))
    assert on_ray.first([hangs, other]) == other
    assert advanced(on_ray, other) == ["2 from From(round=5)"]
    start_s = ray.now_s
    outcome = on_ray.result(hangs)
    assert outcome.value == ["0 from From(round=5)", "1 from From(round=5)"]
    assert outcome.retries == 1
    assert 55 < ray.now_s - start_s < 65
    assert came == [(0, 0, 1), (1, 2), (0, 0, 1), (1, 2), (1, 0, 1)]
    # The one that hung was replaced.
    ray.let_pass(5)
    on_ray.result(on_ray.submit(segment(2, start=6)))
    assert on_ray.workers == 2


def test_a_run_that_hangs_wherever_it_goes_ends_and_the_others_go_on(make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = shared(ray)
    on_ray.result(on_ray.submit(segment(0, 1)))
    # Its runs were measured together, and have parted since.
    ray.seconds = lambda worker, unit: 1e9 if 1 in unit.plans else 1.0
    bad, good = on_ray.submit(segment(1)), on_ray.submit(segment(0))
    with pytest.raises(
        WorkerLostError, match=r"has not replied for \d+ s with a segment of 1 run from round 0: giving up after 1 of 1"
    ):
        on_ray.result(bad)
    assert advanced(on_ray, good) == ["0 from From(round=0)"]
    assert advanced(on_ray, on_ray.submit(segment(0, start=9))) == ["0 from From(round=9)"]


def test_a_long_segment_is_neither_late_nor_given_to_two(make_ray: Make) -> None:
    ray = make_ray(here=3)
    on_ray = shared(ray)
    came = []

    def seconds(worker: int, unit: Any) -> float:
        came.append(tuple(unit.plans))
        # A run whose rounds take minutes beside one whose segments are short.
        return 300.0 if 0 in unit.plans else 50.0 if len(came) > 3 else 0.1

    ray.seconds = seconds
    for start in range(2):
        tickets = [on_ray.submit(segment(run, start=start)) for run in range(2)]
        assert [on_ray.result(ticket).retries for ticket in tickets] == [0, 0]
    assert came == [(0,), (1,), (0,), (1,)]


def test_a_segment_goes_to_a_worker_that_had_its_runs_and_waits_behind_none(make_ray: Make) -> None:
    ray = make_ray(here=3)
    on_ray = shared(ray)
    came: list[tuple[int, ...]] = []

    def seconds(worker: int, unit: Any) -> float:
        came.append((worker, *unit.plans))
        return 1.0

    ray.seconds = seconds
    groups = [(0, 1), (2,), (3, 4, 5)]
    for ticket in [on_ray.submit(segment(*runs)) for runs in groups]:
        on_ray.result(ticket)
    start_s = ray.now_s
    for ticket in [on_ray.submit(segment(*runs)) for runs in ((3, 5), (2,), (0,))]:
        on_ray.result(ticket)
    assert came == [(0, 0, 1), (1, 2), (2, 3, 4, 5), (2, 3, 5), (1, 2), (0, 0)]
    assert ray.now_s - start_s < 1.5


@pytest.mark.parametrize(
    ("raised", "expected"), [(ClientError("mine"), "mine"), (torch.OutOfMemoryError(), "giving up after 1 of 1")]
)
def test_a_segment_that_fails_ends_no_other(raised: Exception, expected: str, make_ray: Make) -> None:
    ray = make_ray(here=2)
    on_ray = shared(ray)

    def seconds(worker: int, unit: Any) -> float:
        if 0 in unit.plans:
            raise raised
        return 3.0

    ray.seconds = seconds
    bad, good = on_ray.submit(segment(0)), on_ray.submit(segment(1))
    assert on_ray.first([good, bad]) == bad
    with pytest.raises(RaysimError, match=expected):
        on_ray.result(bad)
    assert advanced(on_ray, good) == ["1 from From(round=0)"]
    for ticket in [on_ray.submit(segment(run)) for run in (1, 2, 3)]:
        on_ray.result(ticket)


def test_a_worker_that_starts_later_has_the_data_of_all_runs_before_its_first_segment(
    make_ray: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = make_ray(here=2)
    sent: list[Any] = []
    received: list[tuple[int, Any]] = []

    def send(data: Any, wait_s: float) -> Any:
        sent.append(data)
        return data

    monkeypatch.setattr(several, "send", send)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.sendable.checked", lambda plan: plan)
    monkeypatch.setattr(several, "send_plan", lambda plan, wait_s, data: (plan, data))
    monkeypatch.setattr(client_pool, "receive", lambda data: received.append((len(ray.processes), data.fingerprint)))
    on_ray = shared(ray)
    for fingerprint in ("a", "b", "a"):
        plan: Any = SimpleNamespace(dataset=SimpleNamespace(fingerprint=fingerprint))
        on_ray.send(plan)
    assert [data.fingerprint for data in sent] == ["a", "b"]
    assert not received
    ray.processes[0].die()
    on_ray.result(on_ray.submit(segment(0)))
    ray.let_pass(5)
    assert received == [(3, "a"), (3, "b")]


def test_segments_outlive_a_node_and_end_where_they_kill_every_worker(make_ray: Make) -> None:
    ray = make_ray(here=1, there=2)
    on_ray = shared(ray)
    ray.after(1.5, lambda: ray.lose_node("there"))
    ray.seconds = lambda worker, unit: 2.0
    tickets = [on_ray.submit(segment(run)) for run in range(3)]
    assert [advanced(on_ray, ticket) for ticket in tickets] == [[f"{run} from From(round=0)"] for run in range(3)]

    def kill(worker: int, unit: Any) -> float:
        if 7 in unit.plans:
            ray.after(0.5, ray.processes[worker].die)
        return 1.0

    ray.seconds = kill
    bad, good = on_ray.submit(segment(7)), on_ray.submit(segment(8))
    with pytest.raises(WorkerLostError, match="giving up after 3 of 3 retries"):
        on_ray.result(bad)
    assert advanced(on_ray, good) == ["8 from From(round=0)"]


# All of it, at random


@pytest.mark.parametrize("seed", range(200))
def test_whatever_happens_within_the_budgets_every_unit_counts_once(seed: int, make_ray: Make) -> None:
    draw = random.Random(seed)
    ray = make_ray(here=2, there=2, yonder=2)
    ray.taken = set(draw.sample(["here", "there", "yonder"], draw.choice([0, 0, 1, 2])))
    on_ray = started(ray)
    ray.after(WHILE_S * draw.random(), lambda: give_back(ray))
    mishaps = Mishaps(ray, draw)
    ray.seconds = mishaps.seconds
    model, shards = draw.choice([SMALL, LARGE]), draw.choice([0, 0, 3])
    num = draw.choice([3, 7, 12, 20])
    scored: tuple[int, Job] | None = None
    for index in range(5):
        asked = job(named(f"{index}.", num), model, shards=shards)
        ticket = on_ray.submit(asked)
        if scored is not None:
            assert on_ray.result(scored[0]).value == whole(scored[1].units)
        outcome = on_ray.result(ticket)
        assert outcome.value == whole(asked.units)
        assert outcome.workers
        while shards:
            try:
                looked = on_ray.result(on_ray.submit(look(outcome.kept, model)))
            except UpdatesLost:
                outcome = done(on_ray, asked)
            else:
                assert looked.value == whole([f"{list(range(num))}"] * shards)
                break
        evaluation = job(named(f"e{index}.", 7), model, kind="evaluate")
        scored = on_ray.submit(evaluation), evaluation
    assert scored is not None
    assert on_ray.result(scored[0]).value == whole(scored[1].units)
    assert ray.now_s < 400
    ray.let_pass(60)
    # Nothing of a job stays in a worker's memory.
    assert not any(process.holds for process in ray.processes)


WHILE_S = 10.0
"""About as long as the jobs take where nothing happens."""


class Mishaps:
    """As many as every budget allows, in the first seconds: workers and a node that die, late ones, one that
    hangs, and units that run out of memory once."""

    def __init__(self, ray: SimulatedRay, draw: random.Random) -> None:
        self._ray, self._draw = ray, draw
        self._late: dict[int, float] = {}
        self._tried: set[str] = set()
        self._share_out_of_memory = draw.choice([0.0, 0.0, 0.02])
        for _ in range(draw.choice([0, 1, 2])):
            self._once(lambda worker: ray.processes[worker].die())
        if draw.random() < 0.5:
            ray.after(WHILE_S * draw.random(), lambda: ray.lose_node(draw.choice(["there", "yonder"])))
        for _ in range(draw.choice([0, 2, 4])):
            self._once(lambda worker: self._late.update({worker: draw.choice([6.0, 8.0, 15.0, 40.0])}))
        if draw.random() < 0.3:
            self._once(lambda worker: self._late.update({worker: 1e9}))

    def _once(self, befalls: Callable[[int], None]) -> None:
        """Some worker, some time."""

        def happen() -> None:
            working = [process.number for process in self._ray.processes if process.works]
            if working:
                befalls(self._draw.choice(working))

        self._ray.after(WHILE_S * self._draw.random(), happen)

    def seconds(self, worker: int, unit: Any) -> float:
        name = unit if isinstance(unit, str) else f"shard {unit.start}"
        new = name not in self._tried
        self._tried.add(name)
        if new and self._draw.random() < self._share_out_of_memory:
            raise torch.OutOfMemoryError
        return 0.3 + zlib.crc32(name.encode()) % 100 / 200 + self._late.pop(worker, 0.0)
