"""Converts sentences to rows of word numbers; each word is the target of the one before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from raysim.data.field import Field

PADDING, FIRST = 0, 1


@dataclass(frozen=True, eq=False)
class Sentences:
    """0 is padding, 1 to V the vocabulary by frequency, V + 1 any other word, V + 2 begin, V + 3 end.

    Attributes:
        numbers: word -> number.
        length: places of a row.
    """

    numbers: Mapping[str, int]
    length: int

    @property
    def unknown(self) -> int:
        """The number of a word outside the vocabulary."""
        return len(self.numbers) + FIRST

    @property
    def num_classes(self) -> int:
        """V + 4."""
        return self.unknown + 3

    @property
    def dtype(self) -> str:
        """The smallest dtype that holds all numbers and that torch supports."""
        return "int16" if self.num_classes <= np.iinfo(np.int16).max else "int32"

    @property
    def x(self) -> Field:
        """The field of inputs."""
        return Field((self.length,), self.dtype)

    @property
    def y(self) -> Field:
        """The field of targets: accuracy counts neither padding nor the three marks (Charles et al. 2021, A.1)."""
        marks = (self.unknown, self.unknown + 1, self.unknown + 2)
        return Field((self.length,), self.dtype, padding=PADDING, uncounted=marks)

    def rows(self, texts: Sequence[str]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return x and y (texts, length): begin, the first `length` words, and end if there is a place for it.

        Blanks divide words. Other white space is part of a word, as in TensorFlow Federated.
        """
        unknown, begin, end = self.unknown, self.unknown + 1, self.unknown + 2
        stream = np.full((len(texts), self.length + 1), PADDING, self.dtype)
        get = self.numbers.get
        for row, text in zip(stream, texts, strict=True):
            words = [get(word, unknown) for word in [word for word in text.split(" ") if word][: self.length]]
            if len(words) < self.length:
                words.append(end)
            row[0] = begin
            row[1 : len(words) + 1] = words
        x, y = stream[:, :-1].copy(), stream[:, 1:]
        x[y == PADDING] = PADDING  # the end mark is not an input
        return x, y
