"""Locks a run's folder, or a copy in the cache, for the one process that writes to it.

The locks are the kernel's (`flock`), on a file in a run's folder or beside a copy. They end with their process, so no
lock is ever stale. The content of a run's `.lock` only names the holder. Machines that share a disk see each other's
locks if the disk supports it, as NFS does. If the disk has no locks, raysim warns and does not lock the folder.

A forked process has its parent's files open, and would hold the locks on when the parent has ended: it closes them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from weakref import WeakSet

from raysim.errors import DiskError, RaysimError, RunFolderError
from raysim.storage import disk
from raysim.storage.descriptor import Descriptor, which
from raysim.storage.reading import json_object, regular

log = logging.getLogger("raysim")

FILE = ".lock"
"""It stays in the folder: a process that removed it could remove a file that another process has just locked."""

PATIENCE_S = 2.0
"""Seconds to wait for a lock: a killed process holds its lock for a moment longer."""

POLL_S = 0.1

_HOLDER = b'{"host": "'
"""How the content of a folder's lock begins, while a process holds it, or once a process was killed."""

DEPTH = 3
"""Largest depth of a run's folder in a folder of several: sweep, point, trial."""


class _LockFile(FileIO):
    """A lock's file, which closes its number only while that is its own (`Descriptor`).

    Unbuffered: what a full disk does not take would be written, and fail, once more when it is closed.
    """

    def __init__(self, path: Path, number: int) -> None:
        self.descriptor = Descriptor.of(number)
        super().__init__(number, "a+", closefd=False)
        self.name = str(path)
        _opened_files.add(self)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.descriptor.close()


_opened_files: WeakSet[_LockFile] = WeakSet()
"""The locks' files that this process has open."""


def _close_inherited() -> None:
    # Closing them leaves the parent's locks alone, which unlocking would not.
    for file in tuple(_opened_files):
        file.close()


os.register_at_fork(after_in_child=_close_inherited)


class HeldLock:
    """The lock of a folder.

    Args:
        folder: what is locked.
        file: its lock's file, open.
    """

    def __init__(self, folder: Path, file: _LockFile) -> None:
        self._folder, self._file, self._process = folder, file, os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this process was forked from the one that holds the lock."""
        return os.getpid() != self._process

    @property
    def is_there(self) -> bool:
        """Whether the folder is where it was locked; False if it was moved, also where another is in its place."""
        try:
            now = which(self._folder / FILE)
        except FileNotFoundError:
            # Somebody has deleted the file alone, in which nothing is lost.
            return self._folder.is_dir()
        except OSError:
            return False
        return self._file.closed or now == self._file.descriptor.file

    @property
    def is_lost(self) -> bool:
        """Whether the script has closed the lock's file, as a daemon closes all; another may have its number since."""
        return not self._file.closed and not self._file.descriptor.is_open


@contextmanager
def locked(folder: Path, run: str | None = None) -> Iterator[HeldLock]:
    """Lock the folder for this process during the block; create it if it is missing.

    Args:
        folder: a run's, or that of trials or of a sweep.
        run: the name by which one can attach to the run.

    Raises:
        RunFolderError: another process writes to it; names the process. Or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _opened(folder / FILE)
    except OSError as error:
        raise RunFolderError(
            f"{folder} cannot be made, or not be written to: {error.strerror}. Give the run another folder (--path, "
            f"path=)."
        ) from error
    with file:
        if not _acquired(file):
            raise RunFolderError(_refusal(folder))
        _check_is_lock(file, folder / FILE)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        holder = {"host": socket.gethostname(), "process": os.getpid(), "since": since, "run": run}
        with disk.writing(folder / FILE):
            file.truncate(0)
            file.write(json.dumps(holder).encode())
        held = HeldLock(folder, file)
        try:
            yield held
        finally:
            if not (file.closed or held.is_lost):
                # Who held it may stay there, as after a kill; an error of the block is not replaced.
                with suppress(OSError):
                    file.truncate(0)


@contextmanager
def alone(file: Path) -> Iterator[None]:
    """Lock the file during the block; create it if it is missing. Other processes wait.

    Raises:
        OSError: this machine's disk has no locks, or no room for the file.
        DiskError: a link is in its place, or another kind of file.
    """
    with _held(file, fcntl.LOCK_EX):
        yield


@contextmanager
def among_others(file: Path) -> Iterator[None]:
    """As `alone`, but any number of processes may be in such a block."""
    with _held(file, fcntl.LOCK_SH):
        yield


@contextmanager
def _held(file: Path, how: int) -> Iterator[None]:
    file.parent.mkdir(parents=True, exist_ok=True)
    with _regular_opened(file, DiskError) as opened:
        fcntl.flock(opened, how)
        try:
            yield
        finally:
            # A process that was forked meanwhile has the file open too, and would hold the lock on. There it is closed.
            if not opened.closed and opened.descriptor.is_open:
                fcntl.flock(opened, fcntl.LOCK_UN)


@contextmanager
def of_folder(folder: Path) -> Iterator[None]:
    """Lock a folder itself during the block, so that nothing is left in it; others wait.

    Network disks may have no such locks: then nobody waits.

    Raises:
        OSError: the folder is not there.
    """
    with _folder_opened(folder) as opened:
        with suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield


@contextmanager
def if_left(folder: Path) -> Iterator[bool | None]:
    """Yield whether no process is in a block of `of_folder` for this folder, and keep others out; None: unknown.

    Raises:
        OSError: the folder is not there.
    """
    with _folder_opened(folder) as opened:
        is_left: bool | None = True
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_left = False
        except OSError:
            is_left = None
        yield is_left


@contextmanager
def _folder_opened(folder: Path) -> Iterator[int]:
    opened = Descriptor.of(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    try:
        yield opened.number
    finally:
        if opened.is_open:
            # A process that was forked meanwhile has it open too.
            with suppress(OSError):
                fcntl.flock(opened.number, fcntl.LOCK_UN)
            opened.close()


def is_held(file: Path) -> bool:
    """Return whether a process is in a block of `among_others` for this file; DiskError: see `alone`."""
    if not os.path.lexists(file):
        return False
    with _regular_opened(file, DiskError) as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Lock a folder that several processes may write to, during the block; the others wait. It must be there.

    Raises:
        RunFolderError: its lock is a link, or cannot be opened.
    """
    with _opened(folder / FILE) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            log.warning("%s cannot be locked (%s): nothing keeps two processes from beginning in it", folder, error)
        yield


