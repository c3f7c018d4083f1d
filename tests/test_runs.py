"""Several runs on one set of workers: each has the numbers that it has alone."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import signal
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.engine import outlook
from raysim.engine.job import Job, RunStates
from raysim.engine.many.groups import group_runs
from raysim.engine.many.segment import Host, SegmentUnit, job_of
from raysim.engine.many.shared_executor import SharedInProcess
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.worker.lockstep_rule import lockstep_key
from raysim.engine.worker.pool import Pool
from raysim.report import groups
from raysim.report.runs import read_all
from raysim.run_folder import client_table, cost_columns, experiment_record, kept_checkpoints, round_table
from raysim.run_folder.writer import RunFolder
from tests.support.executors import own_actors
from tests.support.kernel import needs_kernel

Make = Callable[..., raysim.Experiment]

SCAFFOLD = {"optimizer": {"lr": 0.1}, "batch_size": 4, "correction": {"name": "scaffold"}}
MOMENTUM = {"optimizer": {"lr": 0.1, "momentum": 0.5}, "batch_size": 4, "max_grad_norm": 1.0}


def grid(experiment: Make, **sections: Any) -> list[raysim.Experiment]:
    """Three client rates and two servers, for two seeds."""
    base = experiment(**sections)
    adam = 'server={optimizer={name="adam",lr=0.1},clip={fixed=0.5}}'
    servers = ("server.optimizer.lr=0.5", "server.optimizer.lr=0.9" if "client" in sections else adam)
    return [
        base.changed([f"seed={seed}", f"client.optimizer.lr={lr}", server, f"name=r-{seed}-{lr}-{i}"])
        for seed, lr, (i, server) in product((0, 1), (0.05, 0.1, 0.3), enumerate(servers))
    ]


def carry_out(experiments: Sequence[raysim.Experiment], folder: Path, **how: Any) -> dict[str, list[dict[str, Any]]]:
    """Rows by name, as the reports told them."""
    resume = how.pop("resume", False)
    told: dict[str, list[dict[str, Any]]] = {}
    with raysim.Runs(experiments[0], **how) as runs:
        numbers = runs.start([(e, folder / e.name) for e in experiments], resume=resume)
        names = dict(zip(numbers, (e.name for e in experiments), strict=True))
        for report in runs.reports():
            assert report.error is None
            told.setdefault(names[report.run], []).extend(dict(row) for row in report.rows)
    return told


def figures(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """All that is on record but what it cost."""
    rows = round_table.read_rounds(path).to_pylist()
    return (
        [{name: value for name, value in row.items() if not cost_columns.tells_cost(name)} for row in rows],
        client_table.read_clients(path).to_pylist(),
    )


def state(path: Path) -> torch.Tensor:
    newest = kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))
    assert newest is not None
    return newest.weights.params


@pytest.mark.parametrize("together", [True, False], ids=["together", "apart"])
@pytest.mark.parametrize("client", [None, MOMENTUM, SCAFFOLD], ids=["sgd", "momentum", "scaffold"])
def test_a_run_among_others_is_the_run_alone(
    client: dict[str, Any] | None, together: bool, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    wanted = grid(experiment, **({} if client is None else {"client": client}))
    told = carry_out(wanted, tmp_path / "all", dataset=dataset, together=together)
    for own in wanted:
        raysim.run(own, dataset=dataset, path=tmp_path / "alone" / own.name)
        alone, among = tmp_path / "alone" / own.name, tmp_path / "all" / own.name
        # Momentum's rate is not part of the product that makes the gradient: it agrees to rounding.
        if client is MOMENTUM and together:
            torch.testing.assert_close(state(among), state(alone), rtol=1e-5, atol=1e-6)
        else:
            assert figures(among) == figures(alone)
            assert torch.equal(state(among), state(alone))
        assert [row["round"] for row in told[own.name]] == [0, 1, 2, 3]
        assert told[own.name][-1]["eval/test/accuracy"] == figures(among)[0][-1]["eval/test/accuracy"]


class OnRay(SharedInProcess):
    """Stands in for workers of Ray: two that carry out segments in this process, which it counts."""

    workers = 2

    def __init__(self) -> None:
        super().__init__()
        self.segments, self.closed = 0, False
        self.log_levels: list[int] = []
        self.sent: list[Callable[[], Plan]] = []

    def started(self, placement: None, log_level: int) -> OnRay:
        self.log_levels.append(log_level)
        return self

    def send(self, plan: Plan) -> Callable[[], Plan]:
        self.sent.append(super().send(plan))
        return self.sent[-1]

    def submit(self, job: Job) -> int:
        (unit,) = job.units
        assert isinstance(unit, SegmentUnit)
        assert all(plan in self.sent for plan in unit.plans.values())
        self.segments += 1
        return super().submit(job)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def on_ray(monkeypatch: pytest.MonkeyPatch) -> OnRay:
    """What runs move to in this process, which has two cores and seems not connected to Ray; a start costs nothing."""
    made = OnRay()
    monkeypatch.setattr("raysim.engine.on_ray.executor.shared_on_ray.SharedOnRay", made.started)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.cluster.connected", nullcontext)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.cluster.place", lambda engine: None)
    monkeypatch.setattr("raysim.api.shared_workers.begins", lambda *asked: "here at first")
    monkeypatch.setattr("raysim.api.shared_workers.workers_here", lambda cpus: 2)
    monkeypatch.setattr(outlook, "SURE_S", 0.0)
    monkeypatch.setattr(outlook, "START_S", 0.0)
    return made


@pytest.mark.parametrize("why", ["worth it", "not worth it", "cannot be sent"])
def test_runs_that_move_to_workers_on_the_way_have_the_same_numbers(
    why: str,
    on_ray: OnRay,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if why == "not worth it":
        monkeypatch.setattr(outlook, "START_S", 1000.0)
    monkeypatch.setattr("raysim.api.shared_workers.can_be_sent", lambda plan: why != "cannot be sent")
    wanted = grid(experiment, client=SCAFFOLD)[:4]
    with monkeypatch.context() as patched:
        patched.setattr("raysim.api.shared_workers.begins", lambda *asked: "here")
        told = carry_out(wanted, tmp_path / "here", dataset=dataset)
    moved = carry_out(wanted, tmp_path / "moved", dataset=dataset)
    assert {name: [row["loss"] for row in rows] for name, rows in moved.items()} == {
        name: [row["loss"] for row in rows] for name, rows in told.items()
    }
    assert (on_ray.segments > 0) == on_ray.closed == (why == "worth it")
    for own in wanted:
        assert figures(tmp_path / "moved" / own.name) == figures(tmp_path / "here" / own.name)
        assert torch.equal(state(tmp_path / "moved" / own.name), state(tmp_path / "here" / own.name))


def test_runs_that_a_script_expects_count_before_they_are_added(
    on_ray: OnRay, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nothing that is known here takes so long.
    monkeypatch.setattr(outlook, "START_S", 1000.0)
    own = experiment(rounds=4, evaluation={"every": 1})
    logging.getLogger("raysim").setLevel(logging.CRITICAL)
    with raysim.Runs(own, dataset=dataset) as runs:
        logging.getLogger("raysim").setLevel(logging.NOTSET)
        # As many as there will be, before any has started.
        assert runs.workers == 2
        for expected in (0, 10**9):
            runs.expect(expected)
            runs.start([(own, tmp_path / str(expected))])
            assert [report.error for report in runs.reports()] == [None] * 4
            assert (on_ray.segments > 0) == (expected > 0)
        assert runs.workers == 2
    # Not the level of the moment when they start, which is any.
    assert on_ray.log_levels == [logging.CRITICAL]


@pytest.mark.usefixtures("ray_cluster")
def test_on_ray_it_is_the_same_with_a_worker_killed_on_the_way(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    engine = {"workers": 2, "cpus_per_worker": 0.5}
    wanted = [*grid(experiment, engine=engine), *grid(experiment, engine=engine, client=SCAFFOLD)[:2]]
    wanted = [own.model_copy(update={"name": f"run-{i}", "rounds": 12}) for i, own in enumerate(wanted)]
    killed = False
    with raysim.Runs(wanted[0], dataset=dataset) as runs:
        runs.start([(own, tmp_path / "ray" / own.name) for own in wanted])
        assert runs.workers == 2
        for report in runs.reports():
            assert report.error is None
            if not killed:
                os.kill(own_actors("ClientPool")[0].pid, signal.SIGKILL)
                killed = True
    for own in wanted:
        raysim.run(own, dataset=dataset, executor="local", path=tmp_path / "alone" / own.name)
        assert figures(tmp_path / "ray" / own.name) == figures(tmp_path / "alone" / own.name)


def test_what_was_left_goes_on_to_the_same_end(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    wanted = [*grid(experiment), *grid(experiment, client=SCAFFOLD)[:1]]
    wanted = [own.model_copy(update={"name": f"run-{i}", "rounds": 9}) for i, own in enumerate(wanted)]
    with raysim.Runs(wanted[0], dataset=dataset) as runs:
        runs.start([(own, tmp_path / "left" / own.name) for own in wanted])
        for report, _ in zip(runs.reports(), range(20), strict=False):
            assert not report.finished
    told = carry_out(wanted, tmp_path / "left", dataset=dataset, resume=True)
    carry_out(wanted, tmp_path / "whole", dataset=dataset)
    for own in wanted:
        assert [row["round"] for row in told[own.name]] == list(range(9)), "rows on record are told too"
        assert figures(tmp_path / "left" / own.name) == figures(tmp_path / "whole" / own.name)
    again = carry_out(wanted, tmp_path / "left", dataset=dataset, resume=True)
    assert {name: len(rows) for name, rows in again.items()} == {own.name: 9 for own in wanted}


def test_a_study_that_is_killed_finds_what_clients_remembered(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    often = {"evaluation": {"every": 2}, "checkpoint": {"every": 6, "keep": 1}}
    wanted = experiment(name="own", rounds=14, client=SCAFFOLD, **often)
    with raysim.Runs(wanted, dataset=dataset) as runs:
        runs.start([(wanted, tmp_path / "own")])
        for report in runs.reports():
            if report.rows[-1]["round"] == 9:
                # As the disk would be found after a kill: with the checkpoint of round 6 and what it names. A writer's
                # thread may still be busy with these rows, and a copy that is not of one moment is not such a disk.
                runs._records.wait(report.run)
                shutil.copytree(tmp_path / "own", tmp_path / "killed")
    (stored,) = (tmp_path / "killed" / "checkpoints").iterdir()
    assert stored.stem == "round-000006"
    carry_out([wanted.model_copy(update={"name": "killed"})], tmp_path, dataset=dataset, resume=True)
    assert figures(tmp_path / "killed") == figures(tmp_path / "own")


def test_rounds_that_could_not_be_recorded_are_not_in_a_checkpoint(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = {"broken": False}
    add = RunFolder.add

    def fails_once(folder: RunFolder, row: Any, *rest: Any) -> None:
        if row["round"] == 5 and folder.path.name == "broken" and not full["broken"]:
            full["broken"] = True
            raise OSError("no space left on device")
        add(folder, row, *rest)

    monkeypatch.setattr(RunFolder, "add", fails_once)
    wanted = [experiment(name=name, rounds=9, client=SCAFFOLD) for name in ("broken", "fine")]
    with pytest.raises(OSError, match="no space"):
        carry_out(wanted, tmp_path, dataset=dataset)
    assert [newest_round(tmp_path / own.name) for own in wanted] == [4, 6]
    carry_out(wanted, tmp_path, dataset=dataset, resume=True)
    assert figures(tmp_path / "broken") == figures(tmp_path / "fine")


def newest_round(path: Path) -> int:
    newest = kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))
    assert newest is not None
    return newest.round


def test_a_run_that_is_stopped_is_heard_of_no_more_and_can_be_resumed(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    wanted = grid(experiment)[:3]
    heard = []
    with raysim.Runs(wanted[0], dataset=dataset) as runs:
        numbers = runs.start([(own, tmp_path / own.name) for own in wanted])
        for report in runs.reports():
            heard.append(report.run)
            if report.run == numbers[1]:
                runs.stop(report.run)
    assert [heard.count(number) for number in numbers] == [2, 1, 2]
    with raysim.Runs(wanted[0], dataset=dataset) as runs:
        first, second, third = runs.start([(own, tmp_path / "again" / own.name) for own in wanted])
        others = []
        for report in runs.reports():
            runs.stop(second)
            others.append(report.run)
    assert others == [first, third, first, third], "what was to be said of it is not said"
    stopped = tmp_path / wanted[1].name
    assert round_table.read_rounds(stopped).num_rows == 2
    result = raysim.resume(stopped, dataset=dataset)
    raysim.run(wanted[1], dataset=dataset, path=tmp_path / "whole")
    assert result.rounds.num_rows == 4
    assert figures(stopped) == figures(tmp_path / "whole")


def test_a_run_that_fails_says_so_and_the_others_go_on(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if outputs.abs().max() > 1e4:
            raise ArithmeticError("too large")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    wanted = [experiment(name=f"lr-{lr}", client={"optimizer": {"lr": lr}, "batch_size": 4}) for lr in (0.1, 1e6, 0.2)]
    with raysim.Runs(wanted[0], dataset=dataset, loss=loss) as runs:
        numbers = runs.start([(own, tmp_path / own.name) for own in wanted])
        reports = list(runs.reports())
    failed = [report for report in reports if report.error is not None]
    assert [report.run for report in failed] == [numbers[1]]
    assert "too large" in str(failed[0].error)
    assert {report.run for report in reports if report.finished} == {numbers[0], numbers[2]}


def test_runs_for_which_memory_does_not_suffice_together_go_on_one_by_one(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def too_large(pool: Pool, pools: Sequence[Pool], *rest: Any) -> None:
        tried.append(len(pools))
        raise torch.OutOfMemoryError

    monkeypatch.setattr(Pool, "train_with", too_large)
    wanted = [experiment(name=f"lr-{lr}", client={"optimizer": {"lr": lr}, "batch_size": 4}) for lr in (0.1, 0.2, 0.3)]
    carry_out(wanted, tmp_path / "all", dataset=dataset)
    assert tried == [3, 3]
    for own in wanted:
        raysim.run(own, dataset=dataset, path=tmp_path / "alone" / own.name)
        assert figures(tmp_path / "all" / own.name) == figures(tmp_path / "alone" / own.name)


@pytest.mark.parametrize("times", [1, 2])
def test_a_segment_for_which_memory_did_not_suffice_is_tried_once_more(
    times: int, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance = Host.advance
    failed: list[Any] = []

    def too_large(host: Host, *asked: Any) -> Any:
        advanced = advance(host, *asked)
        if len(failed) < times:
            failed.append(advanced)
            raise torch.OutOfMemoryError
        return advanced

    monkeypatch.setattr(Host, "advance", too_large)
    own = experiment(name="own", client=SCAFFOLD)
    with raysim.Runs(own, dataset=dataset) as runs:
        runs.start([(own, tmp_path / "own")])
        errors = [str(report.error) for report in runs.reports() if report.error]
    if times == 2:
        assert "ran out of device memory on a segment: giving up after 1 of 1 retries" in errors[0]
        return
    assert not errors
    raysim.run(own, dataset=dataset, path=tmp_path / "alone")
    assert figures(tmp_path / "own") == figures(tmp_path / "alone")


def test_a_host_lets_go_of_runs_that_have_ended(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    host = Host("here")

    def carry_out_one(number: int, under_way: set[int]) -> weakref.ref[Plan]:
        plan = resolve(experiment(), dataset=dataset)
        plans, state = [plan], plan.initial_state()
        for finished in (2, 4):
            # Asked for its plan once only.
            job = job_of({number: plans.pop}, [state], under_way)
            (unit,) = job.units
            assert isinstance(job.broadcast, RunStates)
            assert isinstance(unit, SegmentUnit)
            ((state, _),) = [(own.state, own.rounds) for own in host.advance(job.broadcast, unit)]
            assert state.round == finished
        return weakref.ref(plan)

    first, second = carry_out_one(0, {0, 1}), carry_out_one(1, {0, 1})
    gc.collect()
    assert first() is not None
    third = carry_out_one(2, {1, 2})
    gc.collect()
    assert first() is None
    assert second() is not None
    assert third() is not None


def test_runs_that_cannot_begin_leave_nothing_behind(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    fine = experiment(name="fine")
    with raysim.Runs(fine, dataset=dataset) as runs:
        with pytest.raises(raysim.ExperimentError, match="asks for 2 trials"):
            runs.start([(fine, tmp_path / "fine"), (experiment(trials=2), tmp_path / "two")])
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "notes").touch()
        with pytest.raises(raysim.RunFolderError, match="exists already"):
            runs.start([(fine, tmp_path / "fine"), (fine, tmp_path / "full")])
        with pytest.raises(raysim.RunFolderError, match="a folder of its own"):
            runs.start([(fine, tmp_path / "fine"), (fine, tmp_path / "x" / ".." / "fine")])
        assert list(runs.reports()) == []
    assert not (tmp_path / "fine").exists()


def test_mates_differ_in_rates_and_servers_only(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def key(**sections: Any) -> Any:
        return lockstep_key(resolve(experiment(**sections), dataset=dataset))

    sgd = {"optimizer": {"lr": 0.3}, "batch_size": 4}
    assert key() == key(client={**sgd, "optimizer": {"lr": 0.1}})
    assert key() == key(server={"optimizer": {"name": "adam", "lr": 0.1}, "glad": {}})
    assert key() == key(name="other", rounds=9)
    assert key() != key(seed=1)
    assert key() != key(client={**sgd, "epochs": 2})
    assert key() != key(cohort={"size": 6})
    timed = {"time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}}
    assert key(systems=timed) == key(systems=timed, server={"optimizer": {"lr": 0.5}})
    assert key(systems=timed) != key(systems={**timed, "deadline_s": 9.0}), "other clients count"
    assert key() == key(model={"name": "mlp", "hidden": [8], "seed": 5}), "weights are sent, whoever drew them"
    assert key() != key(model={"name": "mlp", "hidden": [8], "activation": "tanh"}), "laid out alike, but not alike"
    assert key() != key(client={**sgd, "correction": {"name": "prox", "mu": 0.1}})
    for alone in (
        {"client": SCAFFOLD},
        {"engine": {"workers": 0, "trainer": "one_by_one"}},
        {"server": {"aggregator": {"name": "median"}}},
        {"cohort": {"size": 6, "sampler": {"name": "adafl"}}},
        {"fedex": {"split": "train", "configs": [{}, {"optimizer.lr": 0.5}]}},
    ):
        assert key(**alone) is None


def test_mates_with_the_same_bits_everywhere_are_those_of_the_kernel(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    needs_kernel()

    def key(trainer: str, **sections: Any) -> Any:
        engine = {"workers": 0, "trainer": trainer}
        return lockstep_key(resolve(experiment(engine=engine, **sections), dataset=dataset), exact=True)

    assert key("compiled") == key("compiled", server={"optimizer": {"lr": 0.5}}) is not None
    assert key("stacked") is None
    assert key("compiled", client=MOMENTUM) is None


def test_groups_keep_every_worker_busy() -> None:
    alike = [(i, "same") for i in range(10)]
    assert group_runs(alike, 1) == [tuple(range(10))]
    assert group_runs(alike, 2) == [tuple(range(5)), tuple(range(5, 10))]
    assert group_runs([(0, None), (1, "x"), (2, None), (3, "x")], 2) == [(0,), (1, 3), (2,)]
    assert group_runs([(0, "x")], 4) == [(0,)]
    for workers in (1, 2, 3, 7, 20):
        groups = group_runs([*alike, (10, "other"), (11, None)], workers)
        assert sorted(number for group in groups for number in group) == list(range(12))
        assert len(groups) >= min(workers, 12 - 9)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"model": {"name": "mlp", "hidden": [5]}},
            r"another module: fc1\.weight had shape \(4, 5\), and has \(5, 5\)",
        ),
        ({"server.optimizer": {"name": "adam", "lr": 0.1}}, r"another server\.optimizer: .* has no m, v"),
        ({"server.optimizer": {"name": "normalized"}}, r"another server\.optimizer: it was 'sgd', and is 'normalized'"),
        ({"cohort.sampler": {"name": "adafl"}}, r"another method: .* has no sampler\.attention"),
        ({"client.correction": {"name": "mimelite"}}, r"another method: .* has no correction\.m"),
        ({"server.glad": {"scope": "layer"}}, r"another server\.glad\.scope, .* was 'group', and is 'layer'"),
        (
            {"server.zeroing": {"initial": 5.0}},
            r"only say how a run begins: server\.zeroing\.initial was 3\.0, and is 5",
        ),
    ],
)
def test_no_run_goes_on_from_a_state_of_another_kind(
    changes: dict[str, Any], said: str, dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    """Four and five hidden units lie in vectors of one length."""
    server = {"optimizer": {"name": "sgd", "lr": 1.0}, "glad": {}, "zeroing": {"initial": 3.0}}
    exp = experiment(rounds=1, model={"name": "mlp", "hidden": [4]}, server=server)
    with raysim.Runs(exp, dataset=dataset) as runs:
        runs.start([(exp, tmp_path / "one")])
        list(runs.reports())
        with pytest.raises(raysim.ExperimentError, match=said):
            runs.branch(exp.changed({**changes, "rounds": 2}), tmp_path / "other", tmp_path / "one")
        assert not (tmp_path / "other").exists()
        runs.branch(exp.changed({"rounds": 2, "server.optimizer.lr": 0.5}), tmp_path / "other", tmp_path / "one")


def gone_on(
    before: raysim.Experiment, after: raysim.Experiment, folder: Path, dataset: raysim.FederatedDataset
) -> list[dict[str, Any]]:
    """The rows of a run in `folder/after` that goes on from one in `folder/before`."""
    with raysim.Runs(before, dataset=dataset, executor="local") as runs:
        runs.start([(before, folder / "before")])
        list(runs.reports())
        runs.branch(after, folder / "after", folder / "before")
        runs.start([(after, folder / "after")], resume=True)
        assert all(report.error is None for report in runs.reports())
    return round_table.read_rounds(folder / "after").to_pylist()


def test_a_report_says_which_rounds_are_another_runs(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    before, after = experiment(rounds=1), experiment(rounds=2, server={"optimizer": {"name": "sgd", "lr": 0.5}})
    gone_on(before, after, tmp_path, dataset)
    raysim.run(after, path=tmp_path / "whole", dataset=dataset, progress=False, executor="local")
    runs, notes = read_all([tmp_path / "after", tmp_path / "whole"])
    assert [run.goes_on_after for run in runs] == [1, 0]
    (note,) = notes
    assert "after goes on from another run: its first round is that run's" in note
    assert len(groups.group_runs(runs)[0]) == 2


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({"fixed": 0.5}, {"fixed": 0.01}, 0.01),
        ({"initial": 0.5}, {"fixed": 0.01}, 0.01),
        ({"fixed": 0.5}, {"initial": 0.01}, 0.01),
        (None, {"initial": 0.01}, 0.01),
        (None, {"fixed": 0.01}, 0.01),
        ({"fixed": 0.5}, None, None),
        ({"initial": 0.5}, {"initial": 0.5, "quantile": 0.1}, "the newest"),
    ],
)
def test_a_run_that_goes_on_from_another_clips_as_its_own_settings_say(
    before: dict[str, float] | None,
    after: dict[str, float] | None,
    expected: float | str | None,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    tmp_path: Path,
) -> None:
    """The level of the other one's state stayed, whatever the settings said."""
    first = experiment(rounds=2, server={"clip": before} if before else {})
    rows = gone_on(first, first.changed({"rounds": 3, "server.clip": after}), tmp_path, dataset)
    level = rows[-1].get("clip_level")
    if expected == "the newest":
        assert before is not None
        assert level is not None
        assert level not in (before["initial"], rows[1]["clip_level"])
    else:
        assert level == expected


