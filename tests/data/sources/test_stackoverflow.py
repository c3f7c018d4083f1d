"""Stack Overflow: sentences as numbered words, from both of TensorFlow Federated's formats."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.section import Stackoverflow
from raysim.data.sources import tf_example
from raysim.data.sources.sentences import PADDING, Sentences
from raysim.errors import DataError, ExperimentError
from tests.support.tff_files import field, hdf5, message, sqlite, varint

VOCABULARY = {"the": 1, "a": 2, "list": 3}
UNKNOWN, BEGIN, END = 4, 5, 6
USERS = {
    "train": {"10": ["the list", "a"], "9": ["list"]},
    "heldout": {"8": ["the"]},
    "test": {"10": ["a a a a a"]},
}


def test_a_row_is_begin_and_words_and_its_targets_are_words_and_end() -> None:
    x, y = Sentences(VOCABULARY, 4).rows(["the nice list", "a a a a a", "a", ""])
    assert x.tolist() == [[BEGIN, 1, UNKNOWN, 3], [BEGIN, 2, 2, 2], [BEGIN, 2, 0, 0], [BEGIN, 0, 0, 0]]
    assert y.tolist() == [[1, UNKNOWN, 3, END], [2, 2, 2, 2], [2, END, 0, 0], [END, 0, 0, 0]]


def test_ten_thousand_words_make_10_004_classes() -> None:
    sentences = Sentences({str(number): number for number in range(1, 10_001)}, 20)
    assert (sentences.num_classes, sentences.dtype) == (10_004, "int16")
    assert (sentences.y.padding, sentences.y.uncounted) == (PADDING, (10_001, 10_002, 10_003))


@given(words=st.lists(st.sampled_from([*VOCABULARY, "other"]), max_size=8), length=st.integers(1, 6))
def test_a_target_is_the_next_input(words: list[str], length: int) -> None:
    (x,), (y,) = Sentences(VOCABULARY, length).rows([" ".join(words)])
    assert x[1:].tolist() == [0 if number == END else number for number in y[:-1].tolist()]
    assert [n for n in y.tolist() if n not in (PADDING, END)] == [VOCABULARY.get(w, UNKNOWN) for w in words[:length]]


def word_counts(folder: Path) -> None:
    (folder / "stackoverflow.word_count").write_text(json.dumps({"the": 9, "a": 5, "list": 2, "rare": 1}))


def as_hdf5(folder: Path) -> None:
    word_counts(folder)
    for split, name in (("train", "train"), ("heldout", "held_out"), ("test", "test")):
        clients = {user: {"tokens": [text.encode() for text in texts]} for user, texts in USERS[split].items()}
        hdf5(folder / f"stackoverflow_{name}.h5", clients)


def as_sqlite(folder: Path) -> None:
    word_counts(folder)
    splits = {
        split: {user: [{"tokens": t.encode(), "score": [3]} for t in texts] for user, texts in users.items()}
        for split, users in USERS.items()
    }
    sqlite(folder / "stackoverflow.sqlite", splits)


def stackoverflow(folder: Path, **keys: Any) -> FederatedDataset:
    keys = {"root": str(folder), "vocabulary": 3, "length": 4, **keys}
    return prepare(Stackoverflow.model_validate(keys), seed=0)


@pytest.mark.parametrize("write", [as_hdf5, as_sqlite])
def test_users_are_clients_and_held_out_users_validate(tmp_path: Path, write: Any) -> None:
    write(tmp_path)
    data = stackoverflow(tmp_path)
    assert [data.train.id_of(position) for position in range(2)] == ["10", "9"]
    assert data.train.client(0)[1].tolist() == [[1, 3, END, 0], [2, END, 0, 0]]
    assert data.split("validation").id_of(0) == "8"
    assert data.split("test").client(0)[0].tolist() == [[BEGIN, 2, 2, 2]]


def test_a_training_client_keeps_its_first_sentences(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    assert stackoverflow(tmp_path, max_examples=1).train.sizes().tolist() == [1, 1]
    assert Stackoverflow().max_examples == 1000


def test_validation_users_are_the_sources_own(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with pytest.raises(ExperimentError, match=r"validation clients of its own: remove data\.holdout"):
        stackoverflow(tmp_path, holdout=0.5)


def test_the_vocabulary_is_the_beginning_of_the_counts(tmp_path: Path) -> None:
    as_sqlite(tmp_path)
    with pytest.raises(DataError, match=r"word_count: expected at least data\.vocabulary = 5 words.*found 4 words"):
        stackoverflow(tmp_path, vocabulary=5)
    (tmp_path / "stackoverflow.word_count").write_text('{"the": 9')
    with pytest.raises(DataError, match=r"word_count: expected a json object of words and counts"):
        stackoverflow(tmp_path)
    (tmp_path / "stackoverflow.word_count").unlink()
    with pytest.raises(DataError, match=r"stackoverflow\.word_count is missing.*word_count\.tar\.bz2"):
        stackoverflow(tmp_path)


def test_counts_are_numbers_and_said_not_to_fall(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    as_sqlite(tmp_path)
    counts = tmp_path / "stackoverflow.word_count"
    counts.write_text('{"the": 9, "a": "7", "of": 1}')
    with pytest.raises(DataError, match=r"expected a whole number as the count of 'a', found '7'"):
        stackoverflow(tmp_path, vocabulary=3)
    counts.write_text('{"the": 1, "a": 7, "of": 1}')
    stackoverflow(tmp_path, vocabulary=3)
    assert "is not in falling order of counts" in caplog.text
    caplog.clear()
    counts.write_text('{"the": 9, "a": 7, "of": 1, "rare": 1, "frequent": 2}')
    stackoverflow(tmp_path, vocabulary=3)
    assert "is not in falling order of counts" in caplog.text
    counts.write_text('{"the": 9, "a": 7, "of": 1, "": null}')
    with pytest.raises(DataError, match="expected a whole number as the count of '', found None"):
        stackoverflow(tmp_path, vocabulary=3)


def test_blanks_alone_divide_words(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As in TensorFlow Federated, which splits at " "; a word of the vocabulary may hold other white space."""
    x, _ = Sentences({"a\u00a0b": 1, "c": 2}, 4).rows(["a\u00a0b c\u3000c", "  c \t  c"])
    assert x.tolist() == [[4, 1, 3, 0], [4, 2, 3, 2]]
    as_sqlite(tmp_path)
    (tmp_path / "stackoverflow.word_count").write_text('{"the": 9, "a b": 7, "": 5}')
    stackoverflow(tmp_path, vocabulary=3)
    assert "2 words of the vocabulary are in no sentence, as blanks divide words; the first is 'a b'" in caplog.text


