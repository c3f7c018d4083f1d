"""The kernel compiled for this machine's processor, once: the library stays in the cache.

Compiled where it is used, it has the processor's own vector instructions. Its sums are added up in an order that the
source fixes, so processors with other vectors have the same bits, if they have fused multiply-adds.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch

from raysim.storage.cache import cache_root

log = logging.getLogger("raysim")

SOURCE = Path(__file__).with_name("dense.c")
FLAGS = ("-std=gnu11", "-O3", "-fno-math-errno", "-shared", "-fPIC")
CONTRACTED = {"gcc": "-ffp-contract=fast", "clang": "-ffp-contract=on"}
"""Products are added in one rounding, but where the source says otherwise: with clang, "fast" would not hear that."""
# One that does not know it compiles for any processor of its kind.
FOR_THIS_PROCESSOR: tuple[tuple[str, ...], ...] = (("-march=native",), ())
REALS = {torch.float32: "float", torch.float64: "double"}
COMPILERS = ("cc", "gcc", "clang")


class NoLibraryError(Exception):
    """Why there is no kernel here; the text goes on behind a colon."""


@cache
def obstacle(dtype: torch.dtype) -> str | None:
    """Why this machine has no kernel for numbers of this type, or None. Found out once per process."""
    try:
        library(dtype)
    except NoLibraryError as error:
        return str(error)
    return None


@cache
def library(dtype: torch.dtype) -> ctypes.CDLL:
    """The kernel for numbers of this type, compiled unless it lies in the cache.

    Raises:
        NoLibraryError: no compiler, or one that cannot do it, or nowhere to put what it makes.
    """
    if dtype not in REALS:
        raise NoLibraryError(f"it is written for float32 and float64, and the weights are {dtype}")
    try:
        compiler = _compiler()
        path = cache_root() / "kernels" / f"dense-{_digest(dtype, compiler)}.so"
        if path.exists():
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                log.warning("%s cannot be loaded, and is compiled again", path)
        path.parent.mkdir(parents=True, exist_ok=True)
        _compile(compiler, dtype, path)
        return ctypes.CDLL(str(path))
    except (OSError, RuntimeError, ValueError) as error:
        # Of a home that is not known, a CC that cannot be read, a folder that cannot be written to, and the like.
        raise NoLibraryError(f"it cannot be compiled or loaded ({error})") from error


def _compiler() -> list[str]:
    if named := shlex.split(os.environ.get("CC", "")):
        if shutil.which(named[0]) is None:
            raise NoLibraryError(f"the environment's CC names {named[0]}, which is not there")
        return named
    for name in COMPILERS:
        if found := shutil.which(name):
            return [found]
    raise NoLibraryError(f"there is no C compiler: none of {', '.join(COMPILERS)} is on the PATH, and CC is not set")


def _compile(compiler: list[str], dtype: torch.dtype, path: Path) -> None:
    """Others may do it at the same time: what is complete takes the place of what was."""
    said = ""
    told = subprocess.run([*compiler, "--version"], capture_output=True, text=True, check=False).stdout
    contracted = CONTRACTED["clang" if "clang" in told else "gcc"]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        for processor in FOR_THIS_PROCESSOR:
            command = [
                *compiler,
                *FLAGS,
                contracted,
                *processor,
                f"-DREAL={REALS[dtype]}",
                str(SOURCE),
                "-o",
                str(made),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                os.replace(made, path)
                return
            said = done.stderr.strip() or f"it ended with {done.returncode}"
    raise NoLibraryError(f"{compiler[0]} does not compile it: {said.splitlines()[-1]}")


def _digest(dtype: torch.dtype, compiler: list[str]) -> str:
    """Of all that the library depends on: several kinds of machine may share a cache."""
    at = Path(shutil.which(compiler[0]) or compiler[0]).resolve()
    stat = at.stat()
    parts = (
        SOURCE.read_bytes(),
        repr(
            (FLAGS, CONTRACTED, FOR_THIS_PROCESSOR, REALS[dtype], compiler, str(at), stat.st_size, stat.st_mtime_ns)
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
    told = sorted({line for line in lines if line.partition(":")[0].strip() in ("model name", "flags", "Features")})
    return "\n".join((platform.machine(), platform.processor(), *told))
