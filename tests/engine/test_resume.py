"""Checkpoints and resumption: the same bits as a run that was never stopped, and no round twice in the records."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch.nn import functional

import raysim
from raysim.experiment.row import Row
from raysim.run_folder import checkpoint, experiment_record, files, kept_checkpoints, round_table
from tests.support import sealed_json
from tests.support.executors import own_actors
from tests.support.interrupted import Stops, same_records
from tests.support.nodes import until

Make = Callable[..., raysim.Experiment]
TWO_WORKERS = {"workers": 2, "cpus_per_worker": 0.5}


@pytest.mark.parametrize(
    "resumed_on",
    [pytest.param({"workers": 0}, id="in-process"), pytest.param(TWO_WORKERS, id="2 workers", marks=pytest.mark.ray)],
)
@pytest.mark.parametrize("after", [25, 60, 120])
def test_an_interrupted_run_goes_on_to_the_same_bits(
    after: int,
    resumed_on: dict[str, Any],
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    request: pytest.FixtureRequest,
) -> None:
    if resumed_on["workers"]:
        request.getfixturevalue("ray_cluster")
    settings: dict[str, Any] = {"rounds": 6, "checkpoint": {"every": 2}, "evaluation": {"every": 1}}
    whole = raysim.run(
        experiment(**settings, engine={"workers": 0, "trainer": "one_by_one"}), dataset=dataset, path=tmp_path / "whole"
    )
    with pytest.raises(KeyboardInterrupt) as cut:
        raysim.run(
            experiment(**settings, engine={"workers": 0, "trainer": "one_by_one"}),
            dataset=dataset,
            path=tmp_path / "cut",
            loss=Stops(after),
        )
    done = round_table.read_rounds(tmp_path / "cut").num_rows
    assert 0 <= done < 6
    after_round = f"after round {done}" if done else "before the first round was finished"
    again = f"raysim.resume({str(tmp_path / 'cut')!r}, dataset=..., loss=...)"
    assert cut.value.__notes__ == [f"stopped {after_round}; go on with: {again}"]
    executor: Any = "local" if resumed_on["workers"] == 0 else "ray"
    same_records(raysim.resume(tmp_path / "cut", dataset=dataset, executor=executor), whole)


def test_a_finished_run_can_be_carried_on(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    for every in (3, 2):  # with 2 the short run also evaluates after its third round, because it is the last
        settings = {"evaluation": {"every": every}}
        long = raysim.run(experiment(rounds=6, **settings), dataset=dataset, path=tmp_path / f"long{every}")
        raysim.run(experiment(rounds=3, **settings), dataset=dataset, path=tmp_path / f"short{every}")
        same_records(raysim.resume(tmp_path / f"short{every}", dataset=dataset, rounds=6), long)


@pytest.mark.usefixtures("ray_cluster")
def test_a_logger_receives_the_rounds_that_the_driver_finished_before_an_interrupt(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    received: list[int] = []

    def interrupt_at_first(row: Row) -> None:
        received.append(row["round"])
        if len(received) == 1:
            # Meanwhile the driver goes on.
            until(lambda: max(files.checkpoints(tmp_path / "run"), default=0) >= 3)
            raise KeyboardInterrupt

    long = experiment(rounds=2000, checkpoint={"every": 1, "keep": 1}, engine=TWO_WORKERS)
    with pytest.raises(KeyboardInterrupt):
        raysim.run(long, dataset=dataset, path=tmp_path / "run", loggers=[interrupt_at_first])
    done = round_table.read_rounds(tmp_path / "run").num_rows
    assert 3 <= done < 2000
    assert received == list(range(done))


@pytest.mark.usefixtures("ray_cluster")
def test_a_killed_driver_is_resumed_to_the_same_bits(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    settings: dict[str, Any] = {"rounds": 40, "checkpoint": {"every": 5}, "evaluation": {"every": 10}}
    whole = raysim.run(
        experiment(**settings, engine={"workers": 0, "trainer": "one_by_one"}), dataset=dataset, path=tmp_path / "whole"
    )

    # A thread of this test kills the driver, by its process id, once it has left a checkpoint.
    import threading

    folder = tmp_path / "killed"

    def kill() -> None:
        deadline = time.monotonic() + 240
        while not list((folder / "checkpoints").glob("round-*")) and time.monotonic() < deadline:
            time.sleep(0.001)
        for process in own_actors("WatchedDriver"):
            process.send_signal(signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    slowly = raysim.FederatedDataset.from_clients(
        train={f"c{i}": dataset.train.client(i) for i in range(len(dataset.train))},
        test={f"t{i}": dataset.split("test").client(i) for i in range(4)},
    )
    with pytest.raises(raysim.WorkerLostError, match=f"raysim resume {folder}$"):
        raysim.run(
            experiment(**settings, engine={**TWO_WORKERS, "trainer": "one_by_one"}),
            dataset=slowly,
            path=folder,
            loss=slow_loss,
        )
    killer.join()
    assert round_table.read_rounds(folder).num_rows < 40
    same_records(raysim.resume(folder, dataset=dataset), whole)


def slow_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    time.sleep(0.005)
    return functional.cross_entropy(outputs, targets, reduction="none")


SCRIPT = """
import sys
import raysim
exp = raysim.load(sys.argv[1])
raysim.run(exp, path=sys.argv[2])
"""

FILE = """
rounds = 200
[data]
name = "digits"
clients = 20
[model]
name = "linear"
[client]
epochs = 3
[cohort]
size = 10
[engine]
workers = 0
[checkpoint]
every = 3
[evaluation]
every = 20
"""


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=["SIGKILL", "Ctrl-C", "SIGTERM"])
def test_a_killed_script_is_resumed_to_the_same_bits(sent: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(FILE)
    whole = raysim.run(raysim.load(tmp_path / "exp.toml"), path=tmp_path / "whole")
    folder = tmp_path / "cut"
    script = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "exp.toml"), str(folder)], stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 240
    while not (folder / "checkpoints" / "round-000006.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    script.send_signal(sent)
    script.wait(30)
    if sent != signal.SIGKILL:
        state = kept_checkpoints.newest_state(folder, experiment_record.stored_owner(folder))
        assert state is not None
        assert state.round == round_table.read_rounds(folder).num_rows < 200
    same_records(raysim.resume(folder), whole)


def test_a_full_disk_leaves_the_previous_checkpoint(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"rounds": 6, "checkpoint": {"every": 2}}
    whole = raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "whole")
    real = os.fsync
    first = tmp_path / "full" / "checkpoints" / "round-000002.safetensors"

    def full(descriptor: int) -> None:
        if first.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(raysim.CheckpointError, match=r"No space left on device.*untouched"):
            raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "full")
    left = sorted(p.name for p in (tmp_path / "full" / "checkpoints").iterdir())
    assert left == ["round-000002.safetensors"]
    same_records(raysim.resume(tmp_path / "full", dataset=dataset), whole)


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"rounds": 6, "checkpoint": {"every": 2}}
    whole = raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "whole")
    raysim.run(experiment(**settings), dataset=dataset, path=tmp_path / "hurt")
    newest = tmp_path / "hurt" / "checkpoints" / "round-000006.safetensors"
    newest.write_bytes(newest.read_bytes()[:-10])
    same_records(raysim.resume(tmp_path / "hurt", dataset=dataset), whole)
    assert "round-000006.safetensors is damaged" in caplog.text


def test_a_checkpoint_with_another_bit_is_passed_over_too(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"checkpoint": {"every": 2}}
    whole = raysim.run(experiment(rounds=6, **settings), dataset=dataset, path=tmp_path / "whole")
    raysim.run(experiment(rounds=4, **settings), dataset=dataset, path=tmp_path / "hurt")
    flip(tmp_path / "hurt" / "checkpoints" / "round-000004.safetensors", -1)
    same_records(raysim.resume(tmp_path / "hurt", dataset=dataset, rounds=6), whole)
    assert re.search(r"round-000004\.safetensors is damaged: .* goes on from the checkpoint before it", caplog.text)


def test_a_damaged_checkpoint_does_not_take_the_place_of_one_that_is_kept(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp, hurt = experiment(rounds=6, checkpoint={"every": 2}), tmp_path / "hurt"
    whole = raysim.run(exp, dataset=dataset, path=tmp_path / "whole")
    raysim.run(exp, dataset=dataset, path=hurt)
    flip(hurt / "checkpoints" / "round-000006.safetensors", -1)
    until_five = exp.changed({"checkpoint": {"every": 1, "keep": 1}, "stop.budget.rounds": 5})
    raysim.run(until_five, dataset=dataset, path=hurt, resume=True)
    assert [file.name for file in hurt.glob("checkpoints/round-000005*")] == ["round-000005.safetensors"]
    same_records(raysim.run(exp, dataset=dataset, path=hurt, resume=True), whole)


def test_every_bit_of_a_checkpoint_counts(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    from raysim.engine.plan.resolve import resolve

    file = tmp_path / "round-000000.safetensors"
    checkpoint.write(resolve(experiment(), dataset=dataset).initial_state(), file, "abc")
    content = file.read_bytes()
    for at in range(0, len(content), 3):
        flip(file, at)
        with pytest.raises(checkpoint.DamagedError):
            checkpoint.read(file, "abc")
        assert checkpoint.read_part(file, "weights") == {}
        file.write_bytes(content)
    assert checkpoint.read(file, "abc").round == 0


def test_a_damaged_table_or_record_is_refused_before_a_round_is_run(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    folder = tmp_path / "run"
    raysim.run(experiment(rounds=4), dataset=dataset, path=folder)
    for name in ("experiment.json", "rounds.parquet", "clients/round-000001.parquet"):
        content = (folder / name).read_bytes()
        flip(folder / name, len(content) // 3)
        with pytest.raises(raysim.RunFolderError, match=rf"{name} is damaged: .*Restore it from a copy"):
            raysim.resume(folder, dataset=dataset, rounds=6)
        assert max(file.name for file in (folder / "checkpoints").iterdir()) == "round-000004.safetensors"
        (folder / name).write_bytes(content)
    assert raysim.resume(folder, dataset=dataset, rounds=6).rounds.num_rows == 6


def test_a_record_without_a_checksum_says_who_wrote_it(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    file = raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run").path / "experiment.json"
    rewritten(file.parent, "0.0.1")
    record = {key: value for key, value in json.loads(file.read_text()).items() if key != "checksum"}
    file.write_text(json.dumps(record))
    with pytest.raises(raysim.RunFolderError, match=r"it has no checksum\..* raysim 0\.0\.1 wrote it, and this is"):
        raysim.resume(tmp_path / "run", dataset=dataset)


def flip(file: Path, at: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << at % 8
    file.write_bytes(content)


def test_a_state_survives_its_checkpoint_bit_for_bit(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    from raysim.engine.plan.resolve import resolve

    state = resolve(experiment(), dataset=dataset).initial_state()
    checkpoint.write(state, tmp_path / "state.safetensors", "abc")
    back = checkpoint.read(tmp_path / "state.safetensors", "abc")
    assert back.round == 0
    assert torch.equal(back.weights.params, state.weights.params)
    assert back.weights.params.dtype == torch.float32
    with pytest.raises(raysim.CheckpointError, match=r"belongs to another run \(abc\) than this one \(other\)"):
        checkpoint.read(tmp_path / "state.safetensors", "other")


def test_a_state_is_read_into_memory_as_torch_aligns_it(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    """In float64 the norms of LARS and LAMB, summed where the vector lies, had other last digits after a resume."""
    from raysim.engine.plan.resolve import resolve

    exp = experiment(server={"optimizer": {"name": "lamb", "lr": 0.1}}, engine={"workers": 0, "dtype": "float64"})
    state = resolve(exp, dataset=dataset).initial_state()
    file = tmp_path / "state.safetensors"
    for length in range(1, 9):  # the header's, and so the places of all tensors
        checkpoint.write(state, file, "a" * 8 * length)
        back = checkpoint.read(file)
        vectors = [back.weights.params, *back.optimizer.values(), *checkpoint.read_part(file, "optimizer").values()]
        assert len(vectors) == 5
        assert all(vector.data_ptr() % 64 == 0 for vector in vectors)


def test_other_data_are_not_resumed_with(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    assert dataset.test is not None
    train, test = ([split.client(i) for i in range(len(split))] for split in (dataset.train, dataset.test))
    ids = [dataset.train.id_of(i) for i in range(20)]

    def said(train: dict[str, Any], test: dict[str, Any] | None) -> str:
        other = raysim.FederatedDataset.from_clients(train=train, test=test)
        with pytest.raises(raysim.RunFolderError, match="its data were others: ") as refused:
            raysim.resume(tmp_path / "run", dataset=other)
        assert "dataset= is probably made from other files or with another seed now." in str(refused.value)
        return str(refused.value).split("others: ")[1].split(". ")[0]

    of_train, of_test = dict(zip(ids, train, strict=True)), {f"t{i}": rows for i, rows in enumerate(test)}
    assert said(dict(zip(ids[:10], train, strict=False)), of_test) == "train had 20 clients, and has 10"
    shorter = {**of_test, "t1": (test[1][0][:20], test[1][1][:20])}
    assert said(of_train, shorter) == "test had 25 examples of client 't1', which has 20"
    renamed = {f"u{i}": rows for i, rows in enumerate(test)}
    assert said(of_train, renamed) == "test had 25 examples of client 't0', which is not there"
    turned = {**of_train, ids[0]: (train[0][0][::-1], train[0][1])}
    assert said(turned, of_test) == "clients and sizes are those that it knows of, so the examples differ"


def test_data_of_a_script_are_not_resumed_with_those_of_the_experiment(tmp_path: Path, experiment: Make) -> None:
    exp = experiment(rounds=1).changed({"data": {"name": "digits", "clients": 10}, "model": {"name": "linear"}})
    other = raysim.dataset_of(exp.changed(["data.clients=11"]))
    raysim.run(exp, dataset=other, path=tmp_path / "script")
    with pytest.raises(
        raysim.RunFolderError, match=r"had 11 .* has 10.* It took dataset= of its script, and now \[data\]"
    ):
        raysim.resume(tmp_path / "script")
    raysim.run(exp, path=tmp_path / "file")
    with pytest.raises(
        raysim.RunFolderError, match=r"It took \[data\] of the experiment, and now dataset= of its script"
    ):
        raysim.resume(tmp_path / "file", dataset=other)


def test_another_course_of_training_is_said(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same settings and data, where a module, a device or a compiler makes "auto" something else."""
    from raysim.api import preflight
    from raysim.engine.plan.resolve import resolve

    result = raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    plan = resolve(experiment(rounds=1), dataset=dataset)
    preflight.check_same(plan, result.path)
    other = replace(plan, choice=replace(plan.choice, trainer="vmap"))
    with pytest.raises(
        raysim.RunFolderError, match=r"engine.trainer = 'auto' meant '\w+' there, and means 'vmap' here"
    ):
        preflight.check_same(other, result.path)
    other = replace(plan, choice=replace(plan.choice, usual=plan.choice.usual + 1))
    with pytest.raises(raysim.RunFolderError, match=r"the size of chunks, which engine.chunk_size = 'auto' leaves"):
        preflight.check_same(other, result.path)


