"""Lost rows, foreign files and records of another form are refused, with the file's name and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save

import raysim
from raysim.api import kept_model
from raysim.errors import CheckpointError, DataError, RaysimError, RunFolderError
from raysim.loggers.logger import store_id, stored_id
from raysim.report import runs
from raysim.run_folder import checkpoint, client_table, experiment_record, files, kept_checkpoints, round_table
from raysim.run_folder.series_record import stored_sweep
from raysim.run_folder.timeline import read as read_timeline
from raysim.server.state import ServerState
from raysim.storage import lock, sealed, sealed_parquet
from raysim.storage.reading import MOST_BYTES, MOST_DEPTH, json_object
from raysim.storage.remote.remote import Remote
from tests.support import sealed_json
from tests.support.mutations import nested
from tests.support.run_folders import accuracies, experiment, write

ROUNDS = 6


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of six rounds, evaluated and kept every second one."""
    folder = tmp_path_factory.mktemp("recorded") / "run"
    every = {"every": 2}
    whole = experiment(rounds=ROUNDS, engine={"workers": 0}, evaluation=every, checkpoint={**every, "keep": 2})
    raysim.run(whole, path=folder, progress=False)
    return folder


@pytest.fixture
def run(tmp_path: Path, recorded: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / "run"))


def resumed(run: Path) -> raysim.Result:
    return raysim.resume(run, rounds=ROUNDS + 2, progress=False)


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ([3, 4, 5], "where that of round 0 belongs there is that of round 3"),
        ([0, 1, 4, 5], "where that of round 2 belongs there is that of round 4"),
        ([0, 1, 1, 2, 3, 4, 5], "where that of round 2 belongs there is that of round 1"),
        ([5, 4, 3, 2, 1, 0], "put back the whole file, or start afresh"),
        ([0, 1, 2], "has rows of 3 rounds, but the newest checkpoint has 6 rounds behind it"),
        ([], "delete the checkpoints of more than 0 rounds"),
    ],
)
def test_lost_rows_are_not_resumed_without(run: Path, kept: list[int], said: str) -> None:
    table = pq.read_table(run / "rounds.parquet")
    sealed_parquet.write(table.take(pa.array(kept, pa.int64())), run / "rounds.parquet")
    before = {file: file.read_bytes() for file in run.rglob("*.*") if file.is_file() and file.name != lock.FILE}
    with pytest.raises(RunFolderError, match=r"rounds\.parquet") as refused:
        resumed(run)
    assert said in str(refused.value)
    assert {file: file.read_bytes() for file in before} == before, "nothing was written"


def branched(run: Path) -> None:
    with raysim.Runs(experiment(rounds=ROUNDS, engine={"workers": 0})) as runs:
        runs.branch(experiment(rounds=ROUNDS + 2, engine={"workers": 0}), run.with_name("branch"), origin=run)


