"""Shakespeare: roles from the complete works, and the three published forms of their characters."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Shakespeare
from raysim.data.sources import characters, gutenberg
from raysim.data.sources.characters import BEGIN, CHARACTERS, END, NUM_CLASSES, PADDING, UNKNOWN
from raysim.data.sources.gutenberg import Role
from raysim.data.sources.published import SourceFile
from raysim.data.sources.shakespeare import num_train
from raysim.errors import DataError
from tests.support.tff_files import hdf5

Public = Callable[[str], Path]

WORKS = """The Complete Works


THE SONNETS

by William Shakespeare
  From fairest. creatures we desire increase,
  That thereby. beauty

1603

HAMLET

by William Shakespeare

Dramatis Personae
  FRANCISCO, a soldier

  Ber. Who's there?
  FRANCISCO. Nay, answer me.
    Stand and unfold yourself.
                                  Enter HORATIO
  BER. Long live
    the King!
  HAMLET. Words.

1593

THE COMEDY OF ERRORS

by William Shakespeare

<<THIS ELECTRONIC VERSION>>
ACT I. SCENE 1
AEGEON. Proceed, Solinus,
  And by the doom
DUKE. Plead no more;
<<THIS ELECTRONIC VERSION>>
not spoken
End of the Project Gutenberg EBook
  LATE. never read
