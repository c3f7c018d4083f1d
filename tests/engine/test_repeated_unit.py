"""A pool carries one of its first units out again, and a run ends where that gives something else."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import raysim
from raysim.algorithm.broadcast import Broadcast
from raysim.client.local_training import ClientFailure
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker import repeated_unit
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool, PoolUnit
from raysim.engine.worker.repeated_unit import GaveOtherwise, RepeatedUnit, UnitWork, is_due
from raysim.errors import ModelError
from raysim.models.softmax import cross_entropy
from raysim.server.fairness.fairness import FairWeight
from raysim.server.manifest import StatePlace
from tests.support.executors import bits

Make = Callable[..., raysim.Experiment]


# The rule


def test_units_are_repeated_at_256_and_whenever_their_number_has_doubled() -> None:
    assert [count for count in range(1, 4096) if is_due(count)] == [256, 512, 1024, 2048]


def test_repetitions_are_at_most_four_in_a_thousand_units() -> None:
    repeated = 0
    for count in range(1, 10_000):
        repeated += is_due(count)
        assert repeated <= 0.004 * count


# A unit by itself


class Asked(NamedTuple):
    number: int
    size: int
    num_bytes: int


class Units:
    """Units whose results are the test's, and the differences that were told."""

    def __init__(self) -> None:
        self.done: list[int] = []
        self.told: list[GaveOtherwise[Asked]] = []
        self.repeated: RepeatedUnit[Asked] = RepeatedUnit()
        self.result: Callable[[int], object] = lambda index: index

    def carry_out(self, index: int, size: int = 1, num_bytes: int = 0) -> object:
        def carried_out(unit: Asked, states: object) -> object:
            self.done.append(unit.number)
            return self.result(unit.number)

        work = UnitWork(
            carried_out,
            lambda unit: unit.size,
            lambda unit: unit.num_bytes,
            lambda unit: unit,
            nullcontext,
            self.told.append,
        )
        return self.repeated.carry_out(work, Asked(index, size, num_bytes))


@pytest.fixture
def units(monkeypatch: pytest.MonkeyPatch) -> Units:
    """Repeated at 4, 8, 16, ..."""
    monkeypatch.setattr(repeated_unit, "FIRST", 4)
    return Units()


def test_the_first_unit_is_repeated_and_the_units_own_result_returned(units: Units) -> None:
    assert [units.carry_out(index) for index in range(9)] == list(range(9))
    assert units.done == [0, 1, 2, 3, 0, 4, 5, 6, 7, 0, 8]
    assert not units.told


def test_of_the_first_units_the_smallest_is_repeated(units: Units, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_unit, "CANDIDATES", 3)
    for index, size in enumerate([5, 2, 3, 1]):
        units.carry_out(index, size)
    assert units.done == [0, 1, 2, 3, 1]


def test_a_unit_without_examples_and_one_that_holds_too_much_are_not_repeated(units: Units) -> None:
    for index in range(4):
        units.carry_out(index, size=index % 2, num_bytes=(index % 2) * (repeated_unit.LARGEST + 1))
    assert units.done == [0, 1, 2, 3]


def test_a_difference_is_told_whenever_it_began(units: Units) -> None:
    for index in range(16):
        if index == 9:
            units.result = lambda index: -index - 1
        units.carry_out(index)
    assert units.told == [GaveOtherwise(Asked(0, 1, 0), 16, None)]


@pytest.mark.parametrize("is_raysims", [True, False])
def test_a_failure_of_the_repetition_is_told_as_one(is_raysims: bool, units: Units) -> None:
    failure = ModelError("other outputs") if is_raysims else ValueError("other numbers")

    def fails_again(index: int) -> object:
        if units.done.count(0) > 1:
            if is_raysims:
                raise failure
            raise ClientFailure(7) from failure
        return index

    units.result = fails_again
    assert [units.carry_out(index) for index in range(4)] == [0, 1, 2, 3]
    assert units.told == [GaveOtherwise(Asked(0, 1, 0), 4, failure)]


