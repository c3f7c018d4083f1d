"""Seals files: a file holds the checksum of its own content, so a bit that changed at rest is noticed.

The content has a mark where its format keeps texts of its own (a key of JSON, the metadata of Parquet or safetensors).
Eight hex digits follow it: the CRC-32 of the whole file, with zeros in their place. So a file stays one file, other
programs read it, and copies keep their checksum. CRC-32 notices every flipped bit; zlib computes it at several GB/s.
"""

from __future__ import annotations

import mmap
import os
import zlib
from pathlib import Path

from raysim.errors import RaysimError
from raysim.storage.reading import tells_nothing, unreadable

MARK = "raysim-crc32:"

_ZEROS = b"00000000"

_MARK_WITHIN = 128 << 20
"""Bytes from a file's begin or end in which its mark is; safetensors' head has at most 100 MB."""

_PIECE_BYTES = 64 << 20

BLANK = f"{MARK}{_ZEROS.decode()}"
"""The text that the content of a file holds, once, before it is sealed."""


def write(file: Path, content: bytes, last: bool = False) -> None:
    """Write the content with its checksum after the mark, whatever digits stand there.

    Args:
        file: written in its place; callers write it aside.
        content: holds `BLANK`.
        last: whether the last mark counts, and not the first: the one that user-given texts cannot come before.
    """
    start = _digits(content, last)
    assert start is not None
    with memoryview(content) as view, file.open("wb") as opened:
        for piece in (view[:start], _checksum(view, start), view[start + len(_ZEROS) :]):
            opened.write(piece)


def seal(file: Path, last: bool = False) -> None:
    """Put the checksum into a file that another library wrote; see `write`."""
    with file.open("r+b") as opened, mmap.mmap(opened.fileno(), 0) as content:
        start = _digits(content, last)
        assert start is not None
        with memoryview(content) as view:
            view[start : start + len(_ZEROS)] = _checksum(view, start)


def flaw(content: bytes | mmap.mmap, last: bool = False) -> str | None:
    """Return what is wrong with a content that was sealed; None if nothing is.

    >>> flaw(b"{}")
    'is damaged, or an earlier raysim or another program wrote it: it has no checksum'
    """
    start = _digits(content, last)
    if start is None:
        return "is damaged, or an earlier raysim or another program wrote it: it has no checksum"
    with memoryview(content) as view:
        found, expected = _checksum(view, start), bytes(view[start : start + len(_ZEROS)])
    if found == expected:
        return None
    return f"is damaged: its content has the checksum {found.decode()}, but it says {expected.decode('latin-1')!r}"


def check(
    path: Path,
    error: type[RaysimError],
    advice: str,
    last: bool = False,
    most_bytes: int | None = None,
    denied: type[RaysimError] | None = None,
) -> None:
    """Check a file against its checksum.

    Args:
        path: the file.
        error: the class of the error.
        advice: what to do about a damaged file, as a sentence; "": the caller says it.
        last: see `write`.
        most_bytes: a larger file is not read; None: it may have any size.
        denied: the class where the file may be whole, but this user may not read it, or this process has no room or
            no more files to read it; None: `error`.

    Raises:
        RaysimError: of the class `error`: the file is larger, has other content than it was sealed with, or cannot be
            read.
    """
    try:
        # A pipe would keep a reader waiting.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            size = os.fstat(file.fileno()).st_size
            if not size:
                why = flaw(b"", last)
            elif most_bytes is not None and size > most_bytes:
                why = f"is damaged: expected at most {most_bytes:,} bytes, found {size:,}"
            else:
                with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    why = flaw(content, last)
    except OSError as reason:
        if tells_nothing(reason):
            # Nothing is known to be damaged.
            raise (denied or error)(f"{path} {unreadable(reason)}.") from None
        why = unreadable(reason, path)
    except ValueError as reason:
        why = f"cannot be read: {reason}"
    if why is not None:
        raise error(f"{path} {why}. {advice}".rstrip())


def _digits(content: bytes | mmap.mmap, last: bool) -> int | None:
    """Return the offset of the checksum's digits."""
    mark = MARK.encode()
    at = content.rfind(mark, max(0, len(content) - _MARK_WITHIN)) if last else content.find(mark, 0, _MARK_WITHIN)
    start = at + len(mark)
    return None if at < 0 or start + len(_ZEROS) > len(content) else start


def _checksum(view: memoryview, start: int) -> bytes:
    before = zlib.crc32(_ZEROS, _crc32(view[:start], 0))
    return f"{_crc32(view[start + len(_ZEROS) :], before):08x}".encode()


def _crc32(view: memoryview, before: int) -> int:
    # In pieces: Ctrl-C waits for the end of a call, and a file from elsewhere may say that it has terabytes.
    for start in range(0, len(view), _PIECE_BYTES):
        before = zlib.crc32(view[start : start + _PIECE_BYTES], before)
    return before
