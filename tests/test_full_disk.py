"""A full disk, and a run's folder that is gone: which file, how much room is missing, and how to go on; said once.

/dev/full takes no byte, as a full disk does: what is written goes there, by a link in the place of the file.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import raysim
from raysim.data import DatasetWriter, FederatedDataset, Field, split_writer
from raysim.errors import CheckpointError, DiskError, RaysimError, RunFolderError
from raysim.experiment.pictures import ReportSection
from raysim.report import build, curve, picture_files
from raysim.report.gallery import gallery
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import Drawn
from raysim.run_folder import experiment_record, files, round_table
from raysim.run_folder.branch import branch
from raysim.storage import atomic, disk
from tests.support import command

Make = Callable[..., raysim.Experiment]
Fill = Callable[[Callable[[Path], bool]], None]

NO_ROOM = r"could not be written: No space left on device: .*[\d.]+ (bytes|kB|MB|GB) are free"

pytestmark = pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """A function that lets the disk be full for the files that it is asked about."""
    usual = atomic.beside

    def filled(chosen: Callable[[Path], bool]) -> None:
        def beside(path: Path) -> Path:
            aside = usual(path)
            if chosen(path):
                aside.symlink_to("/dev/full")
            return aside

        monkeypatch.setattr(atomic, "beside", beside)

    return filled


SCAFFOLD: dict[str, Any] = {
    "client": {"optimizer": {"lr": 0.1}, "batch_size": 4, "correction": {"name": "scaffold"}},
    "evaluation": {"every": 1},
    "checkpoint": {"every": 1},
}

FILES: dict[str, tuple[str, str]] = {
    "experiment": ("experiment.json", "do it again"),
    "rows": ("rounds.parquet", "Earlier checkpoints are untouched: make room, then resume"),
    "clients": ("round-000001.parquet", "Earlier checkpoints are untouched: make room, then resume"),
    "checkpoint": ("round-000002.safetensors", "Earlier checkpoints are untouched: make room, then resume"),
    "client states": ("round-000001-chunk-00000.npy", "Earlier checkpoints are untouched: make room, then resume"),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_run_on_a_full_disk(
    kind: str, tmp_path: Path, dataset: FederatedDataset, experiment: Make, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And with room again it goes on to the same bits."""
    name, then = FILES[kind]
    exp = experiment(**SCAFFOLD)
    fill(lambda path: path.name == name)
    with pytest.raises((CheckpointError, DiskError), match=NO_ROOM) as caught:
        list(raysim.rounds(exp, dataset=dataset, path=tmp_path / "run"))
    assert f"/{name} could not be written" in str(caught.value)
    assert then in str(caught.value)
    assert caught.value.__context__ is None or not isinstance(caught.value.__context__, CheckpointError)
    fill(lambda path: False)
    *_, last = raysim.rounds(exp, dataset=dataset)
    whole = last.params
    resumable = kind != "experiment"
    resumed = raysim.run(exp, dataset=dataset, path=tmp_path / "run", resume=resumable, overwrite=not resumable).params
    assert all(np.array_equal(resumed[each], whole[each]) for each in whole)


def test_a_checkpoint_says_how_large_it_is(
    tmp_path: Path, dataset: FederatedDataset, experiment: Make, fill: Fill
) -> None:
    said = r"No space left on device: [\d.]+ kB are needed, and [\d.]+ .B are free"
    fill(lambda path: path.suffix == ".safetensors")
    with pytest.raises(CheckpointError, match=said):
        list(raysim.rounds(experiment(rounds=1), dataset=dataset, path=tmp_path / "run"))


@pytest.mark.pictures
def test_the_picture_of_a_run_is_a_warning(
    tmp_path: Path, dataset: FederatedDataset, experiment: Make, fill: Fill, caplog: pytest.LogCaptureFixture
) -> None:
    list(raysim.rounds(experiment(rounds=2), dataset=dataset, path=tmp_path / "run"))
    fill(lambda path: path.name == "curve.png")
    with caplog.at_level(logging.WARNING, "raysim"):
        curve.of_run(tmp_path / "run", experiment())
    assert caplog.text.count("could not be written") == 1
    assert "curve.png could not be written: No space left on device" in caplog.text


