"""One contract for every executor: the same values, the same bits, the same errors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from torch.nn import functional

import raysim
from raysim.engine.in_process import InProcess
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.executor import assigning, replies
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import loop
from raysim.run_folder import experiment_record, kept_checkpoints, round_table
from tests.support.executors import EXECUTORS, DiesOnce, bits, failing_loss, own_actors
from tests.support.nodes import until

Make = Callable[..., raysim.Experiment]


ON_RAY = [
    pytest.param(name, marks=[pytest.mark.ray] if section["workers"] else []) for name, section in EXECUTORS.items()
]


@pytest.fixture(params=ON_RAY)
def engine(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The engine section of each executor; Ray is started only for those that need it."""
    if request.param != "in-process":
        request.getfixturevalue("ray_cluster")
    return {**EXECUTORS[request.param], "chunk_size": 1}


@pytest.mark.parametrize("chunk_size", [1, 3, "auto"])
def test_the_same_experiment_gives_the_same_bits(
    chunk_size: int | str, engine: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    reference = raysim.rounds(experiment(engine={"workers": 0, "chunk_size": chunk_size}), dataset=dataset)
    got = raysim.rounds(experiment(engine={**engine, "chunk_size": chunk_size}), dataset=dataset)
    for expected, finished in zip(reference, got, strict=True):
        assert bits(finished) == bits(expected)


class OfSettingModule:
    """A loss whose module sets torch as it is imported, and so in every process that receives the loss."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        is_new = torch.get_default_dtype() == torch.float32 and torch.backends.mkldnn.enabled
        return functional.cross_entropy(outputs, targets, reduction="none") * (1 if is_new else 2)

    def __reduce__(self) -> tuple[Callable[[], OfSettingModule], tuple[()]]:
        return _imported, ()


def _imported() -> OfSettingModule:
    torch.set_default_dtype(torch.float64)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]
    return OfSettingModule()


def test_what_a_module_of_the_script_sets_as_it_is_imported_changes_no_bits(
    engine: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    parts: Any = {"dataset": dataset, "loss": OfSettingModule()}
    expected = [bits(each) for each in raysim.rounds(experiment(engine={"workers": 0, "chunk_size": 1}), **parts)]
    assert [bits(each) for each in raysim.rounds(experiment(engine=engine), **parts)] == expected


def test_whose_reports_count_is_the_same_wherever_they_are_trained(
    engine: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    systems = {
        "time": {"name": "straggler", "alpha": 0.1, "lambda": 1.0},
        "over_selection": 1.5,
        "deadline_s": 30.0,
        "session_s": {"name": "exponential", "mean": 60.0},
    }
    reference = raysim.rounds(experiment(engine={"workers": 0, "chunk_size": 1}, systems=systems), dataset=dataset)
    got = raysim.rounds(experiment(engine=engine, systems=systems), dataset=dataset)
    for expected, finished in zip(reference, got, strict=True):
        assert expected.metrics["clients"] != expected.metrics["asked"]
        assert bits(finished) == bits(expected)


@pytest.mark.usefixtures("ray_cluster")
def test_the_bits_do_not_depend_on_when_sums_are_handed_over(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = resolve(experiment(engine={"workers": 0, "chunk_size": 2}, cohort={"size": 15}), dataset=dataset)
    expected = [f.weights.params for f in loop.rounds(plan, InProcess(plan), plan.initial_state())]
    travelled = []
    for hold_s, call_s in ((0.0, 0.0), (1e9, 1e9)):  # after every call; at the end of the round only
        # The executor is made here, and not in a driver's process, so that its constants can be changed.
        monkeypatch.setattr(replies, "HOLD_S", hold_s)
        monkeypatch.setattr(replies, "HOLD_RECORDS", 0)
        monkeypatch.setattr(assigning, "WORTH_A_CALL_S", call_s)
        on_ray = OnRay(plan, Placement(workers=2, cpus=0.5, gpus=0.0))
        try:
            got = list(loop.rounds(plan, on_ray, plan.initial_state()))
        finally:
            on_ray.close()
        assert all(torch.equal(f.weights.params, params) for f, params in zip(got, expected, strict=True))
        travelled.append(got[-1].metrics["ray_bytes_up"] or 0)
    assert travelled[0] > travelled[1] > 0


def test_a_user_error_names_client_chunk_round_and_carries_its_traceback(
    engine: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    failing = experiment(
        engine=engine,
        client={"batch_size": "full"},
        cohort={"sampler": {"name": "replay", "cohorts": [["c1", "c2"], ["c3", "c0"], ["c1"], ["c1"]]}},
    )
    steps = raysim.rounds(failing, dataset=dataset, loss=failing_loss)
    next(steps)
    with pytest.raises(raysim.ClientError, match=r"client 'c0' failed in round 1, chunk 1") as caught:
        next(steps)
    assert "my own mistake" in str(caught.value)
    assert "in failing_loss" in str(caught.value)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != "zombie"
    except psutil.NoSuchProcess:
        return False


def test_leaving_the_loop_ends_the_workers(
    engine: dict[str, Any], dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    before, pools_before = ({p.pid for p in own_actors(kind)} for kind in ("", "ClientPool"))
    steps = raysim.rounds(experiment(engine=engine), dataset=dataset)
    next(steps)
    during = {p.pid for p in own_actors()} - before
    assert bool(during) == (engine["workers"] > 0)
    until(lambda: len({p.pid for p in own_actors("ClientPool")} - pools_before) == engine["workers"])
    steps.close()  # type: ignore[attr-defined]
    deadline = time.monotonic() + 240
    while any(map(is_alive, during)):
        assert time.monotonic() < deadline, "workers are still there 4 minutes after the loop was left"
        time.sleep(0.1)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("aggregator", ["mean", "median", "geometric_median"])
def test_a_worker_killed_in_mid_round_changes_no_bit(
    aggregator: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    cohorts = [["c1", "c2", "c3", "c4"], ["c5", "c0", "c6", "c7", "c8"], ["c1", "c9"], ["c2", "c0"]]
    settings: dict[str, Any] = {
        "client": {"batch_size": "full"},
        "cohort": {"sampler": {"name": "replay", "cohorts": cohorts}},
        "server": {"aggregator": {"name": aggregator}},
    }
    # A loss of one's own is not stacked, the task's own would be: the trainer is named, so that both have the same.
    undisturbed = experiment(**settings, engine={"workers": 0, "chunk_size": 1, "trainer": "one_by_one"})
    expected = [bits(r) for r in raysim.rounds(undisturbed, dataset=dataset)]

    steps = raysim.rounds(
        experiment(**settings, engine={"workers": 2, "cpus_per_worker": 0.5, "chunk_size": 1, "trainer": "one_by_one"}),
        dataset=dataset,
        loss=DiesOnce(tmp_path / "note", size=3),
    )
    got = list(steps)
    assert [bits(r) for r in got] == expected
    assert [r.metrics["retries"] for r in got] == [0, 1, 0, 0]


class DiesAlways:
    """A loss that ends its process on clients of three examples."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if len(targets) == 3 and outputs.requires_grad:
            os.kill(os.getpid(), signal.SIGKILL)
        return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.usefixtures("ray_cluster")
def test_a_client_that_kills_every_worker_ends_the_run_with_the_count(experiment: Make) -> None:
    from tests.support.small_data import make_clients

    data = raysim.FederatedDataset.from_clients(train=make_clients([5, 3]))
    deadly = experiment(
        engine={"workers": 1, "cpus_per_worker": 0.5}, cohort={"size": 2}, client={"batch_size": "full"}
    )
    with pytest.raises(raysim.WorkerLostError, match="giving up after 3 of 3 retries"):
        list(raysim.rounds(deadly, dataset=data, loss=DiesAlways()))


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"workers": 9}, "asks for 9 workers x 1 CPU, but Ray has 4 CPU"),
        ({"workers": 1, "gpus_per_worker": 0.25}, r"0\.25 GPU, but Ray has 4 CPU and 0 GPU"),
    ],
)
def test_more_than_ray_has_is_refused_with_both_numbers(
    asked: dict[str, Any], message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ResourceError, match=message):
        next(raysim.rounds(experiment(engine=asked), dataset=dataset))