def check_free(folder: Path, below: bool = False) -> None:
    """Check that no process writes to the folder, or to a run in it; change nothing.

    Args:
        folder: of a run, or of several.
        below: look at the runs in it alone: the caller has locked the folder.

    Raises:
        RunFolderError: another process writes; names the process.
    """
    for depth in range(int(below), DEPTH):
        for file in sorted(folder.glob("*/" * depth + FILE)):
            with _opened(file) as opened:
                if not _acquired(opened):
                    raise RunFolderError(_refusal(file.parent))


def _opened(file: Path) -> _LockFile:
    """Open a folder's lock."""
    try:
        return _regular_opened(file, RunFolderError)
    except OSError as error:
        raise RunFolderError(f"{file} cannot be opened: {error.strerror}.") from None


def _regular_opened(file: Path, wrong: type[RaysimError]) -> _LockFile:
    """Open a lock's file, as it is: a link, in a folder from elsewhere or of others, could lead to any file.

    Raises:
        OSError: the disk does not let it.
        RaysimError: of the class `wrong`: a link is in its place, or another kind of file.
    """
    try:
        if os.path.lexists(file) and not file.is_symlink():
            regular(file, wrong)
        how = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        return _LockFile(file, os.open(file, how, 0o666))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise wrong(f"{file} must be a file, but is a symbolic link: delete it.") from None
        raise


def _check_is_lock(file: FileIO, path: Path) -> None:
    """Refuse to empty what raysim has not written: in a folder from elsewhere, a hard link names any file.

    Raises:
        RunFolderError: the file holds something else than who holds a lock.
    """
    file.seek(0)
    written = file.read(len(_HOLDER))
    # A process that was killed, or a full disk, may have cut it off.
    if not _HOLDER.startswith(written):
        raise RunFolderError(
            f"{path} must be a lock that raysim wrote, but holds something else, which would be lost: look what it is, "
            f"and delete this name of it."
        )


def _acquired(file: FileIO) -> bool:
    """Try to lock the file; return whether it succeeded. Closing the file releases the lock."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline_s:
                return False
            time.sleep(POLL_S)
        except OSError as error:
            log.warning("%s cannot be locked (%s): nothing keeps two runs from writing to it", file.name, error)
            return True
        else:
            return True


def _refusal(folder: Path) -> str:
    try:
        holder = json_object(folder / FILE, RunFolderError)
        who = f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (RunFolderError, KeyError):
        # The holder is writing it at this moment.
        holder, who = {}, "another process"
    advice = "Wait for it, end it, or give the run another folder (--path, path=)."
    if (holder.get("process"), holder.get("host")) == (os.getpid(), socket.gethostname()):
        advice = (
            "That is this process: end its other run, close the iterator of raysim.rounds that was left open "
            "(`close()`), or give the run another folder (path=)."
        )
    if name := holder.get("run"):
        advice = (
            f"Follow it with `raysim attach {name}`, end it with `raysim stop {name}`, or give the run another folder "
            f"(--path, path=)."
        )
    return f"{folder} is being written by {who}: a folder has one writer at a time. {advice}"