"""


def file(tmp_path: Path, text: str, name: str = "pg100.txt") -> SourceFile:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8-sig")
    return SourceFile(path)


def test_roles_of_plays_with_the_lines_they_speak(tmp_path: Path) -> None:
    assert gutenberg.roles(file(tmp_path, WORKS)) == [
        Role("HAMLET_BER", ("Who's there?", "Long live", "the King!")),
        Role("HAMLET_FRANCISCO", ("Nay, answer me.", "Stand and unfold yourself.", " " * 30 + "Enter HORATIO")),
        Role("HAMLET_HAMLET", ("Words.",)),
        Role("THE_COMEDY_OF_ERRORS_AEGEON", ("Proceed, Solinus,", "  And by the doom")),
        Role("THE_COMEDY_OF_ERRORS_DUKE", ("Plead no more;",)),
    ]


def test_another_layout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"pg100\.txt: expected the editions of 1994 to 2011.*found no play"):
        gutenberg.roles(file(tmp_path, "HAMLET\n\nby William Shakespeare\n\nHAMLET.\nWords.\n"))


@pytest.mark.parametrize(("lines", "trained"), [(2, 1), (4, 3), (5, 4), (9, 8), (10, 8)])
def test_the_first_four_fifths_are_for_training(lines: int, trained: int) -> None:
    assert num_train(Role("r", ("line",) * lines)) == trained


def test_there_are_86_characters_and_four_marks() -> None:
    assert len(set(CHARACTERS)) == len(CHARACTERS) == 86
    assert characters.numbers(CHARACTERS).tolist() == list(range(1, 87))
    assert characters.numbers("d~é\U0001f600").tolist() == [1, UNKNOWN, UNKNOWN, UNKNOWN]
    assert {PADDING, UNKNOWN, BEGIN, END} == {0, 87, 88, 89}


def unpadded(y: npt.NDArray[np.uint8]) -> list[int]:
    return [number for number in y.reshape(-1).tolist() if number != PADDING]


@given(text=st.text(CHARACTERS, max_size=40), length=st.integers(1, 12))
def test_every_character_is_a_target_once_and_follows_its_input(text: str, length: int) -> None:
    numbers = characters.numbers(text)
    x, y = characters.continuous(numbers, length)
    assert x.shape == y.shape == (-(-(len(text) + 1) // length), length)
    assert unpadded(y) == [*numbers.tolist(), END]
    assert unpadded(x) == [BEGIN, *numbers.tolist()]


@given(texts=st.lists(st.text(CHARACTERS.replace("\n", ""), max_size=20), max_size=4), length=st.integers(1, 12))
def test_every_line_is_an_example_with_its_end(texts: list[str], length: int) -> None:
    """As if each line, with its end, were cut on its own; only a line that is too long goes on in further rows."""
    x, y = characters.by_line(texts, length)
    assert len(x) == len(y) == sum(-(-(len(text) + 1) // length) for text in texts)
    for text in texts:
        rows = -(-(len(text) + 1) // length)
        numbers = characters.numbers(f"{text}\n").tolist()
        assert unpadded(y[:rows]) == numbers
        assert unpadded(x[:rows]) == [BEGIN, *numbers[:-1]]
        x, y = x[rows:], y[rows:]


def test_separate_windows_lose_the_place_between_them() -> None:
    x, y = characters.separate(np.array([1, 2, 3, 4], np.uint8), length=2)
    assert x.tolist() == [[BEGIN, 1], [3, 4]]
    assert y.tolist() == [[1, 2], [4, END]]


def text_of(data: FederatedDataset, split: str, client: str) -> str:
    part = data.split(split)
    _, y = part.client(part.position_of(client))
    return "".join(CHARACTERS[number - 1] for number in unpadded(y) if number <= len(CHARACTERS))


def test_mcmahans_form(tmp_path: Path) -> None:
    data = prepare(Shakespeare(root=str(file(tmp_path, WORKS).path.parent)), seed=0)
    ids = [data.train.id_of(position) for position in range(len(data.train))]
    assert ids == ["HAMLET_BER", "HAMLET_FRANCISCO", "THE_COMEDY_OF_ERRORS_AEGEON"]
    assert text_of(data, "train", "HAMLET_BER") == "Who's there?\nLong live\n"
    assert text_of(data, "test", "HAMLET_BER") == "the King!\n"
    assert data.train.sizes().tolist() == [2, 2, 1]
    assert (data.num_classes, data.y.padding, data.y.uncounted) == (NUM_CLASSES, PADDING, (UNKNOWN, BEGIN, END))


def test_windows_are_of_the_joined_lines(tmp_path: Path) -> None:
    section = Shakespeare(root=str(file(tmp_path, WORKS).path.parent), example="window", length=8)
    data = prepare(section, seed=0)
    assert text_of(data, "train", "HAMLET_BER") == "Who's there?\nLong live"
    assert data.train.sizes().tolist()[0] == 3


def test_tiny_is_by_name_of_the_speaker(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text(
        "First Citizen:\nBefore we proceed\nany further.\n\nAll:\nSpeak.\n\nFirst Citizen:\nNo.\n"
    )
    tiny = SourceFile(tmp_path / "input.txt")
    assert gutenberg.tiny_roles(tiny) == [
        Role("First Citizen", ("Before we proceed", "any further.", "No.")),
        Role("All", ("Speak.",)),
    ]
    data = prepare(Shakespeare(root=str(tmp_path), form="tiny"), seed=0)
    assert text_of(data, "test", "First Citizen") == "No.\n"
    tiny.path.write_text("All:\nSpeak.\n\nAll:\nOn.\n", encoding="utf-8-sig")
    assert gutenberg.tiny_roles(tiny) == [Role("All", ("Speak.", "On."))]
    tiny.path.write_text("All:\nSpeak.\n\nno speaker\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"input\.txt, line 4: expected a speaker and a colon, found 'no speaker'"):
        gutenberg.tiny_roles(tiny)


def test_tffs_form_cuts_every_snippet_on_its_own(tmp_path: Path) -> None:
    for side in ("train", "test"):
        hdf5(tmp_path / f"shakespeare_{side}.h5", {"A_B": {"snippets": [b"dh", b"l"]}})
    data = prepare(Shakespeare(root=str(tmp_path), form="tff", length=4), seed=0)
    x, y = data.train.client(0)
    assert x.tolist() == [[BEGIN, 1, 2, END], [BEGIN, 3, END, PADDING]]
    assert y.tolist() == [[1, 2, END, PADDING], [3, END, PADDING, PADDING]]


def leaf(folder: Path, side: str, user_data: dict[str, Any]) -> None:
    (folder / "data" / side).mkdir(parents=True)
    content = {
        "users": list(user_data),
        "num_samples": [len(data["y"]) for data in user_data.values()],
        "user_data": user_data,
    }
    (folder / "data" / side / "all.json").write_text(json.dumps(content))


def test_leafs_windows_are_joined_to_the_text_they_were_cut_from(tmp_path: Path) -> None:
    for side in ("train", "test"):
        leaf(tmp_path, side, {"HAMLET_BER": {"x": ["abc", "bcd", "xyz"], "y": ["d", "e", "!"]}})
    data = prepare(Shakespeare(root=str(tmp_path), form="leaf", length=8), seed=0)
    assert text_of(data, "train", "HAMLET_BER") == "abcdexyz!"
    assert len(data.train.client(0)[1]) == 2


@pytest.mark.parametrize(
    ("x", "y", "problem"),
    [
        ("ab~", "c", "expected only the 86 characters of the vocabulary, found '~'"),
        ("ab\ud800", "c", r"expected only the 86 characters of the vocabulary, found '\\ud800'"),
        ("abc", "de", "its next character"),
    ],
)
def test_leafs_texts_hold_no_unknown_character(tmp_path: Path, x: str, y: str, problem: str) -> None:
    for side in ("train", "test"):
        leaf(tmp_path, side, {"u": {"x": [x], "y": [y]}})
    with pytest.raises(DataError, match=rf"all\.json, user 'u': .*{problem}"):
        prepare(Shakespeare(root=str(tmp_path), form="leaf"), seed=0)


def test_tinyshakespeares_file_is_pointed_at(tmp_path: Path) -> None:
    (tmp_path / "input.txt").write_text("A:\nwords\n")
    with pytest.raises(
        DataError, match=r"input\.txt, which is there, is read by .*data\.form = 'tiny'; .*pg100\.txt is"
    ):
        prepare(Shakespeare(root=str(tmp_path)), seed=0)


@pytest.mark.parametrize(("name", "roles", "longer"), [("pg100.txt", 1301, 1144), ("t8.shakespeare.txt", 1302, 1145)])
def test_the_published_editions_have_leafs_roles(public: Public, name: str, roles: int, longer: int) -> None:
    found = gutenberg.roles(SourceFile(public("shakespeare") / name))
    assert len(found) == len({role.name for role in found}) == roles
    assert sum(len(role.lines) > 2 for role in found) == longer


@pytest.mark.parametrize("name", ["pg100.txt", "t8.shakespeare.txt"])
def test_the_published_editions_take_the_papers_local_steps(public: Public, name: str, tmp_path: Path) -> None:
    """u = E n / (K B) of table 2 of McMahan et al., n lines of K roles: 7.4, 1.5 and 37.1, in this edition within 1 %.
    Their characters, with one for every line's end, are 3,564,579 and 870,014."""
    (tmp_path / name).symlink_to(public("shakespeare") / name)
    data = prepare(Shakespeare(root=str(tmp_path), min_lines=3), seed=0)
    lines = data.train.sizes().mean()
    assert (lines / 10, lines / 50, 5 * lines / 10) == pytest.approx((7.4, 1.5, 37.1), rel=0.01)
    for split, printed in (("train", 3_564_579), ("test", 870_014)):
        part = data.split(split)
        characters_of = [np.count_nonzero(part.client(position)[1]) for position in range(len(part))]
        assert sum(characters_of) == pytest.approx(printed, rel=0.01)


def test_the_published_tiny_file(public: Public) -> None:
    data = prepare(Shakespeare(root=str(public("tinyshakespeare")), form="tiny"), seed=0)
    assert data.train.id_of(0) == "First Citizen"
    assert text_of(data, "train", "First Citizen").startswith(
        "Before we proceed any further, hear me speak.\nYou are all"
    )


@pytest.mark.parametrize("form", ["tff", "leaf"])
@pytest.mark.parametrize("keys", [{"min_lines": 3}, {"example": "window"}])
def test_keys_of_lines_are_not_read_in_silence_where_there_are_none(form: str, keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="example and min_lines are of forms 'mcmahan' and 'tiny'"):
        Shakespeare.model_validate({"form": form, **keys})
    Shakespeare.model_validate({"form": form, "example": "line", "min_lines": 2})
    Shakespeare.model_validate({"form": "tiny", **keys})
