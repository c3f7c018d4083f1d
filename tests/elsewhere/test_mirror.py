"""A folder that also lies elsewhere: what is put, in which order, and what another machine finds there."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raysim.errors import RemoteError
from raysim.storage.remote import mirrored_files, removed
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote
from tests.support.mirrors import Machine, started, texts


def test_another_machine_finds_what_one_has_put(machine: Machine) -> None:
    one = started(machine("one"), a="first", b="same")
    (one.path / "checkpoints").mkdir()
    (one.path / "checkpoints" / "round-1").write_text("state")
    (one.path / ".half").write_text("being written")
    assert one.push() == 3
    assert one.push() == 0
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first", "b": "same", "checkpoints/round-1": "state"}
    (one.path / "a").write_text("second")
    machine("one")
    removed.unlink(one.path / "b")
    assert one.push() == 1
    other.pull()
    assert texts(other) == {"a": "second", "checkpoints/round-1": "state"}


def test_a_checkpoint_is_put_after_what_it_needs_and_old_ones_go_last(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(machine("one"), rows="0")
    (one.path / "checkpoints").mkdir()
    (one.path / "checkpoints" / "round-1").write_text("1")
    one.push()
    removed.unlink(one.path / "checkpoints" / "round-1")
    (one.path / "checkpoints" / "round-2").write_text("2")
    (one.path / "rows").write_text("01")
    (one.path / "client_state").mkdir()
    (one.path / "client_state" / "file").write_text("c")
    done: list[str] = []
    put, delete = Remote.put, Remote.delete

    def noting_put(self: Remote, file: Path, name: str) -> None:
        done.append(name)
        put(self, file, name)

    def noting_delete(self: Remote, name: str) -> None:
        if not name.startswith("."):
            done.append(f"-{name}")
        delete(self, name)

    monkeypatch.setattr(Remote, "put", noting_put)
    monkeypatch.setattr(Remote, "delete", noting_delete)
    one.push()
    assert sorted(done[1:3]) == ["client_state/file", "rows"]
    assert [done[0], *done[3:]] == ["mirror.json", "checkpoints/round-2", "mirror.json", "-checkpoints/round-1"]


def test_a_file_that_was_changed_elsewhere_is_refused_by_name(machine: Machine, shared: str, tmp_path: Path) -> None:
    started(machine("one"), a="first").push()
    (tmp_path / "wrong").write_text("wrong")
    Remote(shared).put(tmp_path / "wrong", "a")
    with pytest.raises(RemoteError, match=r"shared/a is damaged: expected 5 bytes with blake2b \w+, .*found 5 bytes"):
        machine("other").pull()


def test_a_copy_here_that_is_damaged_is_mended(machine: Machine) -> None:
    started(machine("one"), a="first").push()
    other = machine("other")
    other.pull()
    started(machine("one"), a="second").push()
    (other.path / "a").write_text("fir")
    machine("other").pull()
    assert texts(other) == {"a": "second"}


def test_a_damaged_index_is_refused_and_the_writers_copy_is_put_again(machine: Machine, shared: str) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    text = Remote(shared).find("mirror.json")
    assert text is not None
    at = text.index(b'"b"') + 1
    (one.path.parent / "damaged").write_bytes(text[:at] + b"c" + text[at + 1 :])
    Remote(shared).put(one.path.parent / "damaged", "mirror.json")
    with pytest.raises(RemoteError, match=r"shared/mirror\.json is damaged: its content has the checksum .*Delete it"):
        machine("other").pull()
    Remote(shared).delete("mirror.json")
    one = machine("one")
    one.pull()
    assert one.push() == 2
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first", "b": "same"}


def test_a_damaged_record_is_none(machine: Machine, shared: str) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    record = one.path.parent / "mirror.json"
    record.write_bytes(record.read_bytes().replace(b'"b"', b'"c"'))
    with pytest.raises(RemoteError, match=r"mirror\.json is damaged: .*Delete it: the copy beside it"):
        Mirror.around(one.path)
    one.pull()
    assert texts(one) == {"a": "first", "b": "same"}
    assert Remote(shared).has("b")


@pytest.mark.parametrize("after", [1, 2, 3])
def test_of_two_that_begin_at_once_one_is_told(
    after: int, machine: Machine, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """Both saw an empty folder; one writes all of its own behind the first index, or a file, of the other."""
    one, other = (started(machine(name), experiment=name, rows=name) for name in ("one", "other"))
    put, calls = Remote.put, []

    def put_between(self: Remote, file: Path, name: str) -> None:
        put(self, file, name)
        calls.append(name)
        if len(calls) == after:
            monkeypatch.setattr(Remote, "put", put)
            # As it looked when it began.
            Remote(shared).delete("mirror.json")
            other.push()
            monkeypatch.setattr(Remote, "put", put_between)

    monkeypatch.setattr(Remote, "put", put_between)
    with pytest.raises(RemoteError, match="was changed by another machine meanwhile"):
        one.push()
    third = machine("third")
    third.pull()
    assert texts(third) == {"experiment": "other", "rows": "other"}


def test_of_two_writers_the_second_is_refused_and_what_it_wrote_is_set_aside(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(machine("one"), a="first")
    one.push()
    other = started(machine("other"), a="of the other")
    other.push()
    (one.path / "a").write_text("of the one")
    with pytest.raises(RemoteError, match=r"was changed by another machine meanwhile.*one writer at a time"):
        one.push()
    machine("one").pull()
    assert texts(one) == {"a": "of the other"}
    (aside,) = one.path.parent.glob("*.aside-*")
    assert (aside / "a").read_text() == "of the one"
    assert str(aside) in caplog.text


def test_a_file_that_was_written_again_within_one_tick_of_the_clock_is_put(machine: Machine) -> None:
    one = started(machine("one"), a="first")
    tick = 4_000_000_000 * 10**9  # which is not over, however long this test takes
    os.utime(one.path / "a", ns=(tick, tick))
    assert one.push() == 1
    (one.path / "a").write_text("again")
    os.utime(one.path / "a", ns=(tick, tick))
    assert one.behind() == ["a"]
    assert one.push() == 1
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "again"}


@pytest.mark.parametrize("time_s", [1, 4_000_000_000])
def test_a_copy_is_not_ahead_for_its_files_times(machine: Machine, time_s: int) -> None:
    one = started(machine("one"), a="first")
    one.push()
    started(machine("other"), a="of the other").push()
    os.utime(one.path / "a", (time_s, time_s))
    assert one.behind() == []
    machine("one").pull()
    assert texts(one) == {"a": "of the other"}
    assert not list(one.path.parent.glob("*.aside-*"))


def test_a_checkpoint_is_put_from_a_disk_without_hard_links(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*given: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    one = started(machine("one"))
    (one.path / "checkpoints").mkdir()
    (one.path / "checkpoints" / "round-1").write_text("state")
    monkeypatch.setattr("os.link", no_links)
    one.push()
    two = machine("two")
    two.pull()
    assert texts(two) == {"checkpoints/round-1": "state"}


def test_copies_of_checkpoints_of_one_attempt_lie_beside_the_copy_at_a_time(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a model that fills half of the disk there is no room for more."""
    one = started(machine("one"))
    checkpoints = one.path / "checkpoints"
    checkpoints.mkdir()
    (checkpoints / "round-1").write_text("state")
    copied, held = shutil.copyfile, list[int]()

    def copied_while_a_newer_one_is_written(file: Path, aside: Path) -> None:
        # What was listed is deleted for it: all are pinned once more.
        copied(file, aside)
        if "checkpoints" in aside.parts:
            (checkpoints / f"round-{len(held) + 2}").write_text("state")
            file.unlink()
            held.append(len(list(aside.parents[2].rglob("round-*"))))

    def no_links(*given: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.link", no_links)
    monkeypatch.setattr(shutil, "copyfile", copied_while_a_newer_one_is_written)
    one.push()
    assert held == [1] * mirrored_files.PIN_ATTEMPTS


def test_what_others_delete_here_is_not_deleted_there(machine: Machine) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    (one.path / "b").unlink()
    (one.path / "a").write_text("second")
    one.push()
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "second", "b": "same"}
    one = machine("one")
    one.pull()
    assert texts(one) == {"a": "second", "b": "same"}


