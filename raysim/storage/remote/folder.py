"""Opens folders by path or by URI; for a URI the work is done on this machine's copy, and uploaded meanwhile."""

from __future__ import annotations

import errno
import logging
import os
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from raysim.config.counted import counted
from raysim.errors import DiskError, RaysimError, RemoteError, RunFolderError
from raysim.storage.remote.mirror import Mirror, OvertakenError
from raysim.storage.remote.mirrored_files import stamps
from raysim.storage.remote.uri import uri_of

log = logging.getLogger("raysim")

EVERY_S = 5.0
"""Seconds between uploads: as often as rows reach the disk."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Pauses between attempts of the last upload."""


def path_here(path: str | Path) -> Path:
    """Return a folder's path on this machine, whether it exists or not; a first part "~" is the user's home.

    Raises:
        RunFolderError: no folder can have that path, a symbolic link in it leads nowhere, or this process may not read
            the folder.
    """
    folder = Path(path)
    if folder.parts[:1] == ("~",):
        folder = folder.expanduser()
    try:
        # Also where the working folder has such a name: pyarrow opens files by their whole path.
        str(folder.absolute()).encode()
        if "\0" in str(folder):
            raise ValueError("it has a zero character")
        for link in (folder, *folder.parents):
            if link.is_symlink() and not link.exists():
                raise ValueError(f"{link} is a symbolic link to {os.readlink(link)}, which is not there")
        if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except UnicodeEncodeError:
        whole = str(folder.absolute())
        raise RunFolderError(f"{whole!r} cannot be a run's folder: UTF-8 cannot hold its name.") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise RunFolderError(f"{str(folder)!r} cannot be a run's folder: {why}.") from None
    return folder


@contextmanager
def local_copy(path: str | Path) -> Iterator[Path]:
    """Yield the folder as a path of this machine; for a URI, upload the changes at the end of the block.

    After an error in a block that changed nothing, nothing is uploaded. Errors and warnings of the block name the URI.

    Raises:
        RemoteError: nothing answers at the URI, at the beginning or after several attempts at the end; then the copy on
            this machine is whole, and the message names it. After another error in the block this is a warning.
    """
    uri = uri_of(path)
    if uri is None:
        yield path_here(path)
        return
    mirror = Mirror.of(uri)
    with _uri_in_warnings(mirror), _uri_in_errors(mirror), _pulled(mirror).changing():
        before = stamps(mirror.path)
        try:
            yield mirror.path
        except BaseException:
            # A copy that was refused may be an older or a damaged one: what is whole at the URI stays.
            if stamps(mirror.path) == before:
                raise
            try:
                mirror.push()
            except RemoteError as error:
                log.warning("%s", _behind(mirror, error))
            raise
        _put_all(mirror)


@contextmanager
def read_only_copy(path: str | Path) -> Iterator[Path]:
    """Yield the folder as a path of this machine, for reading only; for a URI, errors and warnings name it.

    Raises:
        RemoteError: nothing answers at its URI, or its files are damaged.
    """
    uri = uri_of(path)
    if uri is None:
        yield path_here(path)
        return
    mirror = Mirror.of(uri)
    with _uri_in_warnings(mirror), _uri_in_errors(mirror):
        yield _pulled(mirror).path


def with_uri(text: str, path: Path) -> str:
    """Return a sentence with the URI in place of the copy's path, if `path` is in a mirror's copy; see `_with_uri`."""
    mirror = Mirror.around(path.absolute())
    return text if mirror is None else _with_uri(text, mirror)


def named(path: Path) -> str:
    """Return the folder's name for people: its URI if the path is a mirror's copy, else the path."""
    mirror = Mirror.around(path.absolute())
    if mirror is None:
        return str(path)
    below = path.absolute().relative_to(mirror.path).as_posix()
    return mirror.uri if below == "." else f"{mirror.uri}/{below}"


def resume_command(folder: str) -> str:
    r"""Return the command that continues a folder, as a shell takes it: a name may hold what shells act on.

    >>> print(resume_command("runs/a"), resume_command("-b $(c)"), resume_command("d\x1b"), sep="; ")
    raysim resume runs/a; raysim resume './-b $(c)'; raysim resume $'d\x1b'
    """
    name = f"./{folder}" if folder.startswith("-") else folder
    if name.isprintable():
        return f"raysim resume {shlex.quote(name)}"
    escaped = name.encode("unicode_escape").decode().replace("'", "\\'")
    return f"raysim resume $'{escaped}'"


