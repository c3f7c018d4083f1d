"""A folder that may not be read has a sentence; a path that begins with "~" is in the home. Runs, and the cache."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import raysim
import tuning
from raysim.data import DatasetWriter, Field
from raysim.data.cache import open_or_build
from raysim.errors import CheckpointError, DiskError, RunFolderError
from raysim.storage import disk, parquet, sealed_parquet
from raysim.storage.scratch import scratch_folder
from raysim.testing import federation

Make = Callable[..., raysim.Experiment]

SCAFFOLD = {"client": {"correction": {"name": "scaffold"}, "optimizer": {"lr": 0.1}}}


def denied(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Refuse to list a folder; the user who runs the tests may be one to whom nothing is refused."""
    before = Path.iterdir

    def iterdir(self: Path) -> Iterator[Path]:
        if self == folder:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(self))
        return before(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)


@pytest.mark.parametrize("name", ["checkpoints", "clients", "client_state"])
def test_a_part_of_a_run_that_cannot_be_listed_is_named(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(**SCAFFOLD), dataset=dataset, path=path, progress=False)
    denied(monkeypatch, path / name)
    with pytest.raises((RunFolderError, CheckpointError), match=f"{name} cannot be read: Permission denied"):
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)


DENIED = "cannot be read: Permission denied to this user, who needs the right to read it"
NO_MORE = "cannot be read: Too many open files in this process: raise their limit (ulimit -n)"
REASONS = {errno.EACCES: DENIED, errno.EMFILE: NO_MORE}


def closed(monkeypatch: pytest.MonkeyPatch, file: Path, asked_too: bool = False, number: int = errno.EACCES) -> None:
    """Refuse to open a file, and where it is a state's or `asked_too`, to ask for it; see `denied`."""
    opened, asked = os.open, Path.stat

    def refuse(name: object) -> None:
        if str(name) == str(file):
            raise OSError(number, os.strerror(number), str(file))

    def os_open(name: Any, *arguments: Any, **others: Any) -> int:
        refuse(name)
        return opened(name, *arguments, **others)

    def stat(self: Path, **arguments: Any) -> os.stat_result:
        if self.suffix == ".npy" or asked_too:
            refuse(self)
        return asked(self, **arguments)

    monkeypatch.setattr(os, "open", os_open)
    monkeypatch.setattr(Path, "stat", stat)


@pytest.mark.parametrize("number", REASONS)
@pytest.mark.parametrize("name", ["experiment.json", "rounds.parquet", "clients/round-000001.parquet"])
def test_a_file_that_may_not_be_read_is_not_called_damaged(
    name: str,
    number: int,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(evaluation={"every": 2}), dataset=dataset, path=path, progress=False)
    closed(monkeypatch, path / name, number=number)
    with pytest.raises(RunFolderError) as refused:
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)
    assert str(refused.value) == f"{path / name} {REASONS[number]}."


