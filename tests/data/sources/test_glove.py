"""Vectors of words in the text form of GloVe."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysim.data.sources import glove
from raysim.errors import DataError, MissingFileError

# Like the published files: no header, words of several parts and of other alphabets, numbers with a sign.
LINES = ["the 0.25 -1.5 3", ". . 9 9 9", "über 1 2 4", "oil -0.5 0 2e-1", "the price 7 7 7"]


def written(folder: Path, *lines: str, end: str = "\n") -> str:
    file = folder / "glove.6B.3d.txt"
    file.write_bytes(("\n".join(lines) + end).encode("utf-8"))
    return str(file)


def test_rows_are_in_the_order_of_the_words_and_zero_where_there_is_no_vector(tmp_path: Path) -> None:
    found = glove.read(written(tmp_path, *LINES), ["oil", "barrel", "the", "über", "."], 3)
    zero = [0.0, 0.0, 0.0]
    expected = [zero, zero, [-0.5, 0, 0.2], zero, [0.25, -1.5, 3], [1, 2, 4], zero]
    np.testing.assert_array_equal(found, np.array(expected, np.float32))


def test_of_a_word_that_is_there_twice_the_first_vector_is_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = glove.read(written(tmp_path, "the 1 2 3", "oil 4 5 6", "the 7 8 9"), ["the", "oil"], 3)
    assert found[2:].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert "has 1 words twice, the first is 'the'" in caplog.text


def test_a_mark_of_utf_8_is_no_part_of_the_first_word(tmp_path: Path) -> None:
    found = glove.read(written(tmp_path, "\ufeffthe 1 2 3", "oil 4 5 6"), ["the", "oil"], 3)
    assert found[2:].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_a_missing_file_is_named_with_its_address(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"none\.txt is missing.*nlp\.stanford\.edu/projects/glove.*glove\.6B"):
        glove.read(str(tmp_path / "none.txt"), ["oil"], 3)


@pytest.mark.parametrize(
    ("lines", "end", "said"),
    [
        (LINES, "", ""),
        (["the 1 2"], "\n", "line 1: expected a word and 3 numbers .*found 'the' and 2 numbers: .*another width"),
        (["the 1 2 3 4"], "\n", "line 1: expected a word and 3 numbers .*found 'the' and 4 numbers"),
        (["400000 3", *LINES], "\n", "line 1: expected a word and 3 numbers .*found '400000' and 1"),
        ([*LINES, "talks 1 2"], "", "its last line: .*found 'talks' and 2 numbers: the file is cut off"),
        (["the 1 2 3", "oil 1 2", "go 1 2 3"], "\n", "line 2: .*found 'oil' and 2 numbers"),
        (["the 1 2 3", "oil 1 x 3"], "\n", "expected a word and 3 numbers a line: could not convert"),
        (["the 1 2 3", "oil 1 1_0 3"], "\n", "line 2: expected numbers in decimal digits"),
        (["the 1 2 3", "oil 1 \u0661 3"], "\n", "line 2: expected numbers in decimal digits"),
        (["the 1 2 3", "oil 1 1e99 3"], "\n", "line 2: expected finite numbers"),
        (["the 1 2 3", "oil 1 nan 3"], "\n", "line 2: expected finite numbers"),
        (["der 1 2 3"], "\n", "has none of the 2 words of the training texts"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, lines: list[str], end: str, said: str) -> None:
    path = written(tmp_path, *lines, end=end)
    if not said:
        assert glove.read(path, ["oil"], 3).any()
        return
    with pytest.raises(DataError, match=f"glove.6B.3d.txt.*{said}"):
        glove.read(path, ["oil", "the"], 3)
