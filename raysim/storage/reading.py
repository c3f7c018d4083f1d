"""Reads small files that may come from elsewhere: regular ones only, of bounded size; errors name the file."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from raysim.errors import RaysimError, within

MOST_BYTES = 64 << 20
"""Of a record; the largest that raysim writes are a mirror's indices, with about 100 bytes a file."""

_PIECE_BYTES = 1 << 20

MOST_DEPTH = 100
"""Of objects and lists in one another."""

_OF_THE_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})

_MOST_LETTERS = 300

_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


@contextmanager
def parsing(source: object, expected: str, error: type[RaysimError], verdict: str = " is damaged") -> Iterator[None]:
    """Turn whatever a parser raises in the block into an error that names the file.

    Parsers of formats raise many classes of errors for bytes that their writers never wrote; no list of them is whole.
    An error that tells of this machine (a full disk, too many open files) passes unchanged.

    Args:
        source: the file, or its name.
        expected: what it should hold.
        error: the class of the error; raysim's own errors pass unchanged.
        verdict: follows the file's name; "" where another file may have been put there in good faith.
    """
    try:
        yield
    except RaysimError:
        raise
    except Exception as found:
        if isinstance(found, OSError) and found.errno in _OF_THE_MACHINE:
            raise
        if isinstance(found, UnicodeEncodeError) and found.object in str(source):
            # pyarrow opens no such file.
            raise error(f"{str(source)!r} cannot be read: UTF-8 cannot hold its path.") from None
        raise error(f"{source}{verdict}: expected {expected}: {why(found)}") from found


def listed(folder: Path, error: type[RaysimError]) -> list[Path]:
    """Return what lies in a folder.

    Raises:
        RaysimError: of the class `error`: it cannot be read.
    """
    try:
        return list(folder.iterdir())
    except OSError as found:
        raise error(f"{folder} {unreadable(found, folder)}.") from found


def tells_nothing(reason: OSError) -> bool:
    """Return whether an error of reading tells nothing of the file, which may be whole: of the user, or the machine.

    >>> tells_nothing(OSError(errno.EMFILE, "Too many open files")), tells_nothing(OSError(errno.EIO, "I/O error"))
    (True, False)
    """
    return isinstance(reason, PermissionError) or reason.errno in _OF_THE_MACHINE


def unreadable(reason: OSError, path: Path | None = None) -> str:
    """Return why something cannot be read, to follow its name, with what to do where that follows from the reason.

    Args:
        reason: the system's error.
        path: what was to be read; a symbolic link that leads nowhere is named as one.

    >>> unreadable(OSError(errno.EIO, "Input/output error"))
    'cannot be read: Input/output error'
    >>> unreadable(PermissionError(errno.EACCES, "Permission denied"))
    'cannot be read: Permission denied to this user, who needs the right to read it'
    """
    if path is not None and isinstance(reason, FileNotFoundError) and path.is_symlink():
        return f"cannot be read: it is a symbolic link to {os.readlink(path)}, where nothing is"
    advice = " to this user, who needs the right to read it" if isinstance(reason, PermissionError) else ""
    if reason.errno == errno.EMFILE:
        advice = " in this process: raise their limit (ulimit -n)"
    return f"cannot be read: {reason.strerror or within(reason)}{advice}"


def why(error: BaseException) -> str:
    r"""Return an error in one line, without control characters, and of bounded length.

    >>> why(KeyError("users")), why(ValueError("no\nnumber")), why(MemoryError())
    ("'users' is missing", 'no number', 'MemoryError')
    """
    reason = f"{error} is missing" if isinstance(error, KeyError) else str(error)
    line = "".join(letter if letter.isprintable() else " " for letter in reason[: 2 * _MOST_LETTERS]).strip()
    return f"{line[:_MOST_LETTERS]} ..." if len(reason) > _MOST_LETTERS else line or type(error).__name__


