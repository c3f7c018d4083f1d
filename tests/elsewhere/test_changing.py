"""What differs in a copy is ahead of the URI if raysim changed it, be it killed since; else it is set aside."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from raysim.errors import DiskError
from raysim.storage import atomic, lock, sealed
from raysim.storage.remote import mirrored_files, removed
from raysim.storage.remote.index import Content, Record
from raysim.storage.remote.mirror import WRITERS, Mirror
from tests.support.kills import left_before_each

FIRST = {"rows": "1", "checkpoints/1": "state 1"}
SECOND = {"rows": "12", "checkpoints/2": "state 2"}

Copy = Callable[[], Mirror]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a machine and a URI hold."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "root" / "machine"))
    return tmp_path / "root"


@pytest.fixture
def copy(root: Path) -> Copy:
    return lambda: Mirror.of((root / "there").as_uri())


def texts(folder: Path) -> dict[str, str]:
    return {name: file.read_text() for name, file in mirrored_files.files(folder)}


def write(mirror: Mirror, files: dict[str, str]) -> None:
    for name, text in files.items():
        (mirror.path / name).parent.mkdir(parents=True, exist_ok=True)
        atomic.write_text(mirror.path / name, text)


def first_round(mirror: Mirror) -> None:
    mirror.pull()
    with mirror.changing():
        write(mirror, FIRST)
        mirror.push()


def second_round(mirror: Mirror) -> None:
    mirror.pull()
    with mirror.changing():
        write(mirror, SECOND)
        removed.unlink(mirror.path / "checkpoints/1")
        mirror.push()


def asides(mirror: Mirror) -> list[Path]:
    return list(mirror.path.parent.glob("*.aside-*"))


def test_what_somebody_else_changed_is_set_aside(copy: Copy, caplog: pytest.LogCaptureFixture) -> None:
    mirror = copy()
    first_round(mirror)
    second_round(mirror)
    write(mirror, FIRST)
    for _ in range(2):
        copy().pull()
        assert texts(mirror.path) == SECOND
        (aside,) = asides(mirror)
        assert texts(aside) == {**SECOND, **FIRST}
    assert f"something else than raysim has changed this machine's copy: it is now {aside}" in caplog.text
    assert copy().push() == 0


def test_wherever_a_writer_is_killed_what_it_wrote_is_ahead(copy: Copy, root: Path, tmp_path: Path) -> None:
    first_round(copy())
    left = left_before_each(root, tmp_path / "left", lambda: second_round(copy()))
    assert len(left) > 10
    found = []
    for _, state in left:
        shutil.rmtree(root)
        shutil.copytree(state, root)
        copy().pull()
        found.append(texts(copy().path))
        second_round(copy())
        assert texts(copy().path) == SECOND
        assert {name: (root / "there" / name).read_text() for name in SECOND} == SECOND
        assert not (root / "there" / "checkpoints" / "1").exists()
        assert not asides(copy())
        # And the record has forgotten the kill.
        write(copy(), FIRST)
        copy().pull()
        assert texts(copy().path) == SECOND
        assert len(asides(copy())) == 1
    # What was written is kept: no state of the copy follows that has less.
    assert found[0] == FIRST
    assert found[-1] == SECOND
    seen = [FIRST, {**FIRST, "rows": "12"}, {**FIRST, **SECOND}, SECOND]
    assert [seen.index(state) for state in found] == sorted(seen.index(state) for state in found)


def test_a_reader_ends_what_a_writer_announced_that_was_killed_before_it_wrote(copy: Copy) -> None:
    mirror = copy()
    first_round(mirror)
    code = (
        "import os, sys\nfrom raysim.storage.remote.mirror import Mirror\n"
        "with Mirror.of(sys.argv[1]).changing(): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code, mirror.uri], check=True)
    record = mirror.path.parent / "mirror.json"
    assert Record.model_validate_json(record.read_bytes()).ahead
    copy().pull()
    assert not Record.model_validate_json(record.read_bytes()).ahead


def test_one_of_two_that_change_a_copy_ends_nothing_for_the_other(copy: Copy) -> None:
    """A script ends, and its run goes on."""
    script, driver = copy(), copy()
    first_round(script)
    with driver.changing():
        with script.changing():
            write(script, {"rows": "12"})
            script.push()
        copy().pull()
        write(driver, SECOND)
        copy().pull()
        assert not asides(driver)
        assert texts(driver.path) == {**FIRST, **SECOND}
        driver.push()
    write(driver, FIRST)
    copy().pull()
    assert len(asides(driver)) == 1


def test_a_copy_is_taken_anew_before_a_process_that_will_change_it_has_said_so(
    copy: Copy, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = copy()
    first_round(mirror)
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "another machine"))
    second_round(copy())
    monkeypatch.setenv("RAYSIM_CACHE", str(root / "machine"))
    with lock.among_others(mirror.path.parent / WRITERS):
        copy().pull()
    assert texts(mirror.path) == SECOND
    assert not asides(mirror)


def test_the_note_reaches_the_disk_before_the_first_change(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that loses its power must not keep a change without it."""
    mirror, seen = copy(), []
    first_round(mirror)

    def noting(file: Path, fill: Callable[[Path], object], flushed: bool = False) -> None:
        seen.append((file.name, flushed))
        kept(file, fill, flushed)

    kept = atomic.write
    monkeypatch.setattr(atomic, "write", noting)
    with mirror.changing():
        assert seen == [("mirror.json", True)]