def test_a_checkpoint_that_may_not_be_read_is_gone_before_with_a_warning(
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / "run"
    exp = experiment(checkpoint={"every": 1, "keep": 2})
    raysim.run(exp, dataset=dataset, path=path, progress=False)
    newest = max((path / "checkpoints").iterdir())
    closed(monkeypatch, newest)
    raysim.export(path, tmp_path / "model.safetensors", dataset=dataset)
    assert f"{newest} {DENIED}. raysim goes on from the checkpoint before it" in caplog.text


@pytest.mark.parametrize(("number", "asked"), [(errno.EACCES, False), (errno.EACCES, True), (errno.EMFILE, False)])
@pytest.mark.parametrize(("kept", "place"), [(1, 0), (2, 0), (2, 1)])
def test_where_a_checkpoint_may_not_be_read_none_is_to_be_deleted(
    kept: int,
    place: int,
    number: int,
    asked: bool,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Others beside it are damaged."""
    path = tmp_path / "run"
    raysim.run(experiment(checkpoint={"every": 1, "keep": kept}), dataset=dataset, path=path, progress=False)
    files = sorted((path / "checkpoints").iterdir())
    for file in files:
        if file != files[place]:
            file.write_bytes(b"nothing")
    closed(monkeypatch, files[place], asked, number)
    with pytest.raises(CheckpointError) as refused:
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)
    why = f"{files[place]} {REASONS[number]}"
    assert str(refused.value) == f"No checkpoint in {path / 'checkpoints'} can be read: {why}."


@pytest.mark.parametrize("number", REASONS)
def test_the_states_of_a_checkpoint_that_may_not_be_read_stay(
    number: int, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run"
    raysim.run(
        experiment(**SCAFFOLD | {"checkpoint": {"every": 2, "keep": 4}}), dataset=dataset, path=path, progress=False
    )
    older = min((path / "checkpoints").iterdir())
    with pytest.MonkeyPatch.context() as patch:
        closed(patch, older, number=number)
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)
    assert caplog.text.count("No file of client states is deleted") == 1
    for later in (path / "checkpoints").iterdir():
        if later != older:
            later.unlink()
    assert raysim.resume(path, rounds=6, dataset=dataset, progress=False).rounds.num_rows == 6


@pytest.mark.parametrize("number", REASONS)
def test_a_state_that_may_not_be_read_is_not_to_be_deleted(
    number: int,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Make,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(**SCAFFOLD), dataset=dataset, path=path, progress=False)
    file = max((path / "client_state").iterdir())
    closed(monkeypatch, file, number=number)
    with pytest.raises(CheckpointError) as refused:
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)
    assert f"{file} {REASONS[number]}" in str(refused.value)
    assert "delete" not in str(refused.value)


@pytest.mark.parametrize("name", ["checkpoints", "clients"])
def test_a_link_that_leads_nowhere_is_no_empty_folder(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(), dataset=dataset, path=path, progress=False)
    (path / name).rename(tmp_path / "moved")
    (path / name).symlink_to(tmp_path / "nowhere")
    said = rf"^\S*{name} cannot be read: it is a symbolic link to \S*nowhere, where nothing is\.$"
    with pytest.raises(RunFolderError, match=said):
        raysim.read(path)
    with pytest.raises(RunFolderError, match=rf"{said}|leads to \S*nowhere by a symbolic link"):
        raysim.resume(path, rounds=6, dataset=dataset, progress=False)
    assert not (tmp_path / "nowhere").exists()


def test_a_run_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(RunFolderError, match="cannot be a run's folder: Permission denied"):
        raysim.read(tmp_path)


def test_a_cache_out_of_reach_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exists(self: Path) -> bool:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path))
    monkeypatch.setattr(Path, "exists", exists)
    with pytest.raises(DiskError, match=r"cannot be looked for: Permission denied.*RAYSIM_CACHE"):
        open_or_build({}, lambda _: None)


@pytest.mark.parametrize(
    ("number", "said"),
    [(errno.ENOSPC, "First make room"), (errno.EACCES, "First allow writing there"), (errno.EIO, "First see to that")],
)
def test_only_a_full_disk_lacks_room(number: int, said: str, tmp_path: Path) -> None:
    with pytest.raises(DiskError, match=f"{said}, then do it again"), disk.writing(tmp_path / "file"):
        raise OSError(number, os.strerror(number))


def test_a_temporary_folder_that_cannot_be_made_is_an_error_of_raysims(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    with pytest.raises(DiskError, match=r"No such file or directory.*Set TMPDIR"):
        next(raysim.rounds(experiment(**SCAFFOLD), dataset=dataset))


def test_a_temporary_folder_is_removed(tmp_path: Path) -> None:
    with scratch_folder() as folder:
        (folder / "file").touch()
    assert not folder.exists()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home, beside the working folder."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def test_a_tilde_is_the_home(home: Path, dataset: raysim.FederatedDataset, experiment: Make) -> None:
    result = raysim.run(experiment(), dataset=dataset, path="~/run", progress=False)
    assert result.path == home / "run"
    assert not Path("~").exists()
    assert raysim.read("~/run").rounds.num_rows == 4


def test_a_table_in_a_folder_that_is_called_so_is_not_the_homes(home: Path) -> None:
    there, named = home / "table.parquet", Path("~/table.parquet")
    named.parent.mkdir()

    sealed_parquet.write(pa.table({"x": [1]}), there, "of the home")
    sealed_parquet.write(pa.table({"x": [2]}), named, "of the folder")
    assert parquet.read(named, RunFolderError)["x"].to_pylist() == [2]
    assert sealed_parquet.owner(named) == "of the folder"


@pytest.mark.parametrize("client", [{}, SCAFFOLD])
def test_a_script_that_changes_its_working_folder_takes_no_run_away(
    client: dict[str, dict[str, object]], home: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    at = Path.cwd()
    result = raysim.run(
        experiment(**client), dataset=dataset, path="run", loggers=[lambda _: os.chdir(home)], progress=False
    )
    assert result.path == Path("run")
    assert result.rounds.num_rows == raysim.read(at / "run").rounds.num_rows == 4
    os.chdir(at)
    for _ in raysim.rounds(experiment(**client), dataset=dataset, path="stepped"):
        os.chdir(home)
    assert raysim.read(at / "stepped").rounds.num_rows == 4
    assert not any(home.iterdir())


KEYS = {"rounds": 2, "evaluation": {"every": 1}}
TUNED = {
    "tuning": {
        "space": {"client.optimizer.lr": {"log": [0.01, 0.1]}},
        "trials": 2,
        "evolution": {"members": 2, "every": 1},
    }
}


def test_a_script_that_changes_its_working_folder_takes_no_runs_away(
    home: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    at, away = Path.cwd(), home.parent / "away"
    away.mkdir()
    with raysim.Runs(experiment(), dataset=dataset) as runs:
        runs.start([(experiment(**KEYS, seed=seed), f"{seed}") for seed in range(2)])
        for report in runs.reports():
            assert (report.path in (Path("0"), Path("1")), report.error) == (True, None)
            os.chdir(away)
    assert [raysim.read(at / name).rounds.num_rows for name in "01"] == [2, 2]
    assert not any(away.iterdir())


def test_a_script_that_changes_its_working_folder_takes_no_series_away(
    home: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    at, away = Path.cwd(), home.parent / "away"
    away.mkdir()
    parts: Any = {"dataset": dataset, "loggers": [lambda _: os.chdir(away)], "progress": False}
    trials = raysim.run_trials(experiment(**KEYS, trials=2), path="trials", **parts)
    assert [result.path for result in trials.trials] == [Path("trials/trial-0"), Path("trials/trial-1")]
    assert (at / "trials" / "summary.parquet").exists()
    os.chdir(at)
    # Runs with unequal workers go one after the other, the trials side by side.
    sweep = raysim.run_sweep(experiment(**KEYS), {"engine.cpus_per_worker": [1, 2]}, path="sweep", **parts)
    assert [point.path for point in sweep.points] == [Path(f"sweep/engine.cpus_per_worker={n}") for n in (1, 2)]
    assert (at / "sweep" / "sweep.parquet").exists()
    assert not any(away.iterdir())


def test_a_part_that_changes_the_working_folder_takes_no_study_away(home: Path) -> None:
    at, away = Path.cwd(), home.parent / "away"
    away.mkdir()

    def model() -> nn.Module:
        os.chdir(away)
        return federation.plain()

    parts: Any = {"dataset": federation.dataset(), "model": model, "progress": False}
    study = tuning.tune(federation.experiment({**KEYS, **TUNED}), path="study", **parts)
    assert (study.path, (at / study.path / "best.toml").exists()) == (Path("study"), True)
    os.chdir(at)
    found = tuning.evolve(federation.experiment({**KEYS, **TUNED}), path="members", **parts)
    assert raysim.read(at / found.model).rounds.num_rows == 2
    assert not any(away.iterdir())


@pytest.mark.parametrize("name", ["link", "link/run"])
def test_a_link_that_leads_nowhere_is_named(
    name: str, home: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    Path("link").symlink_to("nowhere")
    parts: Any = {"dataset": federation.dataset(), "model": federation.plain}
    runs = raysim.Runs(experiment(), dataset=dataset)
    calls: list[Callable[[], object]] = [
        lambda: raysim.run(experiment(), dataset=dataset, path=name),
        lambda: raysim.resume(name, dataset=dataset),
        lambda: raysim.read(name),
        lambda: runs.start([(experiment(), name)]),
        lambda: tuning.tune(federation.experiment({**KEYS, **TUNED}), path=name, **parts),
        lambda: tuning.evolve(federation.experiment({**KEYS, **TUNED}), path=name, **parts),
    ]
    for call in calls:
        with pytest.raises(RunFolderError, match=r"be .*: link is a symbolic link to nowhere, which is not there"):
            call()
    runs.close()
    assert [each.name for each in Path.cwd().iterdir()] == ["link"]


def test_a_working_folder_whose_name_is_no_text_is_told_before_the_first_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run trained, and its rounds.parquet was then called damaged."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(RunFolderError, match=r"caf.udce9/run' cannot be a run's folder: UTF-8 cannot hold its name"):
        raysim.resume("run")
    assert not list(folder.iterdir())


def test_a_dataset_whose_path_is_no_text_is_not_called_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "caf\udce9"
    with DatasetWriter(folder, Field((2,), "float32"), Field((), "int64"), 2) as writer:
        writer.write("train", "a", np.ones((2, 2), np.float32), np.array([0, 1]))
    with pytest.raises(raysim.DataError, match="cannot be read: UTF-8 cannot hold its path"):
        raysim.FederatedDataset.open(folder)
