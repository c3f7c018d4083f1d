"""Compiles a source in C for this machine's processor, once: the library stays in the cache, in a folder of the user's.

Compiled where it is used, it has the processor's own vector instructions.

A library is code. It is loaded from the cache only if this user alone can have written it, for this source and these
flags, and whole: its name has a digest of these, and its own checksum.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import logging
import os
import platform
import shlex
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

import torch

from raysim.errors import DiskError, RaysimError, ResourceError
from raysim.storage import atomic, disk
from raysim.storage.cache import cache_root, checksum

log = logging.getLogger("raysim")

FLAGS = ("-std=gnu11", "-fno-math-errno", "-shared", "-fPIC")
CONTRACTED = {
    "gcc": ("-ffp-contract=fast", "--param", "avoid-fma-max-bits=0"),
    "clang": ("-ffp-contract=on",),
}
"""A product and its sum are one rounding. A source may forbid it by a pragma, which clang ignores with "fast". GCC
would round twice in a chain of sums where it thinks that faster, as on Zen: with other bits than elsewhere."""
APART = ("-ffp-contract=off",)
# A compiler that does not know the flag is called again without it.
FOR_THIS_PROCESSOR: tuple[tuple[str, ...], ...] = (("-march=native",), ())
REALS = {torch.float32: "float", torch.float64: "double"}
_PRIVATE = 0o700
_ROOM = MappingProxyType(
    {
        errno.ENOSPC: "No space left on device",
        errno.EDQUOT: "Disk quota exceeded",
        errno.EFBIG: "File too large",
        errno.ENOMEM: "Cannot allocate memory",
        errno.ENFILE: "Too many open files in system",
        errno.EMFILE: "Too many open files",
    }
)
"""What a machine lacks for the time being, and what compilers write there in English, whatever a script's locale is."""
_NO_MEMORY = ("Killed", "out of memory", "memory exhausted", "failed to map segment")
"""What gcc, clang, ld and what loads them write where memory is lacking, without the error's text: the kernel kills
those that take too much."""
COMPILERS = ("cc", "gcc", "clang")


class NoLibraryError(Exception):
    """Why there is no library here; the text goes on behind a colon."""


class NoCompilerError(NoLibraryError):
    """A machine of a kind that has no libraries; of any other reason people are warned."""


@dataclass(frozen=True)
class CSource:
    """A file in C, whose REAL is the type of its numbers.

    contracted: whether a product and a sum may be one rounding. If not, every processor, and torch, has the same bits.
    optimisation: flags. headers: files beside it that it includes.
    """

    path: Path
    contracted: bool = True
    optimisation: tuple[str, ...] = ("-O3",)
    headers: tuple[Path, ...] = ()


@cache
def obstacle(source: CSource, dtype: torch.dtype) -> str | None:
    """Why this machine has no library of the source for numbers of this type, or None. Found out once per process."""
    try:
        library(source, dtype)
    except NoLibraryError as error:
        return str(error)
    return None


@cache
def library(source: CSource, dtype: torch.dtype) -> ctypes.CDLL:
    """The source's library for numbers of this type, compiled unless it lies in the cache.

    Raises:
        NoLibraryError: no compiler, or one that cannot do it, or nowhere to put what it makes.
        DiskError, ResourceError: a disk is full, or the machine lacks memory, for the time being, and what is computed
            in another way has other last digits: the same run must not depend on that.
    """
    if dtype not in REALS:
        raise NoLibraryError(f"it is written for float32 and float64, and the weights are {dtype}")
    try:
        return _loaded(source, dtype)
    except NoCompilerError:
        raise
    except NoLibraryError as error:
        if source.contracted:
            _warn(str(error))
        raise


@cache
def _warn(why: str) -> None:
    """Warn once per process: it can be put right, and the same run has other bits before and after."""
    log.warning(
        "raysim's code in C is not used here: %s. With it, training is faster, and has other last digits",
        why,
    )


def _loaded(source: CSource, dtype: torch.dtype) -> ctypes.CDLL:
    try:
        compiler = _compiler()
        folder, name = _own_folder(), f"{source.path.stem}-{_digest(source, dtype, compiler)}"
        for path in sorted(folder.glob(f"{name}-*.so")):
            if (why := distrust(path)) is None:
                try:
                    return ctypes.CDLL(str(path))
                except OSError:
                    why = "cannot be loaded"
            log.warning("%s %s, and is compiled again", path, why)
            path.unlink(missing_ok=True)
        path = _compile_to(source, compiler, dtype, folder, name)
        if (why := distrust(path)) is not None:
            raise NoLibraryError(f"{path} {why}, just after it was written: set RAYSIM_CACHE to a folder of your own")
        return ctypes.CDLL(str(path))
    except RaysimError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        code = error.errno if isinstance(error, OSError) else None
        if code is not None and code in _ROOM and source.contracted:
            raise _lacking_room(source, code) from error
        # Of a home that is not known, a CC that cannot be read, a folder that cannot be written to, and the like.
        raise NoLibraryError(f"it cannot be compiled or loaded ({error})") from error


