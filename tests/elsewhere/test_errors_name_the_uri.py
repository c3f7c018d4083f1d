"""An error or a warning of a folder at a URI names the URI that the user gave, and then this machine's copy."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import raysim
from raysim.engine.on_ray.driver import watched_driver
from raysim.engine.rounds.opening import Opening
from raysim.errors import DiskError, RaysimError, RemoteError, RunFolderError
from raysim.report import groups, runs
from raysim.storage import atomic, disk
from raysim.storage.remote import folder
from raysim.storage.remote.folder import local_copy, put_meanwhile, read_only_copy
from raysim.storage.remote.mirror import Mirror

Make = Callable[..., raysim.Experiment]
Open = Callable[[str], AbstractContextManager[Path]]


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "machine"))
    return (tmp_path / "there").as_uri()


@pytest.fixture
def damaged(uri: str, experiment: Make, dataset: raysim.FederatedDataset) -> str:
    """The URI of a run whose rows are damaged in the copy."""
    raysim.run(experiment(), dataset=dataset, path=uri)
    copy = Mirror.of(uri)
    with copy.changing():
        atomic.write_text(copy.path / "rounds.parquet", "damaged")
    return uri


def of_full_disk(path: Path) -> None:
    with disk.writing(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def in_copy(opened: Open, uri: str) -> None:
    with opened(uri) as where:
        of_full_disk(where / "checkpoints" / "round-1")


def write_rows(uri: str) -> None:
    with local_copy(uri) as where:
        where.mkdir(exist_ok=True)
        atomic.write_text(where / "rows", "1")


@pytest.mark.parametrize("opened", [local_copy, read_only_copy])
def test_of_a_full_disk(opened: Open, uri: str) -> None:
    with pytest.raises(DiskError) as caught:
        in_copy(opened, uri)
    text = str(caught.value)
    assert text.startswith(f"{uri}/checkpoints/round-1 could not be written: No space left on device: ")
    assert text.endswith(f" First make room, then do it again. This machine's copy of it is {Mirror.of(uri).path}.")
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize(
    "call",
    [
        lambda uri, dataset: raysim.read(uri),
        lambda uri, dataset: raysim.resume(uri, dataset=dataset),
        lambda uri, dataset: raysim.replay(uri, 0, dataset=dataset),
    ],
    ids=["read", "resume", "replay"],
)
def test_of_what_is_damaged(
    call: Callable[[str, raysim.FederatedDataset], object], damaged: str, dataset: raysim.FederatedDataset
) -> None:
    with pytest.raises(RaysimError, match=rf"^{damaged}/rounds\.parquet is damaged") as caught:
        call(damaged, dataset)
    copy = str(Mirror.of(damaged).path)
    assert str(caught.value).count(copy) == 1
    assert str(caught.value).endswith(f" This machine's copy of it is {copy}.")


def test_of_one_folder_that_is_opened_twice(uri: str) -> None:
    with pytest.raises(DiskError) as caught, read_only_copy(uri), local_copy(uri) as where:
        of_full_disk(where / "rows")
    assert str(caught.value).count(uri) == 1
    assert str(caught.value).count("This machine's copy") == 1


def test_of_a_copy_behind_a_link(uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "machine").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "machine")
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "linked"))
    with pytest.raises(DiskError, match=rf"^{uri}/rows could not"), read_only_copy(uri) as where:
        of_full_disk(where.resolve() / "rows")


def test_of_the_record_beside_the_copy(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(uri)
    home = Mirror.of(uri).path.parent
    write = atomic.write

    def of_full_disk_if_flushed(file: Path, fill: Callable[[Path], object], flushed: bool = False) -> None:
        if flushed:
            of_full_disk(file)
        write(file, fill)

    monkeypatch.setattr(atomic, "write", of_full_disk_if_flushed)
    with pytest.raises(DiskError, match=rf"^{uri}: {home}/mirror\.json could not be written: No space"):
        in_copy(local_copy, uri)


def test_where_there_can_be_no_copy(uri: str, tmp_path: Path) -> None:
    (tmp_path / "machine").write_text("no folder")
    with pytest.raises(DiskError, match=rf"^{uri}: {tmp_path}/machine/\S+ could not be written: Not a directory"):
        in_copy(read_only_copy, uri)


def test_errors_of_the_mirror_name_what_they_name(uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "PAUSES_S", ())

    def refuse(self: Mirror) -> int:
        raise RemoteError("nothing answers")

    monkeypatch.setattr(Mirror, "push", refuse)
    said = rf"is behind by 1 file .*Nothing is lost: the whole folder is {Mirror.of(uri).path} on this machine"
    with pytest.raises(RemoteError, match=said) as caught:
        write_rows(uri)
    assert "This machine's copy" not in str(caught.value)


def test_what_a_report_leaves_out_is_named_by_the_uri(damaged: str) -> None:
    _, (note,) = runs.read_all([Path(damaged)])
    copy = Mirror.of(damaged).path
    assert note.startswith(f"The rounds of {damaged} are left out: {damaged}/rounds.parquet is damaged")
    assert note.endswith(f" This machine's copy of it is {copy}.")
    atomic.write_text(copy / "experiment.json", "damaged")
    with pytest.raises(
        RunFolderError, match=rf"{damaged} is left out: {damaged}/experiment\.json is damaged.* {copy}\.$"
    ):
        runs.read_all([Path(damaged)])


def test_a_warning_of_a_damaged_checkpoint(
    uri: str, experiment: Make, dataset: raysim.FederatedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    exp = experiment(checkpoint={"every": 1, "keep": 4})
    raysim.run(exp, dataset=dataset, path=uri)
    copy = Mirror.of(uri)
    newest = max((copy.path / "checkpoints").glob("*.safetensors"))
    with copy.changing():
        newest.write_bytes(b"damaged")
    raysim.resume(uri, dataset=dataset)
    (said,) = {text for text in caplog.messages if newest.name in text}
    assert said.startswith(f"{uri}/checkpoints/{newest.name}")
    assert said.endswith(f" This machine's copy of it is {copy.path}.")


def test_a_warning_beside_the_rounds(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    write_rows(uri)
    copy = Mirror.of(uri).path
    with put_meanwhile(copy):
        folder.log.warning("%s/rows is odd", copy)
    folder.log.warning("%s/rows is odd", copy)
    assert caplog.messages == [f"{uri}/rows is odd. This machine's copy of it is {copy}.", f"{copy}/rows is odd"]


def test_a_warning_of_the_mirror_names_the_copy(uri: str, caplog: pytest.LogCaptureFixture) -> None:
    write_rows(uri)
    copy = Mirror.of(uri).path
    (copy / "rows").write_text("2, by hand")
    with read_only_copy(uri):
        pass
    assert f"it is now {copy}.aside-" in caplog.text


def test_what_a_report_says_of_a_run_names_it_by_the_uri(
    uri: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    for finished in raysim.rounds(experiment(), dataset=dataset, path=uri):
        if finished.index == 1:
            break
    _, (note,) = runs.read_all([Path(uri)])
    assert note.startswith(f"{uri} has finished 2 of 4 rounds")
    assert str(Mirror.of(uri).path) not in note


def test_runs_that_are_the_same_are_named_by_the_uri(
    uri: str, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    for path in (uri, tmp_path / "here"):
        raysim.run(experiment(), dataset=dataset, path=path, progress=False)
    found, _ = runs.read_all([Path(uri), tmp_path / "here"])
    _, (note,) = groups.group_runs(found)
    assert note == f"{tmp_path / 'here'} has the settings and seeds of {uri}, so it is not counted again."


@pytest.mark.parametrize("step", ["start", "next", "close"])
def test_of_a_run_that_is_followed(
    step: str, uri: str, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    raysim.run(experiment(), dataset=dataset, path=uri, progress=False)
    copy = Mirror.of(uri).path
    weights = SimpleNamespace(to_named=lambda stated: {})
    steps: dict[str, Callable[..., object]] = dict.fromkeys(("start", "open", "next", "close"), lambda **_: None)
    steps[step] = lambda: of_full_disk(copy / "rows")
    driver = SimpleNamespace(**steps, workers=(), stopped=None, weights=weights, folder=SimpleNamespace(rows=[]))
    monkeypatch.setattr(watched_driver, "Driver", lambda *arguments: driver)
    sent: Any = SimpleNamespace(plan=SimpleNamespace(experiment=experiment(), stated={}))
    nothing: Any = None
    made = watched_driver.WatchedDriver(sent, nothing, None, Opening(copy), lambda path, experiment: None, None)
    with pytest.raises(DiskError, match=rf"^{uri}/rows .* This machine's copy of it is {copy}\.$"):
        all(made.watch("running", 0, 0).stage != "done" for _ in iter(int, 1))
    with Mirror.of(uri).changing():
        atomic.write_text(copy / "rounds.parquet", "damaged")
    with pytest.raises(RunFolderError, match=rf"^{uri}/rounds.parquet"):
        made.remains()