@pytest.mark.parametrize(
    "again", [partial(raysim.resume, executor="local"), partial(raysim.replay, round=0)], ids=["resume", "replay"]
)
def test_the_first_rounds_of_another_run_are_not_trained_again(
    again: Callable[..., Any], dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    """Without checkpoints it began again, with its own settings from the first round on, as "the same numbers"."""
    first = experiment(rounds=2)
    rows = gone_on(first, first.changed({"rounds": 3, "client.optimizer.lr": 0.01}), tmp_path, dataset)
    path = tmp_path / "after"
    # A resume leaves in the record where the run has begun.
    raysim.resume(path, rounds=4, dataset=dataset, executor="local")
    assert round_table.read_rounds(path).slice(0, 3)["loss"].to_pylist() == [row["loss"] for row in rows]
    for file in (path / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(raysim.RunFolderError, match="goes on from another run's state after 2 rounds"):
        again(path, dataset=dataset)
    assert round_table.read_rounds(path).num_rows == 4


def test_a_run_that_goes_on_from_another_has_its_best_model(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    """Its folder lacked the file, so it could not go on."""
    first = experiment(rounds=3, evaluation={"every": 2}, checkpoint={"best": "eval/test/accuracy"})
    still = first.changed({"rounds": 5, "client.optimizer.lr": 1e-9, "server.optimizer.lr": 1e-9})
    rows = gone_on(first, still, tmp_path, dataset)
    best = raysim.evaluate(tmp_path / "after", best=True, dataset=dataset)
    assert best.metrics["eval/test/accuracy"] == max(row["eval/test/accuracy"] or 0.0 for row in rows)
    plain = first.changed({"checkpoint.best": None})
    with raysim.Runs(plain, dataset=dataset, executor="local") as runs:
        runs.start([(plain, tmp_path / "plain")])
        list(runs.reports())
        with pytest.raises(raysim.RunFolderError, match=r"the run kept no best model\. To go on, leave"):
            runs.branch(first, tmp_path / "other", tmp_path / "plain")
    assert not (tmp_path / "other").exists()
