"""Reads an HDF5 file in a process of its own: on forged bytes the HDF5 library can loop without end, or crash.

It is run as a script, and imports nothing of raysim, so that it starts at once: FILE CPU_S BYTES COLUMN_BYTES
[COLUMN ...], of which COLUMN_BYTES is what a client's column takes at most. To its standard output it writes a line of
JSON for each client, followed by its columns' bytes; then an empty object. A line of an error has the key "refused" if
a client lacks a column, otherwise "expected" and "error".
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

_ROWS = 1024
"""Of texts that are read together: each row may name the same long one."""

_TEXT_BYTES = 128
"""What a text takes beside its letters, here and where it becomes a row."""

_SHOWN = 20
"""Names that an error lists at most."""


def main(path: str, cpu_s: int, memory_bytes: int, most_bytes: int, columns: list[str]) -> None:
    """Send the clients with these columns; without columns their names."""
    _limit(resource.RLIMIT_CORE, 0)
    expected = "a whole HDF5 file"
    try:
        import h5py  # optional

        _limit(resource.RLIMIT_AS, memory_bytes)
        _limit(resource.RLIMIT_CPU, int(time.process_time()) + cpu_s)
        with h5py.File(path, "r") as file:
            expected = "the groups and columns of TensorFlow Federated"
            if "examples" not in file:
                _send({"refused": f": expected the group 'examples', found {_shown(file)}"})
                return
            examples = _own(file, "examples", h5py.Group)
            places = set[int]()
            for client in examples:
                if not _sent(examples, client, columns, most_bytes, places):
                    return
                # Each client has the same time: a file may have any number of them.
                _limit(resource.RLIMIT_CPU, int(time.process_time()) + cpu_s)
        _send({})
    except BrokenPipeError:
        return
    except Exception as error:
        _send({"expected": expected, "error": str(error) or type(error).__name__})


def _sent(examples: Any, client: str, columns: list[str], most_bytes: int, places: set[int]) -> bool:
    """Send a client; return whether it has all columns. `places` are those of the columns that were sent, in the file.

    A file of a few kilobytes could name one column for any number of clients.
    """
    import h5py  # optional

    group = _own(examples, client, h5py.Group)
    if not columns:
        _send({"client": client})
        return True
    if any(name not in group for name in columns):
        _send({"refused": f", client {client!r:.80}: expected columns {columns}, found {_shown(group)}"})
        return False
    forms: list[dict[str, Any]] = []
    contents: list[bytes | memoryview] = []
    for name in columns:
        dataset = _own(group, name, h5py.Dataset)
        _check_size(dataset, name, most_bytes)
        _check_stored(dataset, name)
        place = h5py.h5o.get_info(dataset.id).addr
        if place in places:
            raise ValueError(f"client {client!r:.80} has the column {name!r} of another one")
        places.add(place)
        if dataset.dtype == object:
            texts = _texts(dataset, name, most_bytes)
            forms.append({"texts": [len(text) for text in texts], "shape": dataset.shape})
            contents.append(b"".join(texts))
        else:
            values = np.asarray(dataset)
            forms.append({"dtype": values.dtype.str, "shape": values.shape})
            contents.append(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    _send({"client": client, "columns": forms}, contents)
    return True


def _check_size(dataset: Any, name: str, most_bytes: int) -> None:
    """Refuse what unpacks to more, before it is read: rows that are not stored have a value all the same."""
    if dataset.shape is None:
        raise ValueError(f"{name!r} has no values")
    if not dataset.shape:
        raise ValueError(f"expected a row for each example in {name!r}, found a single value")
    for shape in (dataset.shape, dataset.chunks):
        each = _TEXT_BYTES if dataset.dtype == object else max(1, dataset.dtype.itemsize)
        size = math.prod(shape or ()) * each
        if size > most_bytes:
            raise ValueError(f"{name!r} unpacks to {size:,} bytes, and a client's column has at most {most_bytes:,}")


def _check_stored(dataset: Any, name: str) -> None:
    """Refuse rows that were never written: the library reads zeros in their place, and says nothing."""
    chunk = dataset.chunks
    if chunk is None:
        is_stored = not dataset.size or dataset.id.get_storage_size() > 0
    else:
        parts = math.prod(-(-rows // of) for rows, of in zip(dataset.shape, chunk, strict=True))
        is_stored = dataset.id.get_num_chunks() == parts
    if not is_stored:
        raise ValueError(f"{name!r} has rows that were never written")


def _shown(group: Any) -> str:
    """Return the names in a group, the first ones if there are many."""
    names = [name[:80] for name in islice(group, _SHOWN)]
    return f"{names}{' and more' if len(group) > _SHOWN else ''}"


def _texts(dataset: Any, name: str, most_bytes: int) -> list[bytes]:
    """Return the texts of a dataset in the order of its rows."""
    texts: list[bytes] = []
    size = 0
    for start in range(0, dataset.shape[0], _ROWS):
        rows = dataset[start : start + _ROWS]
        found = [text.encode() if isinstance(text, str) else text for text in np.asarray(rows, object).ravel()]
        if not all(isinstance(text, bytes) for text in found):
            raise ValueError(f"{name!r} holds neither numbers nor texts")
        size += sum(map(len, found))
        if size > most_bytes:
            raise ValueError(f"{name!r} has texts of more than {most_bytes:,} bytes")
        texts += found
    return texts


def _own(group: Any, name: str | bytes, kind: type) -> Any:
    """Return a group's member; a forged file can name other files as members, and as the place of their bytes."""
    import h5py  # optional

    if isinstance(name, bytes):
        raise ValueError(f"{name!r:.80} is a name, and expected is text in UTF-8")
    # To the library they are paths, whose parts may lead anywhere.
    is_path = "/" in name or name == "."
    found = group[name] if not is_path and isinstance(group.get(name, getlink=True), h5py.HardLink) else None
    if found is None or (isinstance(found, h5py.Dataset) and (found.external or found.is_virtual)):
        raise ValueError(f"{name!r} leads elsewhere")
    if not isinstance(found, kind):
        raise ValueError(f"expected {name!r} to be a {kind.__name__.lower()}, found a {type(found).__name__.lower()}")
    return found


def _send(head: dict[str, Any], contents: Sequence[bytes | memoryview] = ()) -> None:
    for content in (json.dumps(head).encode() + b"\n", *contents):
        with memoryview(content) as view:
            done = 0
            while done < len(view):
                # A call writes 2 GiB at most.
                done += os.write(sys.stdout.fileno(), view[done:])


def _limit(kind: int, value: int) -> None:
    """Set a limit of this process, below the one that it was started with."""
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:])