def test_a_copy_that_was_deleted_is_fetched_again_and_deletes_nothing(machine: Machine) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    shutil.rmtree(one.path)
    one.push()
    one.pull()
    one.push()
    assert texts(one) == {"a": "first", "b": "same"}
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first", "b": "same"}


def test_what_raysim_deletes_stays_deleted_though_it_was_killed(machine: Machine) -> None:
    one = started(machine("one"), a="first", b="same")
    (one.path / "folder").mkdir()
    (one.path / "folder" / "c").write_text("c")
    one.push()
    removed.unlink(one.path / "b")
    removed.rmtree(one.path / "folder")
    # Killed here, before it is put.
    again = machine("one")
    again.pull()
    assert texts(again) == {"a": "first"}
    again.push()
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first"}


def test_what_was_written_again_is_not_deleted_later(machine: Machine) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    removed.unlink(one.path / "b")
    (one.path / "b").write_text("again")
    one.push()
    (one.path / "b").unlink()
    one.push()
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first", "b": "again"}


def test_what_was_lost_there_is_put_there_again(
    machine: Machine, shared: str, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    (tmp_path / "longer").write_text("longer than it was")
    Remote(shared).delete("b")
    Remote(shared).put(tmp_path / "longer", "a")
    one = machine("one")
    one.pull()
    assert "shared/b was lost or replaced there" in caplog.text
    assert one.push() == 2
    other = machine("other")
    other.pull()
    assert texts(other) == {"a": "first", "b": "same"}


def test_what_is_lost_here_and_there_is_an_error(machine: Machine, shared: str) -> None:
    one = started(machine("one"), a="first", b="same")
    one.push()
    Remote(shared).delete("b")
    (one.path / "b").unlink()
    with pytest.raises(RemoteError, match=r"reading b in .*shared failed"):
        machine("one").pull()


def test_a_run_without_an_index_is_not_taken_for_an_empty_folder(machine: Machine, shared: str, tmp_path: Path) -> None:
    (tmp_path / "record").write_text("{}")
    Remote(shared).put(tmp_path / "record", "experiment.json")
    with pytest.raises(RemoteError, match=r"has a run's folder without its mirror\.json"):
        machine("one").pull()


@pytest.mark.parametrize("is_changing", [False, True])
def test_without_an_index_no_other_than_the_last_writers_copy_is_put_there(
    is_changing: bool, machine: Machine, shared: str
) -> None:
    one, two = started(machine("one"), rows="1"), machine("two")
    one.push()
    two.pull()
    (two.path / "rows").write_text("2")
    two.push()
    Remote(shared).delete("mirror.json")
    # Of the same size.
    (one.path / "rows").write_text("3")
    one = machine("one")
    with pytest.raises(RemoteError, match=r"has lost its mirror\.json, and rows there is not what this machine knew"):
        one.push() if is_changing else one.pull()
    assert Remote(shared).find("rows") == b"2"
    two = machine("two")
    for _ in range(2):
        two.pull()
        assert texts(two) == {"rows": "2"}
    two.push()
    machine("one").pull()
    assert texts(one) == {"rows": "2"}


def test_a_machine_that_has_just_begun_replaces_no_run_that_has_no_index(machine: Machine, shared: str) -> None:
    one, two = started(machine("one"), rows="1"), started(machine("two"), **{"experiment.json": "{}"})
    machine("two").push()
    Remote(shared).delete("mirror.json")
    machine("one")
    with pytest.raises(RemoteError, match=r"has a run's folder without its mirror\.json"):
        one.push()
    assert texts(two) == {"experiment.json": "{}"}


def test_the_files_there_are_put_again_once_they_are_moved_away(machine: Machine, shared: str, tmp_path: Path) -> None:
    one = started(machine("one"), rows="1")
    one.push()
    Remote(shared).delete("mirror.json")
    (tmp_path / "other").write_text("of nobody")
    Remote(shared).put(tmp_path / "other", "rows")
    with pytest.raises(RemoteError, match="move the files there away"):
        machine("one").pull()
    Remote(shared).delete("rows")
    machine("one").pull()
    assert one.push() == 1
    assert Remote(shared).find("rows") == b"1"


def test_a_folder_goes_on_as_before_once_its_lost_index_is_put_again(machine: Machine, shared: str) -> None:
    one, reader = started(machine("one"), rows="1"), machine("reader")
    one.push()
    reader.pull()
    Remote(shared).delete("mirror.json")
    machine("one").pull()
    (one.path / "rows").write_text("12")
    one.push()
    machine("reader").pull()
    assert texts(reader) == {"rows": "12"}
    assert not list(reader.path.parent.glob("*.aside-*"))


def test_what_another_machine_added_is_fetched_and_nothing_set_aside(machine: Machine) -> None:
    one, two = started(machine("one"), rows="1"), machine("two")
    for text in ("12", "123"):
        one.push()
        two.pull()
        (two.path / "rows").write_text(text)
        two.push()
        one.pull()
        assert texts(one) == {"rows": text}
    assert not list(one.path.parent.glob("*.aside-*"))
    assert not list(two.path.parent.glob("*.aside-*"))


class Prunes:
    """A run that goes on while its files are pinned: it keeps one checkpoint, which needs one state."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.round = folder, 0
        (folder / "checkpoints").mkdir()
        (folder / "client_state").mkdir()

    def goes_on(self) -> None:
        """Write a checkpoint with its state, and delete the one before."""
        before, self.round = self.round, self.round + 1
        for name in ("client_state", "checkpoints"):
            (self.folder / name / f"round-{self.round}").write_text(f"{name} {self.round}")
        for name in ("checkpoints", "client_state") if before else ():
            removed.unlink(self.folder / name / f"round-{before}")


def whole_rounds(folder: Path) -> list[str]:
    """Return the checkpoints that have what they need."""
    return [file.name for file in (folder / "checkpoints").iterdir() if (folder / "client_state" / file.name).exists()]


@pytest.mark.parametrize("part", ["rows", "checkpoints"])
def test_a_checkpoint_stays_there_while_each_newer_one_is_deleted_before_it_is_put(
    part: str, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(machine("one"), rows="0")
    run = Prunes(one.path)
    run.goes_on()
    one.push()
    with monkeypatch.context() as patch:
        pin_one = mirrored_files._pin_one

        def pin_while_it_runs(name: str, file: Path, copy: Path) -> None:
            if name.startswith(part):
                run.goes_on()
            pin_one(name, file, copy)

        patch.setattr(mirrored_files, "_pin_one", pin_while_it_runs)
        for _ in range(3):
            (one.path / "rows").write_text(str(run.round))
            run.goes_on()
            one.push()
            other = machine(f"other-{run.round}")
            other.pull()
            assert whole_rounds(other.path)
            machine("one")
    one.push()
    one.push()
    other = machine("last")
    other.pull()
    assert whole_rounds(other.path) == [f"round-{run.round}"]
    assert len(list((other.path / "checkpoints").iterdir())) == 1


def test_what_a_checkpoint_needs_stays_there_though_it_is_deleted_here_before_it_is_put(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(machine("one"), rows="0")
    run = Prunes(one.path)
    run.goes_on()
    one.push()
    (one.path / "client_state" / "round-2").write_text("client_state 2")
    one.push()
    run.goes_on()
    pin = mirrored_files.pin

    def pin_and_go_on(*given: Any) -> Any:
        found = pin(*given)
        run.goes_on()
        return found

    with monkeypatch.context() as patch:
        patch.setattr(mirrored_files, "pin", pin_and_go_on)
        one.push()
    other = machine("other")
    other.pull()
    assert whole_rounds(other.path) == ["round-2"]


def test_a_copy_that_could_not_be_fetched_whole_is_not_set_aside(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(machine("one"), a="1", b="1", c="1")
    one.push()
    other = machine("other")
    read, left = Remote.read, iter(range(2))

    def read_some(self: Remote, name: str) -> Iterator[bytes]:
        if next(left, None) is None:
            raise RemoteError("it was deleted there meanwhile")
        return read(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Remote, "read", read_some)
        with pytest.raises(RemoteError, match="deleted there meanwhile"):
            other.pull()
    machine("one")
    (one.path / "a").write_text("2")
    one.push()
    machine("other")
    other.pull()
    assert texts(other) == {"a": "2", "b": "1", "c": "1"}
    assert not caplog.text
    assert [entry.name for entry in other.path.parent.iterdir() if "aside" in entry.name] == []


def test_what_a_writer_has_just_deleted_is_not_fetched_by_a_reader_on_its_machine(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer notes it a moment later."""
    one = started(machine("one"), a="1", b="1")
    one.push()
    with one.changing():
        (one.path / "b").unlink()
        machine("one").pull()
        assert texts(one) == {"a": "1"}
    assert not caplog.text
    machine("one").pull()
    assert texts(one) == {"a": "1", "b": "1"}, "it was not noted"


def test_rows_are_put_with_the_table_that_was_written_before_them(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(machine("one"), rows="0")
    (one.path / "clients").mkdir()
    pin_one = mirrored_files._pin_one

    def pin_later_rows(name: str, file: Path, copy: Path) -> None:
        if name == "rows":
            (one.path / "clients" / "round-1").write_text("of round 1")
            file.write_text("01")
        pin_one(name, file, copy)

    monkeypatch.setattr(mirrored_files, "_pin_one", pin_later_rows)
    one.push()
    other = machine("other")
    other.pull()
    assert texts(other) == {"rows": "01", "clients/round-1": "of round 1"}


def test_what_another_machine_replaces_while_it_is_compared_is_not_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(machine("one"), rows="0")
    one.push()
    other = machine("other")
    other.pull()
    sizes, left = Remote.sizes, iter(range(1))

    def sizes_after_a_push(self: Remote) -> dict[str, int]:
        if next(left, None) is not None:
            machine("one")
            (one.path / "rows").write_text("01")
            one.push()
            machine("other")
        return sizes(self)

    monkeypatch.setattr(Remote, "sizes", sizes_after_a_push)
    other.pull()
    assert texts(other) == {"rows": "01"}
    assert not caplog.text
