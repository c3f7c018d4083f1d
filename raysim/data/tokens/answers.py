"""Converts prompts with answers to rows of token numbers; a token of an answer is the target of the one before."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.data.field import Field
from raysim.data.targets import check_largest
from raysim.data.tokens import encoder
from raysim.data.tokens.encoder import Encode
from raysim.data.tokens.growth import TextGrowth, growth_of
from raysim.errors import DataError
from raysim.storage.reading import content, json_object, json_value, parsing

log = logging.getLogger("raysim")

PADDING = -1
"""The target of a place that is not part of an answer. Tokenisers pad with one that has a meaning; this has none."""

NUMBERS = "tokenizer.json"
SETTINGS = "tokenizer_config.json"


class Line(NamedTuple):
    """A prompt and its answer; `where` names file and line."""

    where: str
    prompt: str
    answer: str


@dataclass(frozen=True, eq=False)
class Answers:
    """A row is the prompt, the end, the answer and the end, cut to `length` + 1 tokens: x all but the last, y the next.

    A prompt and its end take half of a row at most. The end is left out where a tokeniser names none.

    Attributes:
        tokenizer: of the package tokenizers.
        growth: of texts, by the tokeniser.
        path: of the tokeniser, for messages.
        end: the number of the token after a prompt and after an answer; None: there is none.
        length: places of a row.
        num_classes: numbers of the vocabulary.
        address: JSON-able; it determines the tokens in any folder.
    """

    tokenizer: Any
    growth: TextGrowth
    path: Path
    end: int | None
    length: int
    num_classes: int
    address: dict[str, Any]

    @property
    def x(self) -> Field:
        """The field of inputs; unused places at the end hold 0."""
        return Field((self.length,), "int16" if self.num_classes <= np.iinfo(np.int16).max else "int32")

    @property
    def y(self) -> Field:
        """The field of targets: only answers count, and all their places alike."""
        return Field((self.length,), self.x.dtype, padding=PADDING, by_place=True)

    def encoding(self) -> AbstractContextManager[Encode]:
        """Start what encodes texts, as far as a row can hold them, for `rows`."""
        # Tokens that a template would put around a text are left out.
        return encoder.encoding(self.tokenizer, self.growth, self.length + 1)

    def rows(self, lines: Sequence[Line], encode: Encode) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return x and y (lines, length).

        Raises:
            DataError: a prompt or an answer has no token; names its line.
        """
        x = np.zeros((len(lines), self.length), self.x.dtype)
        y = np.full_like(x, PADDING)
        end = [] if self.end is None else [self.end]
        most = self.length // 2 - len(end)
        with parsing(self.path, "a tokeniser of these texts", DataError, verdict=""):
            prompts, answers = (list(encode(texts)) for texts in zip(*(line[1:] for line in lines), strict=True))
        for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            if not (prompt and answer):
                raise DataError(f"{lines[number].where}: the {'answer' if prompt else 'prompt'} has no token")
            first = [*prompt[:most], *end]
            row = [*first, *answer, *end][: self.length + 1]
            x[number, : len(row) - 1] = row[:-1]
            y[number, len(first) - 1 : len(row) - 1] = row[len(first) :]
        return x, y


def read(folder: Path, end: str | None, length: int) -> Answers:
    """Read a folder's tokeniser.

    Args:
        folder: with tokenizer.json.
        end: the token after a prompt and after an answer; None: eos_token of tokenizer_config.json, if it names one.
        length: places of a row.

    Raises:
        DataError: a file is missing or damaged, the tokeniser does not know the end, or the package is missing.
    """
    tokenizer, path = tokeniser(folder), folder / NUMBERS
    source, end = ("data.end", end) if end is not None else (f"eos_token of {folder / SETTINGS}", _end(folder))
    number = None if end is None else tokenizer.token_to_id(end)
    if end is not None and number is None:
        raise DataError(f"{source} must be a token of {path}, but {end!r:.60} is none")
    digest = hashlib.blake2b(content(path, DataError), digest_size=16).hexdigest()
    # Numbers may have gaps.
    largest = max(tokenizer.get_vocab().values())
    check_largest(largest, str(path))
    with parsing(path, "a tokeniser whose texts do not grow without bound", DataError, verdict=""):
        growth = growth_of(tokenizer)
    return Answers(tokenizer, growth, path, number, length, 1 + largest, {"tokeniser": digest, "end": number})


def tokeniser(folder: Path) -> Any:
    """Return the tokeniser in a folder, of the package tokenizers.

    Raises:
        DataError: the file is missing or damaged, or the package is missing.
    """
    try:
        from tokenizers import Tokenizer  # optional: it comes with transformers
    except ImportError:
        raise DataError("data.tokenizer needs the package tokenizers: pip install 'raysim[transformers]'") from None
    path = folder / NUMBERS
    written = content(path, DataError)
    with parsing(path, "a tokeniser, as the package tokenizers saves it", DataError, verdict=""):
        said = json_value(written.decode())
        tokenizer: Any = Tokenizer.from_str(written.decode())
        tokenizer.no_padding()
        tokenizer.no_truncation()
        if not (numbers := tokenizer.get_vocab()):
            raise ValueError("it has no token")
        for added in said.get("added_tokens") or ():
            if numbers.get(added["content"]) != added["id"]:
                raise ValueError(
                    f"it says that {added['content']!r:.60} is {added['id']}, but its vocabulary has "
                    f"{numbers.get(added['content'])}"
                )
    if again := len(numbers) - len(set(numbers.values())):
        log.warning("%s: %d tokens have the number of another one, so the model cannot tell them apart", path, again)
    return tokenizer


def _end(folder: Path) -> str | None:
    """Return the text of a tokeniser's end; None if it has none."""
    if not (folder / SETTINGS).exists():
        return None
    named = json_object(folder / SETTINGS, DataError).get("eos_token")
    token = named.get("content") if isinstance(named, dict) else named
    if named is not None and not isinstance(token, str):
        raise DataError(f"{folder / SETTINGS}: expected a text as eos_token, found {named!r:.60}")
    return token if isinstance(token, str) else None
