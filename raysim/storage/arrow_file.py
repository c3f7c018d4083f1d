"""Opens Arrow files that may come from elsewhere, once the buffers of their batches are known to be of bounded size.

Arrow maps a batch's buffers, and copies none: unless they are compressed. Then each begins with the size that it
unpacks to, which Arrow believes and allocates. And a forged file can name one batch any number of times. pyarrow tells
neither, so both are read here, from the flatbuffers of Arrow's format (Footer, Message and RecordBatch in its File.fbs
and Message.fbs).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from raysim.errors import RaysimError
from raysim.storage import unpacked
from raysim.storage.reading import parsing, regular

_MAGIC = b"ARROW1"
_CONTINUED = 0xFFFFFFFF

_FOOTER_DICTIONARIES, _FOOTER_BATCHES = 2, 3
_MESSAGE_KIND, _MESSAGE_HEADER = 1, 2
_BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 3
_DICTIONARY_BATCH, _DICTIONARY_DATA = 2, 1
"""Places of fields in the tables of Arrow's format, and the number that says that a message is a dictionary's."""


class _Block(NamedTuple):
    """Where a message lies, of so many bytes, and how long the body behind it is."""

    start: int
    head_bytes: int
    body_bytes: int


class _Flat(NamedTuple):
    """A table of a flatbuffer: `fields` say where its fields lie behind `start`; 0: not there."""

    content: memoryview
    start: int

    @classmethod
    def root(cls, content: memoryview) -> _Flat:
        """Return the table that a flatbuffer holds."""
        return cls(content, 0).at(0)

    def at(self, place: int) -> _Flat:
        """Return the table to which the number at `place` leads."""
        return _Flat(self.content, place + self._number("<I", place))

    def place(self, field: int) -> int | None:
        """Return where a field lies; None: it is not there."""
        fields = self.start - self._number("<i", self.start)
        offset = 4 + 2 * field
        if fields < 0 or offset >= self._number("<H", fields):
            return None
        within = self._number("<H", fields + offset)
        return self.start + within if within else None

    def table(self, field: int) -> _Flat | None:
        """Return the table in a field; None: it is not there."""
        place = self.place(field)
        return None if place is None else self.at(place)

    def byte(self, field: int) -> int:
        """Return the number in a field of one byte."""
        place = self.place(field)
        return 0 if place is None else self._number("<B", place)

    def structs(self, field: int, form: str) -> Iterator[tuple[int, ...]]:
        """Yield the structs in a field, which is a vector of them; none if it is not there."""
        place = self.place(field)
        if place is not None:
            first = place + self._number("<I", place)
            size = struct.calcsize(form)
            count = self._number("<I", first)
            yield from struct.iter_unpack(form, _part(self.content, first + 4, count * size))

    def _number(self, form: str, place: int) -> int:
        return int(struct.unpack_from(form, self.content, place)[0]) if place >= 0 else -1


def opened(
    path: Path,
    error: type[RaysimError],
    packed: bool = True,
    expected: str = "an Arrow file",
    verdict: str = " is damaged",
) -> pa.RecordBatchFileReader:
    """Map an Arrow file.

    Args:
        path: of the file.
        error: the class of the errors.
        packed: whether its batches may unpack to more than the file has, if that is free in this machine's memory.
        expected: what it should be.
        verdict: see `parsing`.

    Raises:
        RaysimError: of the class `error`; it is another kind of file, or unpacks to more.
    """
    regular(path, error)
    with parsing(path, expected, error, verdict):
        source = pa.memory_map(str(path))
        size, stored = sum(_unpacked_bytes(memoryview(source.read_buffer()))), source.size()
        if size > stored and not packed:
            raise ValueError(f"its batches unpack to {size:,} bytes, and it has {stored:,}")
        if size > stored:
            unpacked.check(path, size, error)
        source.seek(0)
        return pa.ipc.open_file(source)


def _unpacked_bytes(content: memoryview) -> Iterator[int]:
    """Yield what each buffer of a file unpacks to, of a batch that is named several times several times."""
    tail = len(content) - len(_MAGIC)
    if content[: len(_MAGIC)] != _MAGIC or tail < 4 or content[tail:] != _MAGIC:
        raise ValueError("it does not begin and end as one")
    (length,) = struct.unpack_from("<i", content, tail - 4)
    footer = _Flat.root(_part(content, tail - 4 - length, length))
    for field in (_FOOTER_DICTIONARIES, _FOOTER_BATCHES):
        for block in footer.structs(field, "<qi4xq"):
            yield from _of_block(content, _Block(*block))


def _of_block(content: memoryview, block: _Block) -> Iterator[int]:
    head = _part(content, block.start, block.head_bytes)
    begins = 8 if struct.unpack_from("<I", head)[0] == _CONTINUED else 4
    message = _Flat.root(head[begins:])
    batch = message.table(_MESSAGE_HEADER)
    if batch is not None and message.byte(_MESSAGE_KIND) == _DICTIONARY_BATCH:
        batch = batch.table(_DICTIONARY_DATA)
    if batch is None:
        raise ValueError("a batch is missing")
    body = _part(content, block.start + block.head_bytes, block.body_bytes)
    is_compressed = batch.place(_BATCH_COMPRESSION) is not None
    for start, length in batch.structs(_BATCH_BUFFERS, "<qq"):
        stored = _part(body, start, length)
        # -1: this one is not compressed.
        size = struct.unpack_from("<q", stored)[0] if is_compressed and length else length
        yield max(size, length)


def _part(content: memoryview, start: int, length: int) -> memoryview:
    if start < 0 or length < 0 or start + length > len(content):
        raise ValueError("it is cut off, or names places outside of it")
    return content[start : start + length]
