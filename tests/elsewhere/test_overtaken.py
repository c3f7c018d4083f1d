"""A copy that a process changes is not replaced under it: what it puts is compared with what its content came from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.errors import RemoteError
from raysim.storage import atomic
from raysim.storage.remote.folder import local_copy, read_only_copy
from raysim.storage.remote.mirror import Mirror

Machine = Callable[[str], None]


@pytest.fixture
def uri(tmp_path: Path) -> str:
    return (tmp_path / "there").as_uri()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Go on as a machine of that name, whose disk holds what it held before."""
    return lambda name: monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / name))


def rows(folder: Path) -> str:
    return (folder / "rows").read_text()


def write(uri: str, *texts: str, then: Callable[[Path], None] = lambda where: None) -> None:
    """Write each text after what `then` does, but the first before."""
    with local_copy(uri) as where:
        where.mkdir(exist_ok=True)
        for number, text in enumerate(texts):
            if number:
                then(where)
            atomic.write_text(where / "rows", text)


def read(uri: str) -> str:
    with read_only_copy(uri) as where:
        return rows(where)


def refuse_to_read(uri: str, where: Path) -> None:
    kept = rows(where)
    for _ in range(2):
        with pytest.raises(RemoteError, match=rf"a process of this machine changes its own copy, {where}:"):
            read(uri)
        assert rows(where) == kept


def test_a_reader_takes_nothing_anew_under_an_overtaken_writer(uri: str, machine: Machine, tmp_path: Path) -> None:
    def overtake(where: Path) -> None:
        machine("two")
        write(uri, "1b")
        machine("one")
        refuse_to_read(uri, where)

    machine("one")
    write(uri, "1")
    with pytest.raises(RemoteError, match="was changed by another machine meanwhile"):
        write(uri, "12", "123", then=overtake)
    assert rows(tmp_path / "there") == "1b"
    # And now that nothing changes it, the copy is set aside.
    assert read(uri) == "1b"
    (aside,) = tmp_path.glob("one/mirrors/*/*.aside-*")
    assert rows(aside) == "123"


def test_nothing_is_taken_anew_under_a_writer_whose_uri_went_back(uri: str, machine: Machine, tmp_path: Path) -> None:
    def restore(where: Path) -> None:
        assert Mirror.of(uri).push() == 1
        shutil.rmtree(tmp_path / "there")
        shutil.copytree(tmp_path / "backup", tmp_path / "there")
        refuse_to_read(uri, where)

    machine("one")
    write(uri, "1")
    shutil.copytree(tmp_path / "there", tmp_path / "backup")
    with pytest.raises(RemoteError, match="was changed by another machine meanwhile"):
        write(uri, "12", "123", then=restore)
    assert rows(tmp_path / "there") == "1"
    assert read(uri) == "1"
    (aside,) = tmp_path.glob("one/mirrors/*/*.aside-*")
    assert rows(aside) == "123"
