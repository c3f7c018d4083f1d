"""The cache: built once per content, replaced when damaged, safe when two build at once."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from raysim.data import DatasetWriter, Field
from raysim.data.cache import open_or_build
from raysim.data.fingerprint import address_digest
from raysim.data.manifest import FORMAT, read_manifest, write_manifest
from raysim.errors import DataError, DiskError, RaysimError
from raysim.storage import disk
from raysim.storage.cache import cache_root


def build(path: Path) -> None:
    with DatasetWriter(path, Field((), "float32"), Field((), "int64"), 2) as writer:
        writer.write("train", "a", np.zeros(3, np.float32), np.array([0, 1, 0]))


def never(path: Path) -> None:
    raise AssertionError("built again")


def entries(cache: Path) -> list[Path]:
    return list((cache / "datasets").iterdir())


def test_the_second_time_is_opened_without_building(cache: Path) -> None:
    first = open_or_build({"source": "a"}, build)
    assert open_or_build({"source": "a"}, never).fingerprint == first.fingerprint
    assert len(entries(cache)) == 1


def test_another_address_is_another_entry(cache: Path) -> None:
    open_or_build({"source": "a", "seed": 0}, build)
    open_or_build({"source": "a", "seed": 1}, build)
    open_or_build({"seed": 0, "source": "a"}, never)  # the order of keys means nothing
    assert len(entries(cache)) == 2


@pytest.mark.parametrize("name", ["dataset.json", "train.arrow", "train.index.arrow"])
def test_a_damaged_entry_is_made_again_with_a_warning(cache: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    open_or_build({"source": "a"}, build)
    [entry] = entries(cache)
    (entry / name).write_bytes(b"x")
    assert open_or_build({"source": "a"}, build).train.sizes().tolist() == [3]
    assert re.search(f"cannot be used and is prepared again: .*{name}", caplog.text)
    assert entries(cache) == [entry]
    open_or_build({"source": "a"}, never)


def test_an_entry_under_another_ones_name_is_made_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_or_build({"seed": 0}, build)
    [first] = entries(cache)

    def build_another(path: Path) -> None:
        with DatasetWriter(path, Field((), "float32"), Field((), "int64"), 2) as writer:
            writer.write("train", "b", np.ones(2, np.float32), np.array([0, 1]))

    open_or_build({"seed": 1}, build_another)
    [second] = [entry for entry in entries(cache) if entry != first]
    shutil.rmtree(first)
    shutil.copytree(second, first)
    assert open_or_build({"seed": 0}, build).train.id_of(0) == "a"
    assert f"{first} must hold what was prepared as {first.name}, but holds {second.name}" in caplog.text


def test_an_entry_that_does_not_say_what_it_is_is_made_again(cache: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_or_build({"seed": 0}, build)
    [entry] = entries(cache)
    write_manifest(entry, read_manifest(entry).model_copy(update={"key": None}))
    open_or_build({"seed": 0}, build)
    assert f"{entry} does not say from what it was prepared: an earlier raysim did that" in caplog.text
    open_or_build({"seed": 0}, never)


def test_of_two_that_build_at_once_one_stays_and_both_are_served(cache: Path) -> None:
    def build_while_another_finishes(path: Path) -> None:
        open_or_build({"source": "a"}, build)
        build(path)

    assert open_or_build({"source": "a"}, build_while_another_finishes).train.sizes().tolist() == [3]
    assert len(entries(cache)) == 1


def refuse_to_rename(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user's entry in a folder that users share, as /tmp is: whoever is not its owner may not rename it."""
    rename = Path.rename

    def refuse(path: Path, target: Path) -> Path:
        if entry in (path, target):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", refuse)


def test_a_damaged_entry_that_cannot_be_replaced_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_or_build({"source": "a"}, build)
    [entry] = entries(cache)
    (entry / "train.arrow").write_bytes(b"x")
    refuse_to_rename(entry, monkeypatch)
    with pytest.raises(DiskError, match=f"{entry} could not be deleted: Operation not permitted"):
        open_or_build({"source": "a"}, build)
    assert entries(cache) == [entry]


def test_an_entry_that_cannot_be_put_at_its_place_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = cache / "datasets" / address_digest({"format": FORMAT, "source": "a"})
    refuse_to_rename(entry, monkeypatch)
    with pytest.raises(DiskError, match=f"{entry} could not be written: Operation not permitted"):
        open_or_build({"source": "a"}, build)
    assert entries(cache) == []


def test_a_dataset_that_cannot_be_written_is_named_by_its_place(cache: Path) -> None:
    def fill(path: Path) -> None:
        with disk.writing(path / "train.arrow"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    entry = cache / "datasets" / address_digest({"format": FORMAT, "source": "a"})
    with pytest.raises(DiskError, match=f"^{entry}/train.arrow could not be written: No space left"):
        open_or_build({"source": "a"}, fill)


@pytest.mark.parametrize(
    ("variable", "below"), [("RAYSIM_CACHE", ""), ("XDG_CACHE_HOME", "/raysim"), ("HOME", "/.cache/raysim")]
)
def test_a_cache_that_cannot_be_written_is_named_by_the_variable_of_its_place(
    variable: str, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    for name in ("RAYSIM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(tmp_path / "file"))
    said = (
        rf"could not be written: Not a directory\. .* It is in raysim's cache, {tmp_path}/file{below}, by the "
        rf"environment variable {variable}; RAYSIM_CACHE names another folder\.$"
    )
    with pytest.raises(DiskError, match=said):
        open_or_build({"source": "a"}, build)


def test_a_failed_build_leaves_nothing(cache: Path) -> None:
    def fail(path: Path) -> None:
        build(path)
        raise DataError("no such file")

    with pytest.raises(DataError, match="no such file"):
        open_or_build({"source": "a"}, fail)
    assert entries(cache) == []


def test_the_root_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_root() == tmp_path / "own"
    monkeypatch.delenv("RAYSIM_CACHE")
    assert cache_root() == tmp_path / "xdg" / "raysim"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache" / "raysim"


@pytest.mark.parametrize("variable", ["RAYSIM_CACHE", "XDG_CACHE_HOME"])
def test_a_folder_whose_name_is_no_text_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSIM_CACHE", raising=False)
    monkeypatch.setenv(variable, "caf\udce9")
    with pytest.raises(RaysimError, match=f"variable {variable} is 'caf.udce9', which UTF-8 cannot hold"):
        cache_root()


@pytest.mark.parametrize("variable", ["RAYSIM_CACHE", "XDG_CACHE_HOME"])
def test_the_folder_of_an_unknown_user_is_named(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYSIM_CACHE", raising=False)
    monkeypatch.setenv(variable, "~nosuchuser/x")
    with pytest.raises(
        RaysimError, match=f"variable {variable} is '~nosuchuser/x', but this machine knows no such user"
    ):
        cache_root()
