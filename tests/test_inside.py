"""Names from files: whatever they are, the path lies in the folder, or the name is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.errors import DataError, RaysimError
from raysim.storage.inside import MOST_BYTES, MOST_PARTS, flaw, inside

PIECES = st.sampled_from(["..", ".", "", "a", "b.txt", "C:", "\\", "\0", "~", "link", "\ud800", " ", "%2e%2e", "\n"])
NAMES = st.text(max_size=20) | st.lists(PIECES | st.text(max_size=5), max_size=6).map("/".join)
PLAIN = st.from_regex(r"[A-Za-z0-9_.,=-]{0,19}[A-Za-z0-9_]", fullmatch=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file beside it, a link that leads out, and one that stays inside."""
    outer = tmp_path_factory.mktemp("outer")
    (outer / "folder" / "a").mkdir(parents=True)
    (outer / "secret.txt").write_text("old")
    (outer / "folder" / "link").symlink_to(outer)
    (outer / "folder" / "round").symlink_to("round")
    (outer / "folder" / "near").symlink_to("a")
    return outer / "folder"


@given(name=NAMES)
def test_no_name_leads_out_of_its_folder(folder: Path, name: str) -> None:
    try:
        path = inside(folder, name, "index", DataError)
    except DataError:
        return
    assert os.path.realpath(path).startswith(f"{os.path.realpath(folder)}/")
    assert path.relative_to(folder).as_posix() == name


@given(parts=st.lists(PLAIN, min_size=1, max_size=MOST_PARTS))
def test_a_plain_name_is_taken_as_it_is(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    empty = tmp_path_factory.getbasetemp() / "none"
    assert inside(empty, "/".join(parts), "index", DataError) == empty.joinpath(*parts)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "is empty"),
        ("/etc/passwd", "is absolute"),
        ("C:/x", "begins with a drive letter"),
        ("c:x", "begins with a drive letter"),
        ("a\\..\\x", "has a backslash"),
        ("a\0b", "has a control character"),
        ("a\x1b[2J", "has a control character"),
        ("../x", "has the part '..'"),
        ("a/../../x", "has the part '..'"),
        ("..", "has the part '..'"),
        ("a/./x", "has the part '.'"),
        ("a//x", "has the part ''"),
        ("a/", "has the part ''"),
        ("\ud800", "is not text in UTF-8"),
        ("é" * MOST_BYTES, "is longer than"),
        ("a/" * MOST_PARTS + "a", "is longer than"),
        ("link/secret.txt", "by a symbolic link"),
        ("link", "by a symbolic link"),
    ],
)
def test_a_refusal_says_why(folder: Path, name: str, why: str) -> None:
    with pytest.raises(DataError) as caught:
        inside(folder, name, "here.json", DataError)
    assert str(caught.value).startswith(f"here.json names the file {name!r}, which ")
    assert why in str(caught.value)
    assert (flaw(name) is None) == ("link" in name)


def test_links_that_stay_inside_are_no_harm(folder: Path) -> None:
    assert inside(folder, "near/x", "index", RaysimError) == folder / "near" / "x"
    assert inside(folder, "round", "index", RaysimError) == folder / "round"
