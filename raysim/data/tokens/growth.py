"""Bounds what a tokeniser makes of a text: a stranger's may replace a letter by thousands, or repeat a text.

The bound goes by the parts that a tokeniser of the package tokenizers is made of, as it writes them itself. A part that
is not known here is refused. Each part multiplies a text's letters at most by a factor, and these multiply.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

MOST_LETTERS = 2**26
"""That texts may become on their way to tokens, together: a letter takes some 30 bytes meanwhile."""

MOST_ADDED = 64
"""Tokens around a text, letters of what marks the parts of a word."""

_FACTORS: Mapping[str, int] = MappingProxyType(
    {
        # Of normalisers: the largest that Unicode has of a letter, where they decompose.
        "BertNormalizer": 12,
        "ByteLevel": 8,
        "Lowercase": 3,
        "NFC": 3,
        "NFD": 4,
        "NFKC": 18,
        "NFKD": 18,
        "Nmt": 1,
        "Strip": 1,
        "StripAccents": 1,
        # Of what divides texts: a mark before each piece.
        "BertPreTokenizer": 1,
        "CharDelimiterSplit": 1,
        "Digits": 1,
        "FixedLength": 1,
        "Metaspace": 2,
        "Punctuation": 1,
        "Split": 1,
        "UnicodeScripts": 1,
        "Whitespace": 1,
        "WhitespaceSplit": 1,
    }
)

_AROUND = frozenset({"BertProcessing", "ByteLevel", "RobertaProcessing"})
"""What puts one mark before a text and one behind it, or none, as a `post_processor`."""

_PARTS = ("normalizers", "pretokenizers", "processors")
"""Keys of the parts of a Sequence."""

_WORD_MARKS = ("continuing_subword_prefix", "end_of_word_suffix")


class TextGrowth(NamedTuple):
    """A text of n letters has at most (n + added) factor letters on its way to tokens."""

    factor: int
    added: int

    def letters(self, text: str) -> int:
        """Return how many letters a text may become."""
        return (len(text) + self.added) * self.factor

    def groups(self, texts: Iterable[str]) -> Iterator[list[str]]:
        """Yield the texts in order, in groups that may become MOST_LETTERS together.

        Raises:
            ValueError: one alone may become more.
        """
        group, total = list[str](), 0
        for text in texts:
            letters = self.letters(text)
            if letters > MOST_LETTERS:
                raise ValueError(
                    f"a text of {len(text):,} letters may become {letters:,} by its parts, and at most "
                    f"{MOST_LETTERS:,} are taken"
                )
            if total + letters > MOST_LETTERS:
                yield group
                group, total = [], 0
            group.append(text)
            total += letters
        if group:
            yield group


def growth_of(tokenizer: Any) -> TextGrowth:
    """Return the growth by a tokeniser of the package tokenizers.

    Raises:
        ValueError: it has a part that is not known, adds many tokens, repeats a text, or draws tokens at random.
    """
    found = json.loads(tokenizer.to_str())
    model = found["model"]
    for name in _WORD_MARKS:
        if len(model.get(name) or "") > MOST_ADDED:
            raise ValueError(f"its {name} has more than {MOST_ADDED} letters")
    if model.get("dropout"):
        raise ValueError(f"its dropout of {model['dropout']:g} draws other tokens each time: set it to null")
    factor, added = 1, 0
    for part in (*_parts(found["normalizer"]), *_parts(found["pre_tokenizer"])):
        added += _added(part)
        factor *= _factor(part)
    for part in _parts(found["post_processor"]):
        if part["type"] == "TemplateProcessing":
            _check_template(part)
        elif part["type"] not in _AROUND:
            raise _unknown(part)
    return TextGrowth(factor, added)


def _unknown(part: dict[str, Any]) -> ValueError:
    return ValueError(f"its part {part['type']!r:.60} is not known")


def _parts(part: Any) -> Iterator[dict[str, Any]]:
    if part is None:
        return
    if part["type"] != "Sequence":
        yield part
        return
    for key in _PARTS:
        for each in part.get(key, ()):
            yield from _parts(each)


def _added(part: dict[str, Any]) -> int:
    return len(part["prepend"]) if part["type"] == "Prepend" else 0


def _factor(part: dict[str, Any]) -> int:
    kind = part["type"]
    if kind == "Prepend":
        return 1
    if kind == "Replace":
        return _of_replacement(part)
    if kind == "Precompiled":
        return _of_table(part["precompiled_charsmap"])
    if kind not in _FACTORS:
        raise _unknown(part)
    return _FACTORS[kind]


def _of_replacement(part: dict[str, Any]) -> int:
    """Return the factor of a pattern's replacement; a regular expression may match between all letters."""
    content, text = len(part["content"]), part["pattern"].get("String")
    return 1 + content if not text else max(1, -(-content // len(text)))


def _of_table(table: str) -> int:
    """Return the length of the longest text by which SentencePiece's table replaces a letter.

    The table is the length of a trie, the trie, and the texts, each ended by a zero.
    """
    content = base64.b64decode(table)
    (trie_bytes,) = struct.unpack_from("<I", content)
    return max(1, *(len(text) for text in content[4 + trie_bytes :].split(b"\0")))


def _check_template(part: dict[str, Any]) -> None:
    pieces = part["single"]
    texts = sum("Sequence" in piece for piece in pieces)
    tokens = sum(
        len(part["special_tokens"][piece["SpecialToken"]["id"]]["ids"]) for piece in pieces if "SpecialToken" in piece
    )
    if texts != 1 or tokens > MOST_ADDED:
        raise ValueError(
            f"its template has a text {texts} times and {tokens:,} tokens around it: once, and at most {MOST_ADDED}, "
            f"are taken"
        )
