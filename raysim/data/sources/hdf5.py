"""Reads TensorFlow Federated's HDF5: `examples/<client>/<column>`, one row per example."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from io import BufferedReader
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from raysim.data.sources import hdf5_process
from raysim.data.sources.published import SourceFile
from raysim.errors import DataError

CPU_S = 60
"""Seconds of a processor that a client may take; the list of half a million clients takes seconds."""

MEMORY_BYTES = 8 << 30
"""Address space of the process that reads, which has one client in memory."""

COLUMN_BYTES = 1 << 28
"""Of a client's column at most; EMNIST's largest have 2 MB. What is made of it may take several times as much."""

_PIPE_BYTES = 1 << 20
"""Linux holds this much for an unprivileged process; other systems have a size of their own."""


class ClientColumns(NamedTuple):
    """A client's columns by name, all of one length."""

    client: str
    columns: dict[str, npt.NDArray[Any]]


def ids(file: SourceFile) -> list[str]:
    """Return the clients, in the file's order of names."""
    return [found.client for found in clients(file, [])]


def clients(file: SourceFile, columns: Sequence[str]) -> Generator[ClientColumns, None, None]:
    """Yield each client's columns, one client in memory at a time.

    Raises:
        DataError: another kind of file, a missing column, or columns of different lengths; names the client. Or the
            HDF5 library crashed on the file, or did not end.
    """
    if importlib.util.find_spec("h5py") is None:
        raise DataError(f"{file.path} needs the package h5py: pip install 'raysim[hdf5]'")
    process = _started(file, columns)
    sent = cast(BufferedReader, process.stdout)
    try:
        with file.reading("the groups and columns of TensorFlow Federated"):
            while head := _head(file, process, sent):
                found = {name: _column(form, sent) for name, form in zip(columns, head.get("columns", []), strict=True)}
                if len({len(column) for column in found.values()}) > 1:
                    lengths = {name: len(column) for name, column in found.items()}
                    raise DataError(
                        f"{file.path}, client {head['client']!r:.80}: expected columns of one length, found {lengths}"
                    )
                yield ClientColumns(head["client"], found)
    finally:
        process.kill()
        sent.close()
        process.wait()


def _started(file: SourceFile, columns: Sequence[str]) -> subprocess.Popen[bytes]:
    limits = (str(CPU_S), str(MEMORY_BYTES), str(COLUMN_BYTES))
    return subprocess.Popen(
        [sys.executable, "-P", hdf5_process.__file__, str(file.path), *limits, *columns],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pipesize=_PIPE_BYTES,
        stderr=subprocess.DEVNULL,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            # A file can name code of the library's folders, which unpacks it.
            "HDF5_PLUGIN_PRELOAD": "::",
            # Each thread of a large machine would reserve address space.
            "OPENBLAS_NUM_THREADS": "1",
        },
        # Ctrl-C is for this process, which then ends that one.
        process_group=0,
    )


def _head(file: SourceFile, process: subprocess.Popen[bytes], sent: BufferedReader) -> dict[str, Any]:
    """Return what is known of the next client; nothing after the last one."""
    line = sent.readline()
    if not line.endswith(b"\n"):
        raise DataError(f"{file.path}: expected a whole HDF5 file: the HDF5 library {_end(process.wait())}")
    head: dict[str, Any] = json.loads(line)
    if "refused" in head:
        raise DataError(f"{file.path}{head['refused']}")
    if "error" in head:
        with file.reading(head["expected"]):
            raise ValueError(head["error"])
    return head


def _end(code: int) -> str:
    if code == -signal.SIGXCPU:
        return f"worked on a client of it for {CPU_S} s without an end"
    return f"crashed on it ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"


def _column(form: dict[str, Any], sent: BufferedReader) -> npt.NDArray[Any]:
    if "texts" in form:
        texts = np.empty(len(form["texts"]), object)
        texts[:] = [bytes(_whole(length, sent)) for length in form["texts"]]
        return texts.reshape(form["shape"])
    dtype = np.dtype(form["dtype"])
    return np.frombuffer(_whole(math.prod(form["shape"]) * dtype.itemsize, sent), dtype).reshape(form["shape"])


def _whole(length: int, sent: BufferedReader) -> bytearray:
    content, done = bytearray(length), 0
    with memoryview(content) as view:
        while done < length:
            # A call reads 2 GiB at most.
            read = sent.readinto(view[done:])
            if not read:
                raise EOFError(f"the HDF5 library ended within {length} bytes")
            done += read
    return content
