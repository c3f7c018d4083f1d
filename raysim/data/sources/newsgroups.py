"""Reads 20 Newsgroups, by date: 11,314 messages for training and 7,532 later ones for test."""

from __future__ import annotations

import re
from typing import Literal

import numpy as np
from pydantic import Field

from raysim.config.section import Section
from raysim.config.values import FilePath
from raysim.data.partitioned import Partitioned
from raysim.data.source import Source
from raysim.data.sources import packed
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.data.tokens import texts
from raysim.data.tokens.texts import Texts, Tokens
from raysim.data.tokens.words import Words
from raysim.errors import DataError

ARCHIVE = Published("20news-bydate.tar.gz", "http://qwone.com/~jason/20Newsgroups/20news-bydate.tar.gz")
_CLASSES = 20
_SIDES = {"20news-bydate-train": "train", "20news-bydate-test": "test"}
_QUOTED = re.compile(r"^\s*[>|:]|writes:\s*$|wrote:\s*$|^In article\b", re.IGNORECASE)
_EMPTY_LINE = re.compile(r"\n\r?\n")
"""An archive that was packed anew may have the line ends of Windows."""


class Newsgroups(Partitioned, Section):
    """Twenty groups, one message per file (Lang 1995; the version by date of Rennie). Classes are the groups in
    alphabetical order.
    """

    name: Literal["newsgroups"] = "newsgroups"
    root: FilePath | None = Field(
        None, description="Folder with 20news-bydate.tar.gz. Absent: $RAYSIM_DATA/20news-bydate or data/20news-bydate."
    )
    headers: bool = Field(
        True,
        description=(
            "Keep everything above a message's first empty line: subject, sender, organisation. They give classes "
            "away; papers differ, and seldom state it."
        ),
    )
    quotes: bool = Field(True, description="Keep lines that quote another message.")
    tokens: Tokens = Field(Words(length=300), description="How texts become numbers.")


def open_source(section: Newsgroups) -> Source:
    """Find the archive; DataError naming it if it is missing."""
    file = ARCHIVE.find(locate(section.root, "20news-bydate", (ARCHIVE,)))
    source = texts.source(
        "newsgroups", [file.digest], lambda: read(file, section.headers, section.quotes), section.tokens
    )
    # Where headers end is said because it was another place once.
    return source if section.headers else source._replace(address={**source.address, "empty_line": _EMPTY_LINE.pattern})


def read(file: SourceFile, headers: bool = True, quotes: bool = True) -> Texts:
    """Return all messages, Latin-1, in the archive's order.

    Raises:
        DataError: the archive is not whole, or one side lacks a group.
    """
    messages: dict[str, list[tuple[str, str]]] = {"train": [], "test": []}
    for name, content in packed.members(file.path, lambda name: _side_and_group(name) is not None):
        side, group = _side_and_group(name) or ("", "")
        messages[side].append((group, _body(content.decode("latin-1"), headers, quotes)))
    groups = {side: sorted({group for group, _ in found}) for side, found in messages.items()}
    if len(groups["train"]) != _CLASSES or groups["test"] != groups["train"]:
        raise DataError(
            f"{file.path}: expected the same {_CLASSES} groups in {' and '.join(_SIDES)}, found {len(groups['train'])} "
            f"and {len(groups['test'])}"
        )
    number = {group: label for label, group in enumerate(groups["train"])}
    train, test = messages["train"], messages["test"]
    return Texts(
        num_classes=_CLASSES,
        train=[text for _, text in train],
        train_y=np.array([number[group] for group, _ in train], np.int64),
        test=[text for _, text in test],
        test_y=np.array([number[group] for group, _ in test], np.int64),
    )


def _side_and_group(name: str) -> tuple[str, str] | None:
    """Return the side and the group of a message's path; None for any other path."""
    match name.split("/"):
        case [folder, group, _] if folder in _SIDES:
            return _SIDES[folder], group
    return None


def _body(text: str, headers: bool, quotes: bool) -> str:
    if not headers:
        head = _EMPTY_LINE.search(text)
        text = "" if head is None else text[head.end() :]
    if not quotes:
        text = "\n".join(line for line in text.splitlines() if not _QUOTED.search(line))
    return text