def test_what_could_not_be_put_stays_ahead(copy: Copy) -> None:
    mirror = copy()
    first_round(mirror)
    with mirror.changing():
        write(mirror, SECOND)
    copy().pull()
    assert texts(mirror.path) == {**FIRST, **SECOND}
    assert copy().push() == 2


def test_what_was_lost_there_is_ahead(copy: Copy, root: Path) -> None:
    first_round(copy())
    (root / "there" / "rows").unlink()
    for _ in range(2):
        copy().pull()
        assert texts(copy().path) == FIRST
    assert copy().push() == 1
    assert texts(root / "there") | FIRST == texts(root / "there")


def test_a_record_of_an_earlier_raysim_leaves_a_copy_ahead(copy: Copy) -> None:
    mirror = copy()
    first_round(mirror)
    record = mirror.path.parent / "mirror.json"
    text = Record.model_validate_json(record.read_bytes()).model_dump_json(exclude={"ahead"})
    sealed.write(record, text.encode())
    write(mirror, SECOND)
    copy().pull()
    assert texts(mirror.path) == {**FIRST, **SECOND}
    assert copy().push() == 2


def test_no_file_is_read_again_whose_size_and_time_are_known(copy: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror, read = copy(), []
    mirror.pull()
    with mirror.changing():
        write(mirror, FIRST)
        os.utime(mirror.path / "rows", (1, 1))
        mirror.push()

    def noting(file: Path) -> Content:
        read.append(file.name)
        return content(file)

    content = mirrored_files.content
    monkeypatch.setattr(mirrored_files, "content", noting)
    copy().pull()
    with copy().changing():
        pass
    assert read == []
    # With another time it is read, and then that time is known.
    os.utime(mirror.path / "rows", (2, 2))
    for _ in range(2):
        copy().pull()
    assert set(read) == {"rows"}
    count = len(read)
    copy().pull()
    assert len(read) == count


def test_a_disk_without_room_for_the_lock_of_those_who_change_a_copy_is_named(
    copy: Copy, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_round(copy())
    (copy().path.parent / WRITERS).unlink()
    opened = os.open

    def full(path: str | Path, *more: int) -> int:
        if Path(path).name == WRITERS:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return opened(path, *more)

    monkeypatch.setattr(os, "open", full)
    with pytest.raises(DiskError, match=rf"{WRITERS} could not be written: No space left"), copy().changing():
        pass
