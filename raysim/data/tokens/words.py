"""Defines word tokens: the most frequent words of the training texts, and one number for all others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import Width

PADDING, UNKNOWN, FIRST = 0, 1, 2
"""Numbers of padding, of a word outside the vocabulary, and of the most frequent word."""

_WORD = re.compile(r"[a-z0-9]+(?:'[a-z]+)?|[^\sa-z0-9]")


class Words(Section):
    """Lower-case words and single punctuation marks: 0 is padding, 1 an unknown word, 2 the most frequent word, ..."""

    name: Literal["words"] = "words"
    vocabulary: Width = Key(
        30_000, description="Largest number of words in the vocabulary; ties are broken alphabetically."
    )
    length: Width = Key(128, description="Tokens of an example: the first of the text, padded at the end.")

    @property
    def numbers(self) -> int:
        """Every number of a row is below this."""
        return FIRST + self.vocabulary


def split(text: str) -> list[str]:
    """Split a text into words, in order: runs of letters and digits (with `'s` and the like), and single marks."""
    return _WORD.findall(text.lower())


def most_frequent(texts: Iterable[str], vocabulary: int) -> dict[str, int]:
    """Return the number of each word of the vocabulary."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(split(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:vocabulary]
    return {word: number for number, word in enumerate(ranked, start=FIRST)}


def encode(texts: Sequence[str], numbers: dict[str, int], length: int) -> npt.NDArray[np.int32]:
    """Return rows of `length` numbers, (texts, length)."""
    rows = np.full((len(texts), length), PADDING, np.int32)
    for row, text in zip(rows, texts, strict=True):
        tokens = [numbers.get(word, UNKNOWN) for word in split(text)[:length]]
        row[: len(tokens)] = tokens
    return rows