@pytest.mark.parametrize(
    "read",
    [
        raysim.read,
        raysim.evaluate,
        lambda run: raysim.export(run, run.with_name("model.safetensors")),
        lambda run: raysim.interpolate(
            experiment_record.stored_experiment(run), run, run / "checkpoints" / "round-000004.safetensors"
        ),
        branched,
    ],
    ids=["read", "evaluate", "export", "interpolate", "branch"],
)
def test_a_run_that_is_over_says_that_its_last_checkpoint_is_lost(
    read: Callable[[Path], object], run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    raysim.read(run)
    assert not caplog.messages
    files.checkpoint_file(run, ROUNDS).rename(run.with_name("aside"))
    # Of an interpolation: both models are the same now.
    with suppress(raysim.ExperimentError):
        read(run)
    assert any(
        "has lost its last checkpoint: its newest model is that after 4 rounds, and its rows are of 6 rounds" in said
        for said in caplog.messages
    )


@pytest.mark.parametrize("listed", [[4], [2, 4]])
def test_a_checkpoint_that_a_run_at_work_has_deleted_meanwhile_is_not_called_damaged(
    listed: list[int], run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newest, aside = files.checkpoint_file(run, ROUNDS), run.with_name("aside")
    newest.rename(aside)
    older = [files.checkpoint_file(run, done) for done in listed]
    for file in older:
        file.touch()
    read = kept_checkpoints.state_of

    def at_work(file: Path, fingerprint: str, done: int) -> ServerState:
        if aside.exists():
            aside.rename(newest)
            for each in older:
                each.unlink()
        return read(file, fingerprint, done)

    monkeypatch.setattr(kept_checkpoints, "state_of", at_work)
    state = kept_checkpoints.newest_state(run, experiment_record.stored_owner(run))
    assert state is not None
    assert (state.round, caplog.messages) == (ROUNDS, [])


def test_a_best_model_in_a_checkpoint_s_place_is_not_gone_on_from(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    whole = resumed(Path(shutil.copytree(run, run.with_name("whole"))))
    fingerprint = experiment_record.stored_owner(run)
    state = kept_checkpoints.newest_state(run, fingerprint)
    assert state is not None
    alone = ServerState(state.round, state.weights, {}, {}, {}, {}, {})
    in_its_place = partial(checkpoint.write, alone, files.checkpoint_file(run, ROUNDS), fingerprint)
    in_its_place()
    found = resumed(run)
    assert found.rounds["loss"].equals(whole.rounds["loss"])
    assert any("holds a model alone" in said for said in caplog.messages)
    in_its_place()
    again = raysim.replay(run, ROUNDS)
    assert isinstance(again, raysim.Round)
    assert again.metrics["loss"] == whole.rounds["loss"][ROUNDS].as_py()


def as_checkpoint(file: Path, to: Path, **changed: str) -> None:
    """Write a checkpoint again as one with other metadata."""
    with safe_open(file, framework="pt") as opened:
        metadata = {**opened.metadata(), "checksum": sealed.BLANK, **changed}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    to.write_bytes(save(tensors, metadata))
    sealed.seal(to)


def test_another_experiment_s_checkpoint_says_nothing_of_a_run_s_rows(run: Path) -> None:
    file = files.checkpoints(run)[ROUNDS]
    as_checkpoint(file, file.with_name("round-000009.safetensors"), round="9", fingerprint="other")
    assert round_table.read_rounds(run).num_rows == ROUNDS


def test_lost_rows_are_not_hidden_by_a_checkpoint_of_another_format(run: Path) -> None:
    for file in files.checkpoints(run).values():
        as_checkpoint(file, file, format="3")
    sealed_parquet.write(pq.read_table(run / "rounds.parquet").slice(0, 3), run / "rounds.parquet")
    with pytest.raises(RunFolderError, match=r"lost rows cannot be known: .* of format 4, but is of 3"):
        round_table.read_rounds(run)
    assert "still going" not in " ".join(runs.read(run).notes)


def test_a_run_that_has_lost_its_checkpoints_says_that_it_begins_again(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = round_table.read_rounds(run)["loss"]
    shutil.rmtree(run / "checkpoints")
    assert resumed(run).rounds["loss"].slice(0, ROUNDS).to_pylist() == before.to_pylist()
    assert f"has the rows of {ROUNDS} rounds, and no checkpoint to go on from: its run begins again" in caplog.text


def test_a_folder_of_something_else_is_not_said_to_be_a_run(tmp_path: Path) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / files.STUDY).write_text('{"name": "tiny"}')
    with pytest.raises(RunFolderError, match="is not a run's folder: it is that of the study 'tiny'"):
        raysim.run(experiment(engine={"workers": 0}), path=tmp_path / "study")


def test_the_last_damaged_checkpoint_promises_none_before_it(run: Path) -> None:
    for file in files.checkpoints(run).values():
        file.write_bytes(b"damaged")
    with pytest.raises(CheckpointError, match=r"can be read, the oldest because .*: put back a copy") as refused:
        resumed(run)
    assert "goes on from" not in str(refused.value)


def test_a_lost_file_of_rows_is_named(run: Path) -> None:
    (run / "rounds.parquet").unlink()
    with pytest.raises(RunFolderError, match=r"rounds\.parquet is missing, but .* has 6 rounds: put the file back"):
        resumed(run)


def test_lost_tables_of_clients_are_named(run: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`Result.clients`, and pictures by client, would lack these rounds in silence."""
    resumed(run)
    assert "is lost" not in caplog.text, "the evaluations that there are have their tables"
    files.client_file(run, 1).unlink()
    files.client_file(run, 5).unlink()
    again = raysim.resume(run, rounds=ROUNDS + 4, progress=False)
    assert set(again.clients["round"].to_pylist()) == {3, 7, 9}
    [said] = [record.getMessage() for record in caplog.records if "is lost" in record.getMessage()]
    assert "round-000001.parquet is lost" in said
    assert "lack the evaluations after these rounds, which rounds.parquet has: 1, 5." in said


def test_a_lost_table_of_clients_is_named_by_whoever_reads_the_folder(
    run: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files.client_file(run, 3).unlink()
    assert set(raysim.read(run).clients["round"].to_pylist()) == {1, 5}
    assert "round-000003.parquet is lost: the run's figures by client lack" in caplog.text
    [shown], notes = runs.read_all([run])
    assert set(shown.clients["round"].to_pylist()) == {5}
    assert not any("is lost" in note for note in notes)


def test_pictures_of_clients_are_of_the_newest_evaluation_or_there_are_none(run: Path) -> None:
    files.client_file(run, 5).unlink()
    [shown], notes = runs.read_all([run])
    assert shown.clients.num_rows == 0
    assert any("The clients of" in note and "round-000005.parquet is lost, whose evaluation" in note for note in notes)


def test_an_earlier_checkpoint_is_enough_for_fewer_rows(run: Path, recorded: Path) -> None:
    table = pq.read_table(run / "rounds.parquet")
    sealed_parquet.write(table.take([0, 1, 2, 3]), run / "rounds.parquet")
    files.checkpoint_file(run, ROUNDS).unlink()
    again = raysim.resume(run, progress=False).rounds
    assert again["loss"].to_pylist() == round_table.read_rounds(recorded)["loss"].to_pylist()


def test_copies_by_a_file_manager_are_left_alone(run: Path, recorded: Path) -> None:
    copies = []
    for file in (*(run / "clients").iterdir(), *(run / "checkpoints").iterdir()):
        for name in (f"{file.stem} (copy){file.suffix}", f"{file.stem}_1{file.suffix}", f"{file.name}.bak"):
            # Half of it: where a copy counts, it is seen.
            copies.append(file.with_name(name))
            copies[-1].write_bytes(file.read_bytes()[:500])
    clients = client_table.read_clients(run)
    assert clients.equals(client_table.read_clients(recorded))
    assert client_table.newest_clients(run)["round"].to_pylist()[0] == ROUNDS - 1
    assert resumed(run).rounds.num_rows == ROUNDS + 2
    assert all(copy.exists() for copy in copies)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory, recorded: Path) -> Path:
    """A run that differs in its seed only."""
    folder = tmp_path_factory.mktemp("other") / "run"
    raysim.run(experiment_record.stored_experiment(recorded).changed(["seed=5"]), path=folder, progress=False)
    return folder


@pytest.mark.parametrize("name", ["rounds.parquet", "clients/round-000001.parquet", "clients/round-000005.parquet"])
def test_a_table_of_another_run_is_refused(run: Path, other: Path, name: str) -> None:
    """It has its checksum, and the same columns and rounds."""
    shutil.copy(other / name, run / name)
    with pytest.raises(RunFolderError, match=rf"{name} belongs to another run .*: put back its own file"):
        resumed(run)
    if name != "clients/round-000001.parquet":
        assert any(f"{name} belongs" in note for note in runs.read_all([run])[1])


def begun_at(value: float, folder: Path, like: Path, **sections: Any) -> raysim.Result:
    """Four rounds, whose parameters are all alike at first; `like`: a run of the same model."""
    exp = experiment(rounds=4, engine={"workers": 0}, checkpoint={"every": 2, "keep": 2}, **sections)
    params = {name: torch.full_like(tensor, value) for name, tensor in raysim.read(like).params.items()}  # type: ignore[union-attr]
    return raysim.run(exp, path=folder, params=params, progress=False)


@pytest.mark.parametrize("name", ["rounds.parquet", "clients", "checkpoints", "client_state"])
def test_a_file_of_a_run_that_began_at_other_values_is_refused(name: str, recorded: Path, tmp_path: Path) -> None:
    """It has the fingerprint of this run, because experiment and data are the same."""
    states: Any = {"client": {"correction": {"name": "scaffold"}}}
    for value, folder in ((0.1, tmp_path / "own"), (-0.3, tmp_path / "other")):
        begun_at(value, folder, recorded, **states)
    own, other = (experiment_record.stored_fingerprint(tmp_path / each) for each in ("own", "other"))
    assert own == other
    source, target = tmp_path / "other" / name, tmp_path / "own" / name
    for file in source.iterdir() if source.is_dir() else [source]:
        shutil.copy(file, target)
    go_on = raysim.read if name == "clients" else partial(raysim.resume, rounds=6, progress=False)
    with pytest.raises(RaysimError, match=r"belongs to another run|it is damaged, or another run's"):
        go_on(tmp_path / "own")


def test_a_folder_of_an_earlier_version_has_files_of_its_fingerprint(recorded: Path, tmp_path: Path) -> None:
    """Such a run did not say whose its files are, though it was passed initial values."""
    found = begun_at(0.1, tmp_path / "run", recorded)
    record = json_object(tmp_path / "run" / "experiment.json", RunFolderError)
    fingerprint = record["fingerprint"]
    assert record.pop("owner") != fingerprint
    sealed_json.write(tmp_path / "run" / "experiment.json", record)
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        checkpoint.write(checkpoint.read(file), file, fingerprint)
    for file in (tmp_path / "run" / "rounds.parquet", *(tmp_path / "run" / "clients").iterdir()):
        sealed_parquet.write(pq.read_table(file), file, fingerprint)
    went_on = raysim.resume(tmp_path / "run", rounds=6, progress=False)
    assert went_on.rounds["loss"].to_pylist()[:4] == found.rounds["loss"].to_pylist()
    assert experiment_record.stored_owner(tmp_path / "run") == fingerprint


def test_a_table_of_another_round_is_refused(run: Path) -> None:
    shutil.copy(run / "clients" / "round-000001.parquet", run / "clients" / "round-000003.parquet")
    with pytest.raises(RunFolderError, match=r"round-000003.parquet must have rows of round 3, .* rows of round 1:"):
        resumed(run)


def test_a_table_that_does_not_say_whose_it_is_is_read(run: Path) -> None:
    """Earlier versions wrote such tables."""
    sealed_parquet.write(pq.read_table(run / "rounds.parquet"), run / "rounds.parquet")
    assert resumed(run).rounds.num_rows == ROUNDS + 2


def test_a_table_of_clients_that_is_cut_off_is_named(run: Path) -> None:
    file = files.client_file(run, 3)
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(RunFolderError, match=r"round-000003\.parquet is damaged"):
        client_table.read_clients(run)


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [
        ("loss", pa.array(["a"] * ROUNDS), "expected figures in column 'loss', found string"),
        ("round", pa.array([0.5] * ROUNDS), "expected whole numbers in column 'round'"),
        ("extra", pa.array([{"a": 1}] * ROUNDS), "expected figures in column 'extra'"),
    ],
)
def test_a_column_of_something_else_is_refused(run: Path, name: str, column: pa.Array, said: str) -> None:
    table = pq.read_table(run / "rounds.parquet")
    at = table.column_names.index(name) if name in table.column_names else None
    changed = table.append_column(name, column) if at is None else table.set_column(at, name, column)
    sealed_parquet.write(changed, run / "rounds.parquet")
    with pytest.raises(RunFolderError, match=rf"rounds\.parquet is damaged: {said}"):
        round_table.read_rounds(run)


DAMAGED = {
    "not UTF-8": b'{"a": "\xff"}',
    "empty object": b"{}",
    "list": b"[]",
    "null": b"null",
    "nested": nested(1000),
    "deep": b'{"experiment":' * 200 + b"1" + b"}" * 200,
    "half a pair": b'{"experiment": {"name": "\\ud800"}, "fingerprint": "a"}',
    "other kinds": b'{"experiment": [], "fingerprint": 3}',
    "no number": b'{"experiment": ' + b"9" * 5000 + b"}",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_a_record_of_another_form_is_named(tmp_path: Path, content: bytes) -> None:
    run = write(tmp_path / "run", accuracies(0.5))
    (run / "experiment.json").write_bytes(content)
    for reading in (experiment_record.stored_experiment, experiment_record.stored_fingerprint, runs.read):
        with pytest.raises(RunFolderError, match=r"experiment\.json"):
            reading(run)


def test_an_object_is_nested_at_most_a_hundred_deep(tmp_path: Path) -> None:
    for depth in (MOST_DEPTH - 1, MOST_DEPTH + 1):
        (tmp_path / "some.json").write_bytes(b'{"a":' * depth + b"1" + b"}" * depth)
        if depth < MOST_DEPTH:
            assert list(json_object(tmp_path / "some.json", RunFolderError)) == ["a"]
            continue
        with pytest.raises(RunFolderError, match=r"some\.json is damaged: .* nested more than 100 deep"):
            json_object(tmp_path / "some.json", RunFolderError)


@pytest.mark.parametrize("error", [RunFolderError, DataError])
def test_a_file_that_is_none_is_said_once(tmp_path: Path, error: type[RaysimError]) -> None:
    """Also by an error that is a ValueError."""
    for file, said in ((tmp_path / "none.json", "is missing."), (tmp_path, "must be a file, but is a folder.")):
        with pytest.raises(error) as caught:
            json_object(file, error)
        assert str(caught.value) == f"{file} {said}"


@pytest.mark.parametrize("content", [*DAMAGED.values(), b'{"mlflow": 3}'])
def test_other_records_of_another_form_are_named(tmp_path: Path, content: bytes) -> None:
    if content != b"{}":
        (tmp_path / "loggers.json").write_bytes(content)
        with pytest.raises(RunFolderError, match=r"loggers\.json"):
            stored_id(tmp_path, "mlflow")
        with pytest.raises(RunFolderError, match=r"loggers\.json"):
            store_id(tmp_path, "wandb", "id")
    (tmp_path / "sweep.json").write_bytes(content)
    with pytest.raises(RunFolderError, match=r"sweep\.json"):
        stored_sweep(tmp_path)
    (tmp_path / "timeline.json").write_bytes(b"[\n" + content + b",\n" + content + b",\n")
    with pytest.raises(RunFolderError, match=r"timeline\.json"):
        read_timeline(tmp_path / "timeline.json")


@pytest.mark.parametrize("content", [*DAMAGED.values(), b""])
def test_a_lock_says_what_it_can(tmp_path: Path, content: bytes) -> None:
    with lock.locked(tmp_path), pytest.MonkeyPatch.context() as patched:
        patched.setattr(lock, "PATIENCE_S", 0.0)
        (tmp_path / lock.FILE).write_bytes(content)
        with pytest.raises(RunFolderError, match="is being written by another process"):
            lock.check_free(tmp_path)


def test_a_lock_that_is_no_file_is_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / lock.FILE)
    with pytest.raises(RunFolderError, match=r"\.lock must be a file, but is a pipe"), lock.locked(tmp_path):
        pass


def rewritten(file: Path, metadata: dict[str, str | None], change: Callable[[dict[str, Any]], object]) -> None:
    """Change a checkpoint's texts and tensors."""
    with safe_open(file, framework="pt") as opened:
        texts = {**opened.metadata(), **metadata}
        tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    change(tensors)
    texts["checksum"] = sealed.BLANK
    sealed.write(file, save(tensors, {name: text for name, text in texts.items() if text is not None}))


@pytest.mark.parametrize(
    ("metadata", "change", "said"),
    [
        ({"round": None}, lambda tensors: None, "'round' is missing"),
        ({"round": "-5"}, lambda tensors: None, "its number of rounds is '-5'"),
        ({"round": "4"}, lambda tensors: None, "it is that of 4 rounds, under the name of another"),
        ({}, lambda tensors: tensors["weights.params"].fill_(float("nan")), "its parameters are not finite"),
        ({}, lambda tensors: tensors.pop("weights.params"), "'params' is missing"),
        ({}, lambda tensors: tensors.update(odd=torch.zeros(1)), "it has the unknown tensor 'odd'"),
        ({}, lambda tensors: tensors.update({"clients.round": torch.zeros(1)}), "'position' is missing"),
    ],
)
def test_a_checkpoint_that_no_run_wrote_is_passed_over(
    run: Path,
    recorded: Path,
    caplog: pytest.LogCaptureFixture,
    metadata: dict[str, str | None],
    change: Callable[[dict[str, Any]], object],
    said: str,
) -> None:
    rewritten(files.checkpoint_file(run, ROUNDS), metadata, change)
    state = kept_checkpoints.newest_state(run, experiment_record.stored_owner(run))
    assert state is not None
    assert state.round == ROUNDS - 2
    assert f"round-{ROUNDS:06d}.safetensors is damaged" in caplog.text
    assert said in caplog.text


def test_a_checkpoint_of_another_model_is_refused(run: Path) -> None:
    rewritten(
        files.checkpoint_file(run, ROUNDS), {}, lambda tensors: tensors.update({"weights.params": torch.zeros(3)})
    )
    with pytest.raises(CheckpointError, match=r"round-000006\.safetensors must hold 672 values .* holds 3 values"):
        resumed(run)
    with pytest.raises(CheckpointError, match="must hold 672 values"):
        raysim.run(experiment_record.stored_experiment(run), path=run, resume=True, progress=False)


def test_something_else_in_the_place_of_a_part_is_named(run: Path) -> None:
    shutil.rmtree(run / "clients")
    (run / "clients").write_text("")
    with pytest.raises(RunFolderError, match="clients must be a folder"):
        resumed(run)
    (run / "clients").unlink()
    os.mkfifo(files.checkpoint_file(run, 2))
    with pytest.raises(RunFolderError, match=r"round-000002\.safetensors must be a file, but is a pipe"):
        resumed(run)
    files.checkpoint_file(run, 2).unlink()
    assert resumed(run).rounds.num_rows == ROUNDS + 2, "a folder that a copy has lost is made again"


def test_links_in_circles_are_walked_once(tmp_path: Path) -> None:
    write(tmp_path / "all" / "a", accuracies(0.5))
    (tmp_path / "all" / "back").symlink_to("..")
    (tmp_path / "all" / "a" / "again").symlink_to("../../all")
    (tmp_path / "all" / "circle").symlink_to("circle")
    (tmp_path / "all" / "same").symlink_to("a")
    found, _ = runs.read_all([tmp_path / "all"])
    assert len(found) == 1


def test_a_link_to_itself_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(DataError, match="circle"):
        raysim.FederatedDataset.open(tmp_path / "circle")
    with pytest.raises(RunFolderError, match="circle is a symbolic link to circle, which is not there"):
        kept_model.export(tmp_path / "circle", tmp_path / "circle" / "model.safetensors")


READS = """
import resource, sys
from pathlib import Path
from raysim.errors import RunFolderError
from raysim.storage.reading import MOST_BYTES, json_object
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + MOST_BYTES // 2, -1))
print(json_object(Path(sys.argv[1]), RunFolderError))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_small_record_is_read_where_little_memory_is_free(tmp_path: Path) -> None:
    (tmp_path / "record.json").write_text('{"rounds": 3}')
    command = [sys.executable, "-c", READS, str(tmp_path / "record.json")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "{'rounds': 3}\n"


def test_an_index_of_any_size_is_not_read_to_its_end(tmp_path: Path) -> None:
    with (tmp_path / "mirror.json").open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(raysim.RemoteError, match=r"mirror\.json is damaged: expected at most 67,108,864 bytes"):
        Remote(f"file://{tmp_path}").find("mirror.json")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(raysim.RemoteError, match="pipe must be a file, but is a pipe"):
        Remote(f"file://{tmp_path}").find("pipe")


def test_a_sweep_of_other_keys_is_named(tmp_path: Path) -> None:
    sealed_json.write(tmp_path / "sweep.json", {"experiment": {"rounds": "many"}, "values": {}})
    with pytest.raises(raysim.ExperimentError, match=r"sweep\.json cannot be read: .*rounds"):
        stored_sweep(tmp_path)


def test_a_record_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    """Other programs read the first of two values, and Python the last."""
    file = tmp_path / "record.json"
    file.write_text('{"a": {"b": 1, "c": 2, "b": 3}}')
    with pytest.raises(raysim.RunFolderError, match=r"record\.json is damaged: .*it has the key 'b' twice"):
        json_object(file, raysim.RunFolderError)
