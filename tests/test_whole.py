"""A file is whole or as it was."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.storage import atomic


@pytest.mark.parametrize("flushed", [False, True])
def test_a_file_is_replaced_and_nothing_is_left_beside_it(flushed: bool, tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")
    atomic.write_text(file, "new: ü", flushed)
    assert file.read_text(encoding="utf-8") == "new: ü"
    assert list(tmp_path.iterdir()) == [file]


def test_what_fails_on_the_way_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("old")

    def half(path: Path) -> None:
        path.write_text("ne")
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        atomic.write(file, half)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_two_may_write_a_file_at_a_time(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    with atomic.aside(file) as one:
        one.write_text("one")
        with atomic.aside(file) as two:
            two.write_text("two")
        assert file.read_text() == "two"
    assert file.read_text() == "one"
    assert list(tmp_path.iterdir()) == [file]