def test_another_rank_of_own_adapters_is_said_by_its_tensors(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    inputs = dataset.train.client(0)[0].shape[1]

    def low_rank(rank: int) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(inputs, rank, bias=False), torch.nn.Linear(rank, 4))

    exp, where = experiment(model=None, rounds=1), tmp_path / "run"
    raysim.run(exp, dataset=dataset, model=lambda: low_rank(2), path=where)
    with pytest.raises(
        raysim.RunFolderError, match=rf"another module: 0\.weight had shape \(2, {inputs}\), and has \(3,"
    ):
        raysim.resume(where, dataset=dataset, model=lambda: low_rank(3), rounds=2)


def test_another_module_is_said_by_its_tensors(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    inputs = dataset.train.client(0)[0].shape[1]

    def wide(width: int, bias: bool = True) -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(inputs, width, bias=bias), torch.nn.Linear(width, 4))

    exp, where = experiment(model=None, rounds=1), tmp_path / "run"
    raysim.run(exp, dataset=dataset, model=lambda: wide(8), path=where)
    shapes = (
        rf"model= returned another module: 0\.weight had shape \(8, {inputs}\), and has \(5, {inputs}\), 0\.bias had"
    )
    with pytest.raises(raysim.RunFolderError, match=shapes):
        raysim.resume(where, dataset=dataset, model=lambda: wide(5), rounds=2)
    with pytest.raises(raysim.RunFolderError, match=r"model= returned another module: 0\.bias is missing"):
        raysim.resume(where, dataset=dataset, model=lambda: wide(8, bias=False), rounds=2)