def resume_call(folder: str, passed: Sequence[str] = (), more: Sequence[str] = ()) -> str:
    """Return the call that continues a folder; `passed`: the parts that its script passed. `more`: more arguments.

    >>> resume_call("runs/a", ["model"], ["rounds=20"])
    "raysim.resume('runs/a', rounds=20, model=...)"
    """
    return f"raysim.resume({', '.join([repr(folder), *more, *(f'{name}=...' for name in passed)])})"


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Say that the block changes what lies at `path`, if that is in a mirror's copy; see `Mirror.changing`."""
    mirror = Mirror.around(path.absolute())
    with nullcontext() if mirror is None else mirror.changing():
        yield


@contextmanager
def uri_in_messages(path: Path) -> Iterator[None]:
    """Let errors and warnings of the block name the URI, if `path` is in a mirror's copy."""
    mirror = Mirror.around(path.absolute())
    if mirror is None:
        yield
        return
    with _uri_in_warnings(mirror), _uri_in_errors(mirror):
        yield


@contextmanager
def put_meanwhile(path: Path | None) -> Iterator[None]:
    """Upload the changes of a mirror's copy while the block writes to it.

    A thread uploads every EVERY_S seconds and once at the end. It has no queue: it uploads the changed files. If the
    file system fails, the block continues with a warning, and another one when the URI is complete again. Warnings of
    the block name the URI.
    """
    mirror = None if path is None else Mirror.around(path.absolute())
    if mirror is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_put_meanwhile, args=(mirror, ended), name="mirror", daemon=True)
    with _uri_in_warnings(mirror), mirror.changing():
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def put_rest(path: Path) -> str | None:
    """Upload the remaining changes of a mirror's copy; return the missing files and the error if all attempts fail."""
    mirror = Mirror.around(path.absolute())
    if mirror is None:
        return None
    try:
        _put_all(mirror)
    except RemoteError as error:
        return str(error)
    return None


def _pulled(mirror: Mirror) -> Mirror:
    mirror.pull()
    return mirror


@contextmanager
def _uri_in_errors(mirror: Mirror) -> Iterator[None]:
    """Let errors of the block name the URI, which the user knows. Errors of the mirror itself name both already.

    The class of an error, its cause and its notes stay.
    """
    try:
        yield
    except RemoteError:
        raise
    except RaysimError as error:
        error.args = (_with_uri(str(error), mirror, isinstance(error, DiskError)),)
        raise


@contextmanager
def _uri_in_warnings(mirror: Mirror) -> Iterator[None]:
    """Let what raysim logs meanwhile name the URI, too. What the mirror itself says names both already."""

    def naming_uri(record: logging.LogRecord) -> bool:
        text = record.getMessage()
        if mirror.uri not in text and (told := _with_uri(text, mirror)) != text:
            record.msg, record.args = told, ()
        return True

    log.addFilter(naming_uri)
    try:
        yield
    finally:
        log.removeFilter(naming_uri)


def _with_uri(text: str, mirror: Mirror, is_of_disk: bool = False) -> str:
    """Return a text with the URI in place of the copy's path, which follows where the place on this machine matters.

    It matters if a file of the copy is named, which may be damaged here alone, or if the copy's disk is full.
    """
    told = f"This machine's copy of it is {mirror.path}."
    # `Path.resolve` raises an error for links that go round in a circle.
    copies = [copy for copy in (str(mirror.path), os.path.realpath(mirror.path)) if copy in text]
    if told in text:
        return text
    if not copies:
        return f"{mirror.uri}: {text}" if str(mirror.path.parent) in text else text
    matters = is_of_disk or any(f"{copy}/" in text for copy in copies)
    for copy in copies:
        text = text.replace(copy, mirror.uri)
    return f"{text.removesuffix('.')}. {told}" if matters else text


def _put_meanwhile(mirror: Mirror, ended: threading.Event) -> None:
    behind = False
    while True:
        last = ended.wait(EVERY_S)
        try:
            mirror.push()
        except RemoteError as error:
            if not behind:
                log.warning("%s", _behind(mirror, error))
            behind = True
        else:
            if behind:
                log.warning("%s has everything again", mirror.uri)
            behind = False
        if last:
            return


def _put_all(mirror: Mirror) -> None:
    for pause_s in PAUSES_S:
        try:
            mirror.push()
        except OvertakenError:
            raise
        except RemoteError as error:
            log.warning("%s; trying again in %g s", error, pause_s)
            time.sleep(pause_s)
        else:
            return
    try:
        mirror.push()
    except RemoteError as error:
        raise RemoteError(_behind(mirror, error)) from error


def _behind(mirror: Mirror, error: RemoteError) -> str:
    if isinstance(error, OvertakenError):
        return str(error)
    names = mirror.behind()
    return (
        f"{mirror.uri} is behind by {counted(len(names), 'file')} ({error}). Nothing is lost: the whole folder is "
        f"{mirror.path} on this machine, and `{resume_command(mirror.uri)}` here puts the rest."
    )