@pytest.mark.parametrize(
    "cause", [torch.OutOfMemoryError(), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
@pytest.mark.parametrize("of_a_client", [True, False])
def test_a_repetition_for_which_memory_is_lacking_is_left_out(
    cause: Exception, of_a_client: bool, units: Units
) -> None:
    def too_large_again(index: int) -> object:
        if units.done.count(0) > 1:
            if of_a_client:
                raise ClientFailure(7) from cause
            raise torch.OutOfMemoryError
        return index

    units.result = too_large_again
    assert [units.carry_out(index) for index in range(4)] == [0, 1, 2, 3]
    assert not units.told


def test_client_states_are_read_from_memory_and_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_unit, "FIRST", 2)
    told: list[GaveOtherwise[int]] = []
    repeated: RepeatedUnit[int] = RepeatedUnit()
    reads, writes, seen = [], [], []

    class Stored:
        def read(self, position: int) -> Tensor | None:
            reads.append(position)
            return torch.tensor([1.0, 2.0]) if position == 5 else None

        def write(self, row: int, state: Tensor) -> None:
            writes.append((row, state.tolist()))

    def carried_out(index: int, states: Any) -> None:
        state = states.read(5)
        seen.append((state.tolist(), states.read(6)))
        # In place: the repetition reads it as it was.
        states.write(0, state.mul_(2) + by[0])

    by = [0.0]
    for index in range(4):
        by[0] = float(index == 3)
        work = UnitWork(carried_out, lambda unit: 1, lambda unit: 0, lambda unit: unit, nullcontext, told.append)
        repeated.carry_out(work, index, Stored())
    # Of four units, and of the first again behind the second and the fourth.
    assert seen == [([1.0, 2.0], None)] * 6
    assert reads == [5, 6] * 4
    assert writes == [(0, [2.0, 4.0])] * 3 + [(0, [3.0, 5.0])]
    # Only what was written differs.
    assert told == [GaveOtherwise(0, 4, None)]


# In runs


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units are repeated at 8, 16, ... units."""
    monkeypatch.setattr(repeated_unit, "FIRST", 8)


class WarmsUp:
    """A loss that grows from its first gradients' 41st call on; in evaluation it stays."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += outputs.requires_grad
        return cross_entropy(outputs, targets) * (1 + min(1.0, max(0.0, (self.calls - 40) / 40)))


class CountsInItsClass(WarmsUp):
    """The same, whose calls are counted by the class."""

    of_all: ClassVar[list[int]] = [0]

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.of_all[0] += outputs.requires_grad
        return cross_entropy(outputs, targets) * (1.0 if self.of_all[0] < 150 else 2.0)


CALLS = [0]


def counts_globally(module: Any, x: Tensor, y: Tensor, at: raysim.ObjectiveAt) -> Tensor:
    CALLS[0] += 1
    return functional.cross_entropy(module(x), y, reduction="none") * (1.0 if CALLS[0] < 150 else 2.0)


class OnlyCounts(WarmsUp):
    """A loss that counts its calls, and does nothing with them."""

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return cross_entropy(outputs, targets)


class Sharpens:
    """A metric that grows with its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.calls += 1
        return (outputs.argmax(1) == targets).double() * (1.0 if self.calls < 12 else 0.5)


ENGINE = {"workers": 0, "chunk_size": 1, "trainer": "one_by_one"}


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize(
    ("passed", "named"),
    [
        ({"loss": WarmsUp()}, "loss="),
        ({"loss": CountsInItsClass()}, "loss="),
        ({"objective": counts_globally}, "objective="),
    ],
    ids=["loss", "class", "global"],
)
def test_a_part_that_changes_after_many_calls_ends_the_run(
    passed: dict[str, Any], named: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    CALLS[0] = CountsInItsClass.of_all[0] = 0
    exp = experiment(rounds=20, engine=ENGINE, evaluation={"every": 100})
    with pytest.raises(raysim.ClientError) as caught:
        list(raysim.rounds(exp, dataset=dataset, **passed))
    text = str(caught.value)
    assert re.match(r"Training the same client again \('c\d+'\) gave other numbers\. ", text)
    assert "The first time was round 0, chunk" in text
    assert f"this run has {named}. Compute what a part returns from its arguments alone" in text


@pytest.mark.usefixtures("soon")
def test_a_metric_that_changes_after_many_calls_ends_the_run(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = experiment(rounds=20, evaluation={"every": 1})
    named = r"'t0', 't1', 't2' and 1 more"
    with pytest.raises(
        raysim.ClientError, match=rf"^Evaluating the same clients again \({named}\) gave .* metrics=\. "
    ):
        list(raysim.rounds(exp, dataset=dataset, metrics={"sharp": Sharpens()}))


@pytest.mark.usefixtures("soon")
def test_an_error_of_the_second_time_says_that_the_first_had_none(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    is_late = False

    def fails_late(outputs: Tensor, targets: Tensor) -> Tensor:
        # Only client "c1" has five examples.
        if is_late and outputs.requires_grad and len(targets) == 5:
            raise KeyError("my own mistake")
        return cross_entropy(outputs, targets)

    cohorts = [[f"c{i}" for i in range(1, 8)], [f"c{i}" for i in range(8, 15)]]
    exp = experiment(
        rounds=2,
        engine=ENGINE,
        client={"batch_size": "full"},
        cohort={"sampler": {"name": "replay", "cohorts": cohorts}},
        evaluation={"every": 100},
    )
    steps = raysim.rounds(exp, dataset=dataset, loss=fails_late)
    next(steps)
    is_late = True
    with pytest.raises(raysim.ClientError) as caught:
        next(steps)
    text = str(caught.value)
    assert text.startswith(
        "Training the same client again ('c1') failed, as it had not the first time (KeyError('my own"
    )
    assert "The first time was round 0, chunk" in text
    assert "in fails_late" in text


def numbers(experiment: raysim.Experiment, dataset: raysim.FederatedDataset, **passed: Any) -> list[Any]:
    return [bits(each) for each in raysim.rounds(experiment, dataset=dataset, **passed)]


def test_a_run_has_the_same_numbers_and_trains_a_chunk_again(
    experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = experiment(engine=ENGINE, client={"batch_size": "full"})
    once, again = OnlyCounts(), OnlyCounts()
    expected = numbers(exp, dataset, loss=once)
    monkeypatch.setattr(repeated_unit, "FIRST", 8)
    assert numbers(exp, dataset, loss=again) == expected
    # 28 clients in four rounds: a client of one local step is trained again at 8 and at 16 chunks.
    assert again.calls == once.calls + 2


def test_a_pool_that_nobody_holds_is_gone_at_once(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(), dataset=dataset)
    pool = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory())
    pool.run("train", Broadcast(0, plan.initial, 0.1), 0, (1, 2, 3), None)
    pool.run("evaluate", Broadcast(0, plan.initial, 0.1), 0, ("test", ((0, 0, 25),)), None)
    known = weakref.ref(pool)
    gc.disable()
    try:
        # Its memory, which may be a card's, does not wait for a garbage collection.
        del pool
        assert known() is None
    finally:
        gc.enable()


def test_on_a_card_other_numbers_are_a_warning(
    experiment: Make, dataset: raysim.FederatedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    plan = resolve(experiment(), dataset=dataset)
    pool = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory())
    pool._device = torch.device("cuda")
    found = GaveOtherwise(PoolUnit(Broadcast(2, plan.initial, 0.1), 3, (1, 2, 4, 8, 16)), 256, None)
    with caplog.at_level("WARNING", "raysim"):
        pool._tell("train", found)
    assert caplog.messages == [
        "Training the same clients again ('c1', 'c2', 'c4' and 2 more) gave other numbers. The first time was round "
        "2, chunk 3, on a worker, the second after 256 chunks. So the run's numbers depend on what its workers did "
        "before, and a resumed run or another number of workers would give others. The run names no part of a script "
        "or a package: raysim or the machine may be at fault, please report it. On a card it may also be a kernel "
        "without a deterministic version."
    ]


def test_a_kept_chunk_holds_nothing_of_other_clients(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plan = resolve(experiment(), dataset=dataset)
    of_cohort = Broadcast(
        *(0, plan.initial, 0.1),
        repeats=dict.fromkeys(range(20), 2),
        fair_weights=dict.fromkeys(range(20), FairWeight(1.0)),
        places=dict.fromkeys(range(20), StatePlace(0, 0, 0)),
        configs=dict.fromkeys(range(20), 0),
        left_out=frozenset(range(4, 20)),
        elsewhere=frozenset(range(4, 20)),
    )
    pool = Pool(plan, torch.device("cpu"), "a worker", ExampleMemory())
    pool.run("train", of_cohort, 0, (1, 2, 3), None)
    pool.run("evaluate", of_cohort, 0, ("test", ((0, 0, 25),)), None)
    for repeated, clients in ((pool._trained_again, {1, 2, 3}), (pool._scored_again, set())):
        assert repeated._kept is not None
        kept = repeated._kept.unit.broadcast
        assert {*kept.repeats, *kept.fair_weights, *kept.places, *kept.configs} == clients
        assert not kept.left_out | kept.elsewhere


@contextmanager
def every_unit(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One of the first units is repeated behind each one."""
    with monkeypatch.context() as patch:
        patch.setattr(repeated_unit, "is_due", lambda count: True)
        yield


KEEPS = {"name": "scaffold"}


@pytest.mark.parametrize(
    "sections",
    [
        *(
            {"engine": {"workers": 0, "trainer": name}}
            for name in ("one_by_one", "recorded", "interpreted", "fused", "stacked")
        ),
        {"engine": {"workers": 0, "trainer": "compiled"}},
        {"client": {"batch_size": 4, "correction": KEEPS}},
        {"client": {"batch_size": 4, "correction": {"name": "mime"}}},
        {"client": {"batch_size": 4, "compression": {"name": "top_k", "fraction": 0.1}}},
        {"client": {"batch_size": 4, "personalisation": {"name": "apfl", "alpha": 0.3, "split": "train"}}},
        {"client": {"batch_size": 4, "personalisation": {"name": "clusters", "count": 2, "split": "train"}}},
        {"server": {"aggregator": {"name": "median"}}},
    ],
    ids=str,
)
def test_the_first_chunk_has_the_same_bits_behind_every_other(
    sections: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = experiment(**sections)
    expected = numbers(exp, dataset)
    with every_unit(monkeypatch):
        assert numbers(exp, dataset) == expected


def test_client_states_are_those_of_a_run_without_repetitions_and_are_read_again_after_it_went_on(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = experiment(client={"batch_size": 4, "correction": KEEPS}, engine=ENGINE, rounds=6)

    def states(name: str) -> dict[str, bytes]:
        raysim.run(exp.changed(["rounds=3"]), dataset=dataset, path=tmp_path / name, progress=False)
        raysim.resume(tmp_path / name, rounds=6, dataset=dataset, progress=False)
        return {file.name: file.read_bytes() for file in (tmp_path / name / "client_state").iterdir()}

    expected = states("without")
    with every_unit(monkeypatch):
        assert states("with") == expected
    assert expected


@pytest.mark.usefixtures("ray_cluster")
def test_a_loss_that_changes_on_workers_ends_the_run(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    engine = {**ENGINE, "workers": 2, "cpus_per_worker": 0.5}
    exp = experiment(rounds=60, cohort={"size": 20}, engine=engine, evaluation={"every": 100})
    with pytest.raises(
        raysim.ClientError, match=r"again \('c\d+'\) gave other numbers\. .* on worker \d .* this run has loss="
    ):
        list(raysim.rounds(exp, dataset=dataset, loss=WarmsUp()))