def regular(path: Path, error: type[RaysimError], denied: type[RaysimError] | None = None) -> Path:
    """Return the path if a regular file lies there; to open a pipe would wait for a writer, a device might not end.

    Raises:
        RaysimError: of the class `error`; says what is there. Of the class `denied`, if given: see `tells_nothing`.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as reason:
        is_denied = isinstance(reason, OSError) and tells_nothing(reason)
        raise _unreadable(path, reason, (is_denied and denied) or error) from None
    if not stat.S_ISREG(mode):
        raise error(f"{path} must be a file, but is {_KINDS.get(stat.S_IFMT(mode), 'something else')}.")
    return path


def content(path: Path, error: type[RaysimError], most_bytes: int = MOST_BYTES) -> bytes:
    """Return the content of a small regular file.

    Raises:
        RaysimError: of the class `error`: the file is missing, cannot be read, or is larger.
    """
    # Outside of the block: some of raysim's errors are ValueErrors.
    regular(path, error)
    try:
        with open(path, "rb", opener=_without_waiting) as file:
            raw = at_most(file, most_bytes + 1)
    except (OSError, ValueError) as reason:
        raise _unreadable(path, reason, error) from None
    if len(raw) > most_bytes:
        raise error(f"{path} is damaged: expected at most {most_bytes:,} bytes, found more.")
    return raw


def at_most(file: IO[bytes], most_bytes: int) -> bytes:
    """Return what is left of a file, or so many bytes of it.

    `read` would take the memory of all these bytes first: a small file could not be read where little is free.
    """
    raw = bytearray()
    while piece := file.read(min(_PIECE_BYTES, most_bytes - len(raw))):
        raw += piece
    return bytes(raw)


def text(path: Path, error: type[RaysimError], most_bytes: int = MOST_BYTES) -> str:
    """Return the content of a small text file in UTF-8; see `content` for the errors."""
    raw = content(path, error, most_bytes)
    with parsing(path, "text in UTF-8", error):
        return raw.decode("utf-8")


def json_object(path: Path, error: type[RaysimError]) -> dict[str, Any]:
    """Return the JSON object in a file, which is not nested deeply, and whose texts can be written again.

    Raises:
        RaysimError: of the class `error`: see `content`; or it has another content.
    """
    written = text(path, error)
    with parsing(path, "a JSON object", error):
        return checked_object(json_value(written))


def json_value(written: str) -> Any:
    """Return the value of a JSON text; ValueError if it is none, or if an object has a key twice.

    Python's parser would take the last of two values in silence, and other parsers the first.

    >>> json_value('{"a": 1, "b": 2}')
    {'a': 1, 'b': 2}
    """
    return json.loads(written, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"it has the key {twice!r:.60} twice")
    return found


def checked_object(found: Any) -> dict[str, Any]:
    """Return a value that was read from JSON if it is an object as in `json_object`; else raise ValueError."""
    if not isinstance(found, dict):
        raise ValueError(f"it holds a {type(found).__name__}")
    level: list[Any] = [found]
    for _ in range(MOST_DEPTH):
        texts = [each for each in level if isinstance(each, str)]
        # JSON can hold halves of surrogate pairs, which no text in UTF-8 has.
        "".join(texts).encode("utf-8")
        tables = [each for each in level if isinstance(each, dict)]
        lists = [each for each in level if isinstance(each, list)]
        level = [
            *(each for table in tables for pair in table.items() for each in pair),
            *(each for items in lists for each in items),
        ]
        if not level:
            return found
    raise ValueError(f"it is nested more than {MOST_DEPTH} deep")


def _without_waiting(name: str, flags: int) -> int:
    """Open a file that may have become a pipe meanwhile."""
    return os.open(name, flags | os.O_NONBLOCK)


def _unreadable(path: Path, reason: Exception, error: type[RaysimError]) -> RaysimError:
    if isinstance(reason, FileNotFoundError | NotADirectoryError) and not os.path.islink(path):
        return error(f"{path} is missing.")
    if isinstance(reason, OSError):
        return error(f"{path} {unreadable(reason, path)}.")
    return error(f"{path} cannot be read: {within(reason)}.")