def rewritten(folder: Path, version: str | None, **keys: Any) -> None:
    """The folder's record as another version of raysim would have left it, with keys of its own."""
    file = folder / "experiment.json"
    record = json.loads(file.read_text())
    record["versions"] = {} if version is None else {**record["versions"], "raysim": version}
    if keys:
        record["experiment"] |= keys
        record["fingerprint"] = "that of another experiment"
    sealed_json.write(file, record)


@pytest.mark.parametrize(("package", "is_said"), [("torch", True), ("numpy", True), ("raysim", True), ("ray", False)])
def test_a_run_that_goes_on_with_other_versions_says_so_once(
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    package: str,
    is_said: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder, file = tmp_path / "run", tmp_path / "run" / "experiment.json"
    raysim.run(experiment(rounds=1), dataset=dataset, path=folder)
    record = json.loads(file.read_text())
    record["versions"][package] = "0.0.1"
    sealed_json.write(file, record)
    raysim.resume(folder, dataset=dataset)
    assert "goes on with other versions" not in caplog.text, "no round is left"
    raysim.resume(folder, dataset=dataset, rounds=2)
    assert (f"goes on with other versions: {package} 0.0.1 before," in caplog.text) == is_said
    caplog.clear()
    raysim.resume(folder, dataset=dataset, rounds=3)
    assert "goes on with other versions" not in caplog.text


def test_a_folder_of_another_version_says_so_where_it_does_not_fit(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    folder, advice = tmp_path / "run", r"written by raysim 0\.0\.1, and this is raysim .*pip install raysim==0\.0\.1"
    raysim.run(experiment(rounds=1), dataset=dataset, path=folder)
    rewritten(folder, "0.0.1")
    assert raysim.resume(folder, dataset=dataset, rounds=2).rounds.num_rows == 2, "what still fits goes on"
    assert json.loads((folder / "experiment.json").read_text())["versions"]["raysim"] != "0.0.1"

    rewritten(folder, "0.0.1", seed=5)
    with pytest.raises(raysim.RunFolderError, match=rf"seed was 5, and is 0.*{advice}"):
        raysim.run(experiment(rounds=2), dataset=dataset, path=folder, resume=True)
    rewritten(folder, None)
    with pytest.raises(raysim.RunFolderError, match="seed was 5, and is 0") as refused:
        raysim.run(experiment(rounds=2), dataset=dataset, path=folder, resume=True)
    assert "written by" not in str(refused.value)

    rewritten(folder, "0.0.1", warmup=3)
    with pytest.raises(raysim.ExperimentError, match=rf"run cannot be read: unknown key 'warmup'.*{advice}"):
        raysim.resume(folder, dataset=dataset)


def test_a_checkpoint_of_another_format_says_which_version_wrote_it(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    rewritten(tmp_path / "run", "9.0")
    monkeypatch.setattr(checkpoint, "FORMAT", "other")
    with pytest.raises(raysim.CheckpointError, match=r"of format other, but is of 4\..*pip install raysim==9\.0"):
        raysim.resume(tmp_path / "run", dataset=dataset)


def test_an_existing_folder_is_neither_overwritten_nor_joined_unasked(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    first = raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    with pytest.raises(raysim.RunFolderError, match=r"--resume.*--overwrite"):
        raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run")
    same_records(first, raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "run", overwrite=True))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("precious")
    with pytest.raises(raysim.RunFolderError, match="not a run's folder"):
        raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "mine", overwrite=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


def test_tables_hold_a_row_a_round_and_a_row_a_client(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    result = raysim.run(
        experiment(rounds=5, evaluation={"every": 2, "split": ["test", "train"]}), dataset=dataset, path=tmp_path / "r"
    )
    assert result.rounds["round"].to_pylist() == [0, 1, 2, 3, 4]
    evaluated = [value is not None for value in result.rounds["eval/test/accuracy"].to_pylist()]
    assert evaluated == [False, True, False, True, True]
    last = result.clients.filter(pa.compute.equal(result.clients["round"], 4))
    assert last.filter(pa.compute.equal(last["split"], "test"))["client"].to_pylist() == ["t0", "t1", "t2", "t3"]
    assert last.num_rows == 24


def test_a_finished_run_is_not_cut_short(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    done = raysim.run(experiment(rounds=4), dataset=dataset, path=tmp_path / "run")
    with pytest.raises(raysim.RunFolderError, match=r"cannot go on to round 2 only: .*--rounds 8.*") as refused:
        raysim.resume(tmp_path / "run", dataset=dataset, rounds=2)
    assert f"raysim.replay('{tmp_path / 'run'}', 1) the model after them" in str(refused.value)
    same_records(raysim.resume(tmp_path / "run", dataset=dataset), done)


@pytest.mark.usefixtures("ray_cluster")
def test_what_cannot_start_leaves_the_disk_as_it_was(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    done = raysim.run(experiment(rounds=2), dataset=dataset, path=tmp_path / "run")
    for path, overwrite in ((tmp_path / "run", True), (tmp_path / "new", False)):
        with pytest.raises(raysim.ResourceError):
            raysim.run(experiment(engine={"workers": 99}), dataset=dataset, path=path, overwrite=overwrite)
    assert not (tmp_path / "new").exists()
    same_records(raysim.resume(tmp_path / "run", dataset=dataset), done)


def test_a_folder_whose_checkpoints_are_all_damaged_loses_nothing(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    raysim.run(experiment(rounds=4), dataset=dataset, path=tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.write_bytes(b"nothing")
    with pytest.raises(raysim.CheckpointError, match=r"No checkpoint in .* can be read, .* put back a copy"):
        raysim.resume(tmp_path / "run", dataset=dataset, rounds=6)
    assert round_table.read_rounds(tmp_path / "run").num_rows == 4
    (tmp_path / "run" / "rounds.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(raysim.RunFolderError, match=r"rounds.parquet is damaged"):
        round_table.read_rounds(tmp_path / "run")
    (tmp_path / "run" / "experiment.json").write_text("{")
    with pytest.raises(raysim.RunFolderError, match=r"experiment.json is damaged"):
        raysim.resume(tmp_path / "run", dataset=dataset)


def test_the_fingerprint_covers_what_auto_meant(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    from dataclasses import replace

    from raysim.engine.plan.resolve import resolve

    plan = resolve(experiment(), dataset=dataset)
    assert resolve(experiment(), dataset=dataset).fingerprint == plan.fingerprint
    assert replace(plan, choice=replace(plan.choice, why="another sentence")).fingerprint == plan.fingerprint
    for name in ("usual", "most", "least_chunks", "overhead"):
        choice = replace(plan.choice, **{name: getattr(plan.choice, name) + 1})
        assert replace(plan, choice=choice).fingerprint != plan.fingerprint
    assert replace(plan, choice=replace(plan.choice, trainer="one_by_one")).fingerprint != plan.fingerprint


def test_a_reader_may_write_to_the_weights_of_a_round(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    whole = raysim.run(experiment(), dataset=dataset, path=tmp_path / "whole")
    for each in raysim.rounds(experiment(), dataset=dataset, path=tmp_path / "read"):
        each.weights.params.zero_()
    same_records(raysim.resume(tmp_path / "read", dataset=dataset), whole)