@pytest.mark.parametrize(
    ("example", "problem"),
    [
        ({"text": b"a"}, r"expected one text as tokens, found \[\]"),
        ({"tokens": [1]}, "found"),
        ({"tokens": b"\xff"}, "expected text in UTF-8"),
    ],
)
def test_an_example_without_text_is_named(tmp_path: Path, example: dict[str, Any], problem: str) -> None:
    word_counts(tmp_path)
    sqlite(tmp_path / "stackoverflow.sqlite", {"train": {"77": [example]}})
    with pytest.raises(DataError, match=rf"client '77': .*{problem}"):
        stackoverflow(tmp_path)


@given(
    text=st.binary(max_size=300),
    floats=st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=40),
    integers=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
)
def test_messages_are_read_as_they_were_written(text: bytes, floats: list[float], integers: list[int]) -> None:
    written = message({"tokens": text, "pixels": floats, "label": integers})
    assert tf_example.parse(written) == {"tokens": [text], "pixels": floats, "label": integers}


def test_a_feature_that_is_there_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="it has the feature 'tokens' twice"):
        tf_example.parse(message({"tokens": b"a"}) + message({"tokens": b"b"}))


TEXTS, NUMBERS = field(1, field(1, b"the")), field(3, field(1, varint(7)))
NAME = field(1, b"tokens")


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (NAME + field(2, TEXTS + NUMBERS), "must have one list of values"),
        (NAME + field(2, TEXTS + TEXTS), "must have one list of values"),
        (NAME + field(2, TEXTS) + field(2, TEXTS), "must have one name and one value"),
        (NAME + field(1, b"other") + field(2, TEXTS), "must have one name and one value"),
        (NAME + varint(2 << 3) + varint(5), "must have one name and one value"),
        (NAME + field(2, field(1, varint(1 << 3) + varint(5))), "a list of kind 1 has a value of wire type 0"),
        (NAME + field(2, field(2, varint(1 << 3 | 1) + bytes(8))), "a list of kind 2 has a value of wire type 1"),
        (NAME + field(2, field(2, varint(1 << 3) + varint(5))), "a list of kind 2 has a value of wire type 0"),
        (NAME + field(2, field(3, varint(1 << 3 | 5) + bytes(4))), "a list of kind 3 has a value of wire type 5"),
        (NAME + field(2, field(3, field(1, b"\xff" * 9 + b"\x02"))), "has more than 64 bits"),
        (NAME + field(2, field(3, field(1, b"\xff" * 1000 + b"\x01"))), "number before byte 10 has more than 64 bits"),
    ],
)
def test_a_value_that_another_parser_would_read_in_another_way_is_refused(entry: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        tf_example.parse(field(1, field(1, entry)))


def test_values_need_not_be_packed_and_unknown_fields_are_left_out() -> None:
    floats = field(2, struct.pack("<Bf", 1 << 3 | 5, 0.5) + struct.pack("<Bf", 1 << 3 | 5, 2.0))
    entry = field(1, b"x") + field(2, field(9, b"later") + floats) + field(7, b"later")
    later = field(8, b"later") + varint(9 << 3 | 1) + bytes(8)
    assert tf_example.parse(field(1, field(1, entry) + field(5, b"")) + later) == {"x": [0.5, 2.0]}


def test_half_a_message_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected \d+ bytes at byte \d+, found \d+"):
        tf_example.parse(message({"tokens": b"the list"})[:-3])
