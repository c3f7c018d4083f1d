"""Folders by path or by URI: what is at a URI is worked on in this machine's copy, and put there meanwhile."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysim.errors import RemoteError
from raysim.storage.remote.mirror import Mirror, OvertakenError
from raysim.storage.remote.uri import uri_of

log = logging.getLogger("raysim")

EVERY_S = 5.0
"""How often what was written is put: as often as rows reach the disk."""

PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
"""Between attempts to put what is left at the end."""


@contextmanager
def local_copy(path: str | Path) -> Iterator[Path]:
    """The folder as a path of this machine; if it is named by a URI, what the block left is put there at its end.

    Raises:
        RemoteError: nothing answers at the URI, at the beginning or after several attempts at the end; then the copy on
            this machine is whole, and the message says where. After another error in the block this is a warning.
    """
    uri = uri_of(path)
    if uri is None:
        yield Path(path)
        return
    mirror = Mirror.of(uri)
    mirror.pull()
    try:
        yield mirror.path
    except BaseException:
        try:
            mirror.push()
        except RemoteError as error:
            log.warning("%s", _behind(mirror, error))
        raise
    _put_all(mirror)


def read_only_copy(path: str | Path) -> Path:
    """The folder as a path of this machine, to be read only.

    Raises:
        RemoteError: nothing answers at its URI, or what lies there is damaged.
    """
    uri = uri_of(path)
    if uri is None:
        return Path(path)
    mirror = Mirror.of(uri)
    mirror.pull()
    return mirror.path


def named(path: Path) -> str:
    """How people name the folder: by its URI, where the path is of the copy of one elsewhere."""
    mirror = Mirror.around(path.absolute())
    if mirror is None:
        return str(path)
    below = path.absolute().relative_to(mirror.path).as_posix()
    return mirror.uri if below == "." else f"{mirror.uri}/{below}"


@contextmanager
def put_meanwhile(path: Path | None) -> Iterator[None]:
    """While the block writes to a folder here that is the copy of one elsewhere, what is written is put there.

    A thread does so, every EVERY_S and once more at the end. It holds no queue: what it has to do is what has changed.
    If the file system fails, the block goes on; a warning says so, and another one when all is there again.
    """
    mirror = None if path is None else Mirror.around(path.absolute())
    if mirror is None:
        yield
        return
    ended = threading.Event()
    thread = threading.Thread(target=_put_meanwhile, args=(mirror, ended), name="mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def put_rest(path: Path) -> str | None:
    """Put what is left of a folder here that is the copy of one elsewhere; returns what is not there after several
    attempts, and why."""
    mirror = Mirror.around(path.absolute())
    if mirror is None:
        return None
    try:
        _put_all(mirror)
    except RemoteError as error:
        return str(error)
    return None


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
        f"{mirror.uri} is behind by {len(names)} file(s) ({error}). Nothing is lost: the whole folder is {mirror.path} "
        f"on this machine, and `raysim resume {mirror.uri}` here puts the rest."
    )
