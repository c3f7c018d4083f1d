"""Reads Stack Overflow, for the next word: a client for every user (TensorFlow Federated's files)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, Literal

from pydantic import Field as Key

from raysim.config.section import Section
from raysim.config.values import Count, FilePath, Width
from raysim.data.populated import Populated
from raysim.data.source import ClientRows, Population
from raysim.data.sources import hdf5, tff_sqlite
from raysim.data.sources.published import Published, SourceFile
from raysim.data.sources.root import locate
from raysim.data.sources.sentences import FIRST, Sentences
from raysim.errors import DataError
from raysim.storage.reading import json_value

log = logging.getLogger("raysim")

_TFF = "https://storage.googleapis.com/tff-datasets-public"
_FILE_SPLITS = {"train": "train", "validation": "heldout", "test": "test"}

SQLITE = Published("stackoverflow.sqlite", f"{_TFF}/stackoverflow.sqlite.lzma (unpack it)")
HDF5 = {
    split: Published(name, f"{_TFF}/stackoverflow.tar.bz2 (unpack it)")
    for split, name in (
        ("train", "stackoverflow_train.h5"),
        ("validation", "stackoverflow_held_out.h5"),
        ("test", "stackoverflow_test.h5"),
    )
}
WORD_COUNTS = Published("stackoverflow.word_count", f"{_TFF}/stackoverflow.word_count.tar.bz2 (unpack it)")


class Stackoverflow(Populated, Section):
    """Questions and answers, one sentence per example, cut to `length` words; 342,477 training users.

    x is begin and the words, y the next word at each place. The source's held-out users are the validation split.
    Sources: Reddi et al. 2021 and Charles et al. 2021, A.1, which counts at most 1,000 sentences per client.
    """

    name: Literal["stackoverflow"] = "stackoverflow"
    root: FilePath | None = Key(
        None,
        description=(
            "Folder with stackoverflow.sqlite, or the three HDF5 files, and stackoverflow.word_count. Absent: "
            "$RAYSIM_DATA/stackoverflow or data/stackoverflow."
        ),
    )
    vocabulary: Width = Key(10_000, description="Number of most frequent words in the vocabulary.")
    length: Width = Key(20, description="Words of a sentence; longer ones are cut.")
    max_examples: Count | None = Key(
        1000, description="A training client keeps this many of its first sentences. Absent: all."
    )


def open_source(section: Stackoverflow) -> Population:
    """Find the files; DataError naming what is missing."""
    folder = locate(section.root, "stackoverflow", (*HDF5.values(), WORD_COUNTS))
    counts = WORD_COUNTS.find(folder)
    sentences = Sentences(vocabulary(counts, section.vocabulary), section.length)
    if (file := SQLITE.here(folder)) is not None:
        files, train_ids, stream = [file], lambda: tff_sqlite.ids(file, "train"), lambda: _from_sqlite(file, sentences)
    else:
        found = {split: published.find(folder) for split, published in HDF5.items()}
        files = list(found.values())
        train_ids, stream = lambda: hdf5.ids(found["train"]), lambda: _from_hdf5(found, sentences)
    digests = [file.digest for file in (counts, *files)]
    # What words are divided by is said because it was another once.
    address: dict[str, Any] = {"name": "stackoverflow", "files": digests, "divided_by": " "}
    splits = tuple(_FILE_SPLITS)
    return Population(address, sentences.x, sentences.y, sentences.num_classes, train_ids, stream, splits)


def vocabulary(file: SourceFile, size: int) -> dict[str, int]:
    """Return the numbers of the most frequent words, from a json object of counts in falling order.

    Raises:
        DataError: the file holds no such object, another value than a count, or fewer than `size` words.
    """
    with file.reading("a json object of words and counts"):
        counts = json_value(file.path.read_text(encoding="utf-8"))
    if not isinstance(counts, dict) or len(counts) < size:
        found = f"{len(counts)} words" if isinstance(counts, dict) else type(counts).__name__
        raise DataError(
            f"{file.path}: expected at least data.vocabulary = {size} words with their counts, found {found}"
        )
    odd = next((word for word, count in counts.items() if type(count) is not int), None)
    if odd is not None:
        raise DataError(f"{file.path}: expected a whole number as the count of {odd!r:.40}, found {counts[odd]!r:.40}")
    taken = dict(islice(counts.items(), size))
    least, most_behind = min(taken.values()), max(islice(counts.values(), size, None), default=0)
    if any(before < after for before, after in pairwise(taken.values())) or least < most_behind:
        log.warning("%s is not in falling order of counts: its first %d words are the vocabulary", file.path, size)
    if never := [word for word in taken if not word or " " in word]:
        log.warning(
            "%s: %d words of the vocabulary are in no sentence, as blanks divide words; the first is %.40r",
            file.path,
            len(never),
            never[0],
        )
    return {word: number for number, word in enumerate(taken, start=FIRST)}


def _from_hdf5(files: dict[str, SourceFile], sentences: Sentences) -> Iterator[ClientRows]:
    for split, file in files.items():
        for client, columns in hdf5.clients(file, ["tokens"]):
            where = f"{file.path}, client {client!r}"
            with file.reading("texts as tokens"):
                texts = [_decoded(text, where) for text in columns["tokens"].tolist()]
            yield ClientRows(split, client, *sentences.rows(texts))


def _from_sqlite(file: SourceFile, sentences: Sentences) -> Iterator[ClientRows]:
    tff_sqlite.check_splits(file, _FILE_SPLITS.values())
    for split, name in _FILE_SPLITS.items():
        for client, examples in tff_sqlite.clients(file, name):
            where, texts = f"{file.path}, client {client!r}", []
            for example in examples:
                found = example.get("tokens", [])
                if len(found) != 1 or not isinstance(found[0], bytes):
                    raise DataError(f"{where}: expected one text as tokens, found {found!r:.60}")
                texts.append(_decoded(found[0], where))
            yield ClientRows(split, client, *sentences.rows(texts))


def _decoded(text: bytes, where: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: expected text in UTF-8: {error}") from error