def _own_folder() -> Path:
    """The folder of this user's libraries; others share the cache perhaps, but write nothing here."""
    folder = cache_root() / f"kernels-{os.geteuid()}"
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    if (why := _of_others(folder.lstat(), stat.S_ISDIR)) is not None:
        raise NoLibraryError(f"{folder} {why}: remove it, or set RAYSIM_CACHE to a folder of your own")
    return folder


def distrust(path: Path) -> str | None:
    """Why a library is not loaded, as the end of a sentence about it; None if this user wrote it, and it is whole."""
    try:
        why = _of_others(path.lstat(), stat.S_ISREG)
        if why is None and checksum(path) != path.stem.rpartition("-")[2]:
            why = "is damaged"
    except OSError as error:
        why = f"cannot be checked ({error})"
    return why


def _of_others(found: os.stat_result, is_kind: Callable[[int], bool]) -> str | None:
    if not is_kind(found.st_mode):
        return "is a link, or another kind of file"
    if found.st_uid != os.geteuid():
        return f"belongs to user {found.st_uid}, and this one is {os.geteuid()}"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return "can be written by other users"
    return None


def _compiler() -> list[str]:
    if named := shlex.split(os.environ.get("CC", "")):
        if shutil.which(named[0]) is None:
            raise NoLibraryError(f"the environment's CC names {named[0]}, which is not there")
        return named
    for name in COMPILERS:
        if path := shutil.which(name):
            return [path]
    raise NoCompilerError(f"there is no C compiler: none of {', '.join(COMPILERS)} is on the PATH, and CC is not set")


def _compile_to(source: CSource, compiler: list[str], dtype: torch.dtype, folder: Path, name: str) -> Path:
    """Return the library, whose name ends with its checksum. Others may do it at the same time: each file is whole."""
    complaint = ""
    version = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    contraction = CONTRACTED["clang" if "clang" in version else "gcc"] if source.contracted else APART
    with _scratch_in(folder, name) as scratch:
        file = scratch / f"{name}.so"
        for processor in FOR_THIS_PROCESSOR:
            command = [
                *compiler,
                *FLAGS,
                *source.optimisation,
                *contraction,
                *processor,
                f"-DREAL={REALS[dtype]}",
                str(source.path),
                "-o",
                str(file),
                "-lm",
            ]
            # In English, so that the texts of errors are known.
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"}
            )
            if done.returncode == 0:
                file.chmod(_PRIVATE)  # whatever the umask
                path = folder / f"{name}-{checksum(file)}.so"
                os.replace(file, path)
                return path
            lacking = next((code for code, text in _ROOM.items() if text in done.stderr), None)
            was_killed = done.returncode == -signal.SIGKILL
            if lacking is None and (was_killed or any(text in done.stderr for text in _NO_MEMORY)):
                lacking = errno.ENOMEM
            if lacking is not None and source.contracted:
                raise _lacking_room(source, lacking)
            complaint = done.stderr.strip() or f"it ended with {done.returncode}"
    raise NoLibraryError(f"{compiler[0]} does not compile it: {complaint.splitlines()[-1]}")


@contextmanager
def _scratch_in(folder: Path, name: str) -> Iterator[Path]:
    """Yield a new folder, where a library is made. What killed processes left is removed once it is old."""
    atomic.sweep(folder)
    # Not atomic.folder_aside: of its errors one must know here whether the machine lacks room for the moment.
    scratch = atomic.beside(folder / name)
    scratch.mkdir(mode=_PRIVATE)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _lacking_room(source: CSource, code: int) -> RaysimError:
    what = f"{source.path.name} could not be compiled: {os.strerror(code)}"
    why = "Computed in another way, the run would have other last digits."
    if code in disk.FULL:
        return DiskError(
            f"{what}. {why} First make room in {cache_root()} and in {tempfile.gettempdir()}, or set RAYSIM_CACHE and "
            f"TMPDIR to folders of another disk, then do it again."
        )
    return ResourceError(f"{what}. {why} Do it again when this machine has more room for a compiler.")


def _digest(source: CSource, dtype: torch.dtype, compiler: list[str]) -> str:
    """Of all that the library depends on: several kinds of machine may share a cache."""
    at = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    of_compiler = at.stat()
    parts = (
        *(path.read_bytes() for path in (source.path, *source.headers)),
        repr(
            (
                FLAGS,
                source.optimisation,
                source.contracted and CONTRACTED,
                FOR_THIS_PROCESSOR,
                REALS[dtype],
                compiler,
                str(at),
                of_compiler.st_size,
                of_compiler.st_mtime_ns,
            )
        ).encode(),
        _processor().encode(),
    )
    return hashlib.blake2b(b"\0".join(parts), digest_size=12).hexdigest()


def _processor() -> str:
    """What tells apart processors for which it would be compiled differently."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    facts = sorted({line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features")})
    return "\n".join((platform.machine(), platform.processor(), *facts))