@pytest.mark.parametrize("kind", ["page", "figure"])
def test_a_page(
    kind: str, tmp_path: Path, dataset: FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the file's place, and not the folder in which it is made."""
    list(raysim.rounds(experiment(rounds=2), dataset=dataset, path=tmp_path / "run"))
    # All figures take long.
    monkeypatch.setattr(build, "kinds", lambda *asked: gallery.kinds(*asked)[:1])
    name = r"index\.html"
    if kind == "page":
        failing("open", "index.html", errno.ENOSPC, monkeypatch)
    else:
        written = picture_files.write

        def onto_a_full_disk(figure: Figure, drawn: Drawn, places: Mapping[str, Path]) -> None:
            places["png"].symlink_to("/dev/full")
            written(figure, drawn, places)

        monkeypatch.setattr(picture_files, "write", onto_a_full_disk)
        name = r"figures/[\w-]+\.png"
    with pytest.raises(DiskError, match=rf"^{tmp_path}/page/{name} {NO_ROOM}.*First make room"):
        build.build([tmp_path / "run"], tmp_path / "page")


@pytest.mark.parametrize("way", ["save", "redraw"])
def test_a_picture_that_is_drawn_again_stays_whole(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read while it is written, or after a kill, is the old table or the new one, and no part of one."""
    draw, report = getattr(picture_files, way), ReportSection(formats=("svg",))
    draw(Figure("tuners", "", "", pa.table({"regret": [0.25, 0.5]}), lambda axes: None), tmp_path, report)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    assert tmp_path / "tuners.csv" in before

    def half(_: pa.Table, file: Path) -> None:
        file.write_text('"regret"\n0.125')
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pyarrow.csv.write_csv", half)
    with pytest.raises(DiskError, match=rf"^{tmp_path}/tuners\.csv {NO_ROOM}"):
        draw(Figure("tuners", "", "", pa.table({"regret": [0.125, 0.75]}), lambda axes: None), tmp_path, report)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


@pytest.mark.parametrize("rows", [1, 1000])
def test_a_dataset(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While rows are written, and when what is left is written at the end."""
    link = tmp_path / "full"
    link.symlink_to("/dev/full")
    monkeypatch.setattr(split_writer, "data_file", lambda split: str(link))
    x = np.zeros((rows, 100), np.float32)
    writer = DatasetWriter(tmp_path / "data", Field((100,), "float32"), Field((), "int64"), 3, batch_bytes=2**16)
    with pytest.raises(DiskError, match=rf"/data {NO_ROOM}.*Nothing of it was kept"), writer:
        writer.write("train", "a", x, np.zeros(rows, np.int64))
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


STEPS: dict[str, Callable[[Path], object]] = {"deleted": shutil.rmtree, "moved": lambda run: run.rename(f"{run}-moved")}


@pytest.mark.parametrize("every", [1, 100])
@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("how", STEPS)
def test_a_run_whose_folder_is_gone(
    how: str, corrected: bool, every: int, tmp_path: Path, dataset: FederatedDataset, experiment: Make
) -> None:
    """It ends with one error, and makes no folder."""
    run = tmp_path / "run"
    exp = experiment(**(SCAFFOLD if corrected else {}) | {"checkpoint": {"every": every}})
    rounds = raysim.rounds(exp, dataset=dataset, path=run)
    next(rounds), next(rounds)
    STEPS[how](run)
    with pytest.raises(RunFolderError, match="run was deleted or moved while the run wrote to it") as caught:
        list(rounds)
    assert not run.exists()
    assert not isinstance(caught.value.__context__, RunFolderError)
    if how == "moved":
        assert round_table.read_rounds(tmp_path / "run-moved").num_rows <= 2


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_whose_record_is_gone(every: int, tmp_path: Path, dataset: FederatedDataset, experiment: Make) -> None:
    """It ends with one error, and goes on where the record is put back."""
    run = tmp_path / "run"
    rounds = raysim.rounds(experiment(checkpoint={"every": every}), dataset=dataset, path=run)
    next(rounds), next(rounds)
    record = (run / files.RECORD).read_bytes()
    (run / files.RECORD).unlink()
    with pytest.raises(RunFolderError, match=r"run/experiment\.json was deleted while the run wrote") as caught:
        list(rounds)
    assert not isinstance(caught.value.__context__, RunFolderError)
    (run / files.RECORD).write_bytes(record)
    assert raysim.resume(run, dataset=dataset, progress=False).rounds.num_rows == 4


def test_errors_of_the_network_and_of_the_block_pass(tmp_path: Path) -> None:
    class Mine(RaysimError):
        pass

    for error in (ConnectionResetError(errno.ECONNRESET, "reset"), TimeoutError(errno.ETIMEDOUT, "late"), Mine("no")):
        with pytest.raises(type(error)) as caught, disk.writing(tmp_path / "file"):
            raise error
        assert caught.value is error


def test_other_errors_have_their_reason_and_no_room(tmp_path: Path) -> None:
    said = r"file could not be written: Read-only file system\. Look\."
    with pytest.raises(DiskError, match=said), disk.writing(tmp_path / "file", 10, then="Look."):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def failing(method: str, name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the method of `Path` fail for files and folders of a name."""
    usual = getattr(Path, method)

    def other(self: Path, *arguments: Any, **keys: Any) -> Any:
        if self.name == name:
            raise OSError(number, os.strerror(number))
        return usual(self, *arguments, **keys)

    monkeypatch.setattr(Path, method, other)


def test_a_file_that_cannot_be_deleted_is_named(
    experiment: Make, dataset: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = experiment(checkpoint={"every": 1, "keep": 1})
    with monkeypatch.context() as patch:
        failing("unlink", "round-000001.safetensors", errno.EIO, patch)
        with pytest.raises(
            CheckpointError, match=r"round-000001\.safetensors could not be deleted: Input.* Delete it, or"
        ):
            raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    raysim.resume(tmp_path / "run", dataset=dataset)
    assert os.listdir(tmp_path / "run" / "checkpoints") == ["round-000004.safetensors"]


def test_a_record_that_cannot_be_flushed_and_a_folder_that_cannot_be_made_are_named(
    experiment: Make, dataset: FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exp = experiment(rounds=1)
    raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    failing("mkdir", "clients", errno.ENOSPC, monkeypatch)
    with pytest.raises(DiskError, match=NO_ROOM):
        branch(tmp_path / "run", tmp_path / "other", exp, "fingerprint")

    def full(folder: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(atomic, "sync_folder", full)
    with pytest.raises(DiskError, match=rf"experiment\.json {NO_ROOM}"):
        experiment_record.write_experiment(tmp_path, exp, "fingerprint")


def test_the_file_of_a_folder_that_cannot_be_deleted_is_named(tmp_path: Path) -> None:
    said = r"^inner could not be deleted: Permission denied\. Delete it, or"
    with pytest.raises(DiskError, match=said), disk.deleting(tmp_path):
        raise PermissionError(errno.EACCES, "Permission denied", "inner")


DELETES = """
import os, pathlib, sys
from raysim.errors import DiskError
from raysim.run_folder import beginning
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    beginning.clear(pathlib.Path("run"))
except DiskError as error:
    print(error)
"""


@pytest.mark.parametrize(("locked", "mode"), [("clients", 0), ("clients/inner", 0), ("clients/inner", 0o555)])
def test_a_folder_that_may_not_be_emptied_stays_and_is_named(locked: str, mode: int, tmp_path: Path) -> None:
    """It was moved aside before it was looked into, and the error named it by its place there."""
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    inner = tmp_path / "run" / "clients" / "inner"
    inner.mkdir(parents=True)
    (inner / "part").write_text("rows")
    if os.geteuid() == 0:
        for path in (tmp_path, *tmp_path.rglob("*")):
            os.chown(path, 65534, 65534)
    (tmp_path / "run" / locked).chmod(mode)
    done = command.python("-c", DELETES, str(tmp_path))
    (tmp_path / "run" / locked).chmod(0o755)
    assert done.stdout.startswith(f"run/{locked} could not be deleted: Permission denied."), done.stderr
    assert sorted(os.listdir(tmp_path / "run")) == ["checkpoints", "clients"]
    assert (inner / "part").read_text() == "rows"