@pytest.mark.parametrize(
    ("address", "environment", "named"),
    [
        ("127.0.0.1:1", {}, "'127.0.0.1:1' ("),
        ("auto", {"RAY_ADDRESS": "127.0.0.1:1"}, "'auto', 127.0.0.1:1 by RAY_ADDRESS ("),
    ],
)
def test_no_cluster_at_an_address_says_how_to_start_one(address: str, environment: dict[str, str], named: str) -> None:
    # In a process of its own, because this one may be connected to a cluster already.
    script = f"""
import raysim
data = {{"name": "digits", "clients": 4}}
exp = raysim.Experiment.model_validate({{"data": data, "model": {{"name": "linear"}}, "cohort": {{"size": 2}}}})
next(raysim.rounds(exp, address={address!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 1
    assert f"raysim.errors.ResourceError: No Ray cluster could be joined at address {named}" in done.stderr
    assert "ray start --head" in done.stderr


def test_the_local_executor_leaves_the_scripts_own_torch_as_it_was(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    torch.manual_seed(3)
    expected = torch.rand(4)
    threads = torch.get_num_threads()
    torch.manual_seed(3)
    for _ in raysim.rounds(experiment(), dataset=dataset):
        assert torch.get_num_threads() == threads
    assert torch.equal(torch.rand(4), expected)


class NotesHowFarAhead:
    """A loss that is called four times a round by the one worker, and notes each time how many rounds later that is
    than the newest one that the reader has asked for. `asked` is as long as rounds were asked for."""

    def __init__(self, asked: Path, notes: Path) -> None:
        self.asked, self.notes, self.reader = asked, notes, os.getpid()

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # The reader's own process tries it too, before the first round.
        if outputs.requires_grad and os.getpid() != self.reader:
            index = len(self.notes.read_text().splitlines()) // 4
            with self.notes.open("a") as notes:
                notes.write(f"{index - (self.asked.stat().st_size - 1)}\n")
        return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_is_never_more_than_one_round_ahead_of_its_reader(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    slow_reader = experiment(
        rounds=5,
        cohort={"sampler": {"name": "replay", "cohorts": [["c1", "c2", "c3", "c4"]] * 5}},
        client={"batch_size": "full"},
        # By autograd: no step is compared with another.
        engine={"workers": 1, "cpus_per_worker": 0.5, "chunk_size": 1, "trainer": "one_by_one"},
    )
    asked, notes = tmp_path / "asked", tmp_path / "notes"
    notes.touch()
    steps = raysim.rounds(slow_reader, dataset=dataset, loss=NotesHowFarAhead(asked, notes))
    for _ in range(5):
        with asked.open("a") as file:
            file.write(".")
        next(steps)
        time.sleep(0.5)  # enough for rounds that nobody has asked for, were any begun
    ahead = [int(line) for line in notes.read_text().splitlines()]
    assert len(ahead) == 5 * 4
    assert max(ahead) == 1


@pytest.mark.usefixtures("ray_cluster")
def test_a_reader_that_leaves_leaves_a_checkpoint(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    left = experiment(rounds=8, engine={"workers": 1, "cpus_per_worker": 0.5})
    for finished in raysim.rounds(left, dataset=dataset, path=tmp_path / "run"):
        if finished.index == 2:
            time.sleep(1)  # the round ahead has ended by now
            break
    state = kept_checkpoints.newest_state(tmp_path / "run", experiment_record.stored_owner(tmp_path / "run"))
    assert state is not None
    assert 3 <= state.round == round_table.read_rounds(tmp_path / "run").num_rows <= 4


class Slow:
    """A loss that takes its time, and notes each local step."""

    def __init__(self, notes: Path) -> None:
        self.notes = notes

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad:
            with self.notes.open("a") as notes:
                notes.write(".")
            time.sleep(0.3)
        return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.usefixtures("ray_cluster")
def test_a_reader_that_leaves_in_mid_round_does_not_have_it_finished(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    left = experiment(
        cohort={"size": len(dataset.train)},
        client={"batch_size": "full"},
        engine={"workers": 1, "cpus_per_worker": 0.5, "chunk_size": 1},
    )
    notes = tmp_path / "notes"
    steps = raysim.rounds(left, dataset=dataset, loss=Slow(notes))
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    # The second round was under way; of its chunks the worker may do those that it had been given.
    assert notes.stat().st_size < 1.5 * len(dataset.train)


class BadClient:
    """A loss that fails on evaluation clients of 7 examples."""

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if not outputs.requires_grad and (targets == 2).sum() >= 7 and (targets[-7:] == 2).all():
            raise RuntimeError("bad client")
        return functional.cross_entropy(outputs, targets, reduction="none")


def test_an_evaluation_names_the_client_whose_examples_failed(experiment: Make) -> None:
    from tests.support.small_data import make_clients

    x, _ = make_clients([7])["c0"]
    tests = make_clients([9, 8], prefix="good") | {"bad": (x, np.full(7, 2))}
    data = raysim.FederatedDataset.from_clients(train=make_clients([9]), test=tests)
    with pytest.raises(raysim.ClientError, match="Evaluating client 'bad' failed in round 1, slice 0"):
        list(raysim.rounds(experiment(cohort={"size": 1}), dataset=data, loss=BadClient()))


class OutOfMemory:
    """A loss that runs out of device memory: once, or whenever client "c0" (three examples) is trained."""

    def __init__(self, note: Path | None) -> None:
        self.note = note

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.requires_grad and len(targets) == 3 and (self.note is None or not self.note.exists()):
            if self.note is not None:
                self.note.touch()
            raise torch.OutOfMemoryError("CUDA out of memory")
        return functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_chunk_that_ran_out_of_memory_is_tried_once_more(
    workers: int, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    settings: dict[str, Any] = {
        "rounds": 2,
        "client": {"batch_size": "full"},
        "cohort": {"sampler": {"name": "replay", "cohorts": [["c1", "c0", "c2", "c3"]] * 2}},
    }
    here = experiment(**settings, engine={"workers": 0, "chunk_size": 1})
    there = experiment(**settings, engine={"workers": workers, "cpus_per_worker": 0.5, "chunk_size": 1})
    (tmp_path / "happened").touch()
    expected = [bits(r) for r in raysim.rounds(here, dataset=dataset, loss=OutOfMemory(tmp_path / "happened"))]
    got = list(raysim.rounds(there, dataset=dataset, loss=OutOfMemory(tmp_path / "note")))
    assert [bits(r) for r in got] == expected
    assert [r.metrics["retries"] for r in got] == [1, 0]
    with pytest.raises(
        raysim.DeviceMemoryError, match=r"chunk 1 of round 0.*giving up after 1 of 1 retries.*engine.chunk_size"
    ):
        list(raysim.rounds(there, dataset=dataset, loss=OutOfMemory(None)))
