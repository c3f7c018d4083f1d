"""Uploads of a folder at a URI that are cut: another machine, or this one, goes on."""

from __future__ import annotations

import shutil

import pytest

from raysim.storage.remote import removed
from raysim.storage.remote.remote import Remote
from tests.support.mirrors import Machine, put_only, started, texts


@pytest.mark.parametrize("has_older", [False, True])
@pytest.mark.parametrize(
    ("survivors", "found"),
    [
        (0, ["old", "old"]),
        (1, ["old", "old"]),  # the index is put before any file
        (2, ["new", "old"]),
        (3, ["new", "new"]),  # the checkpoint is put last
        (4, ["new", "new", "new"]),
        (5, ["new", "new", "new"]),  # and the index once more
    ],
)
def test_wherever_a_machine_stops_another_goes_on(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, survivors: int, found: list[str], has_older: bool
) -> None:
    one = started(machine("one"), rows="old", more="old")
    one.push()
    if has_older:
        machine("other").pull()
        machine("one")
    (one.path / "checkpoints").mkdir()
    for name in ("rows", "more", "checkpoints/1"):
        (one.path / name).write_text("new")
    assert put_only(survivors, monkeypatch, one) == (survivors < 5)
    other = machine("other")
    other.pull()
    assert sorted(texts(other).values()) == found
    assert ("checkpoints/1" in texts(other)) == (len(found) == 3)
    # And the first machine, once it is back, goes on as well.
    again = machine("one")
    again.pull()
    assert set(texts(again).values()) == {"new"}
    again.push()
    other.pull()
    assert texts(other) == {"rows": "new", "more": "new", "checkpoints/1": "new"}


def test_a_machine_goes_on_where_several_uploads_were_cut(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """The first has put the rows, and a checkpoint that is deleted since; the second one its index alone."""
    one = started(machine("one"), rows="1")
    one.push()
    (one.path / "checkpoints").mkdir()
    (one.path / "checkpoints" / "2").write_text("state")
    (one.path / "rows").write_text("12")
    assert put_only(3, monkeypatch, one)
    removed.unlink(one.path / "checkpoints" / "2")
    for rows in ("123", "1234"):
        (one.path / "rows").write_text(rows)
        assert put_only(1, monkeypatch, one)
        other = machine("other")
        other.pull()
        assert texts(other) == {"rows": "12", "checkpoints/2": "state"}
        machine("one")
    # Also where the file is what it was before all of them.
    (one.path / "rows").write_text("1")
    one.push()
    machine("other").pull()
    assert texts(other) == {"rows": "1"}
    assert Remote(shared).sizes().keys() == {"mirror.json", "rows"}
    # And then everything is settled.
    machine("one")
    assert one.push() == 0


def test_an_upload_that_puts_all_again_may_be_cut(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, shared: str
) -> None:
    """The index was lost."""
    one = started(machine("one"), rows="1")
    one.push()
    Remote(shared).delete("mirror.json")
    (one.path / "rows").write_text("12")
    assert put_only(1, monkeypatch, one)
    other = machine("other")
    other.pull()
    assert texts(other) == {"rows": "1"}


def test_what_a_cut_upload_put_is_fetched_again_where_the_copy_is_lost(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = started(machine("one"), rows="1")
    (one.path / "checkpoints").mkdir()
    (one.path / "checkpoints" / "1").write_text("state")
    assert put_only(2, monkeypatch, one)
    shutil.rmtree(one.path)
    one = machine("one")
    one.pull()
    assert texts(one) == {"rows": "1"}
