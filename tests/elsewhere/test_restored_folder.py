"""A folder at a URI that went back to an older state: what this machine knew beyond it is kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from raysim.storage import sealed
from raysim.storage.remote.index import Index, Record
from raysim.storage.remote.remote import Remote
from tests.support.mirrors import Machine, started, texts


def restored(shared: str, backup: dict[str, bytes | None], scratch: Path) -> None:
    for name, content in backup.items():
        assert content is not None
        scratch.write_bytes(content)
        Remote(shared).put(scratch, name)


def test_a_copy_is_kept_where_the_uri_went_back_to_what_it_was(
    machine: Machine, shared: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(machine("one"), rows="1")
    one.push()
    backup = {name: Remote(shared).find(name) for name in ("mirror.json", "rows")}
    (one.path / "rows").write_text("12")
    (one.path / "more").write_text("of round 2")
    one.push()
    restored(shared, backup, tmp_path / "restored")
    machine("one").pull()
    assert texts(one) == {"rows": "1"}
    (aside,) = one.path.parent.glob("*.aside-*")
    assert (aside / "more").read_text() == "of round 2"
    assert "went back to an older state" in caplog.text
    assert str(aside) in caplog.text
    # Once is enough: the copy is what the URI has.
    machine("one").pull()
    assert len(list(one.path.parent.glob("*.aside-*"))) == 1


def test_a_copy_is_kept_where_the_uri_went_back_and_on_from_there(
    machine: Machine, shared: str, tmp_path: Path
) -> None:
    """As many changes as this machine knew, but others."""
    one = started(machine("one"), rows="1")
    one.push()
    backup = {name: Remote(shared).find(name) for name in ("mirror.json", "rows")}
    (one.path / "more").write_text("of round 2")
    one.push()
    restored(shared, backup, tmp_path / "restored")
    two = machine("two")
    two.pull()
    (two.path / "rows").write_text("13")
    two.push()
    machine("one").pull()
    assert texts(one) == {"rows": "13"}
    (aside,) = one.path.parent.glob("*.aside-*")
    assert (aside / "more").read_text() == "of round 2"


def test_a_copy_is_kept_where_the_uri_went_back_and_far_on_from_there(
    machine: Machine, shared: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """More changes than this machine, and a reader, knew, but others."""
    one = started(machine("one"), rows="1")
    one.push()
    backup = {name: Remote(shared).find(name) for name in ("mirror.json", "rows")}
    (one.path / "rows").write_text("12")
    one.push()
    reader = machine("reader")
    reader.pull()
    restored(shared, backup, tmp_path / "restored")
    two = machine("two")
    two.pull()
    for text in ("13", "134", "1345"):
        (two.path / "rows").write_text(text)
        two.push()
    for name, mirror in (("one", one), ("reader", reader)):
        for _ in range(2):
            machine(name).pull()
            assert texts(mirror) == {"rows": "1345"}
            (aside,) = mirror.path.parent.glob("*.aside-*")
            assert (aside / "rows").read_text() == "12"
        assert f"went back to an older state, and this machine's copy was ahead: it is now {aside}" in caplog.text
    # And the machine that went on is told when what it wrote is gone.
    restored(shared, backup, tmp_path / "restored")
    machine("one").pull()
    for text in ("16", "167", "1678", "16789"):
        (one.path / "rows").write_text(text)
        one.push()
    machine("two").pull()
    (aside,) = two.path.parent.glob("*.aside-*")
    assert (aside / "rows").read_text() == "1345"


def test_a_copy_that_is_lost_is_named_where_the_uri_went_back(
    machine: Machine, shared: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = started(machine("one"), rows="1")
    one.push()
    backup = {name: Remote(shared).find(name) for name in ("mirror.json", "rows")}
    (one.path / "rows").write_text("12")
    one.push()
    restored(shared, backup, tmp_path / "restored")
    shutil.rmtree(one.path)
    machine("one").pull()
    assert "went back to an older state, and this machine's copy was ahead, but is lost" in caplog.text
    assert texts(one) == {"rows": "1"}


@pytest.mark.parametrize("is_older", [False, True])
def test_a_state_of_which_nothing_is_known_is_not_older_unless_it_has_fewer_changes(
    is_older: bool, machine: Machine, shared: str, tmp_path: Path
) -> None:
    """An earlier raysim has counted changes, and noted no line."""
    one = started(machine("one"), rows="1")
    one.push()
    record = one.path.parent / "mirror.json"
    known = Record.model_validate_json(record.read_bytes())
    counted = known.model_copy(update={"checksum": sealed.BLANK, "changes": 100 if is_older else known.changes})
    sealed.write(record, counted.model_dump_json(exclude={"line", "writer"}).encode())
    two = machine("two")
    two.pull()
    (two.path / "rows").write_text("12")
    two.push()
    machine("one").pull()
    assert texts(one) == {"rows": "12"}
    assert bool(list(one.path.parent.glob("*.aside-*"))) == is_older


def test_an_index_without_a_count_is_read_as_before(machine: Machine, shared: str, tmp_path: Path) -> None:
    started(machine("one"), rows="1").push()
    index = Index.model_validate_json(Remote(shared).find("mirror.json") or b"")
    text = index.model_copy(update={"checksum": sealed.BLANK}).model_dump_json(exclude={"changes", "line"})
    sealed.write(tmp_path / "index", text.encode())
    Remote(shared).put(tmp_path / "index", "mirror.json")
    two, three = machine("two"), machine("three")
    two.pull()
    assert texts(two) == {"rows": "1"}
    (two.path / "rows").write_text("12")
    two.push()
    three.pull()
    assert texts(three) == {"rows": "12"}
