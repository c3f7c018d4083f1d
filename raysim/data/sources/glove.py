"""Reads vectors of words in the text form of GloVe: a line has a word and its numbers, separated by blanks."""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from raysim.data.sources.published import SourceFile
from raysim.data.tokens.words import FIRST
from raysim.errors import DataError, MissingFileError

log = logging.getLogger("raysim")

PUBLISHED = "https://nlp.stanford.edu/projects/glove"


def read(path: str, words: Sequence[str], width: int) -> npt.NDArray[np.float32]:
    """Return the vectors of padding, of an unknown word, and of these words, (2 + words, width).

    Padding, an unknown word and a word that is not in the file have zeros. A word of the file may hold blanks, as some
    of GloVe's do; none of `words` does. Of a word that the file has twice, the first vector is taken, with a warning.

    Args:
        path: of the file.
        words: as they are numbered, the first one by 2.
        width: numbers of a vector, the key `model.embedding`.

    Raises:
        MissingFileError: there is no file; says where GloVe's are published.
        DataError: a line has another form, or the file has none of the words.
    """
    place = Path(path).expanduser()
    if not place.exists():
        raise MissingFileError(
            f"model.vectors: {path} is missing; GloVe's vectors are published at {PUBLISHED}, those of Yang et al. "
            f"(2023) in glove.6B.zip: unpack {place.name} and put it there"
        )
    file = SourceFile(place)
    rows = np.zeros((FIRST + len(words), width), np.float32)
    number = {word.encode(): row for row, word in enumerate(words, start=FIRST)}
    found, again = set[int](), list[bytes]()
    with file.reading(f"a word and {width} numbers a line"), place.open("rb") as stream:
        line = b""
        if stream.read(len(BOM_UTF8)) != BOM_UTF8:
            stream.seek(0)
        for count, line in enumerate(stream, start=1):
            row = number.get(line.partition(b" ")[0])
            # Other lines are only looked at where another kind of file shows: a gigabyte takes minutes to parse.
            if row is not None or count == 1:
                vector = _vector(line, width, f"{path}, line {count}", is_first=count == 1)
                if row is None or vector is None:
                    continue
                if row in found:
                    again.append(line.partition(b" ")[0])
                else:
                    rows[row] = vector
                    found.add(row)
        if line:
            _vector(line, width, f"{path}, its last line", is_first=False)
    if not found:
        raise DataError(
            f"{path} has none of the {len(words):,} words of the training texts: it must be a text file of vectors of "
            f"lower-case words, such as glove.6B.300d.txt"
        )
    if again:
        log.warning(
            "%s has %d words twice, the first is %r: their first vectors are taken",
            path,
            len(again),
            again[0].decode("utf-8", "replace")[:40],
        )
    log.info("%s: %d of %d words have a vector, the others are zero", path, len(found), len(words))
    return rows


def _vector(line: bytes, width: int, where: str, is_first: bool) -> npt.NDArray[np.float32] | None:
    """Return the line's numbers; None if its word holds blanks, which the first one's does not."""
    word, *parts = line.decode("utf-8").rstrip("\r\n").split(" ")
    if len(parts) > width and not is_first:
        return None
    if len(parts) != width:
        raise DataError(
            f"{where}: expected a word and {width} numbers (model.embedding), found {word[:40]!r} and {len(parts)} "
            f"numbers: the file is cut off, or its vectors have another width"
        )
    if any("_" in part or not part.isascii() for part in parts):
        # Python reads 1_000, and digits of other scripts.
        raise DataError(f"{where}: expected numbers in decimal digits, found others")
    with np.errstate(over="ignore"):
        vector = np.array([float(part) for part in parts], np.float32)
    if not np.isfinite(vector).all():
        raise DataError(f"{where}: expected finite numbers, found others")
    return vector
