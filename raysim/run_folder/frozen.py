"""Writes the frozen parameters of a run's model once, beside its checkpoints, which hold all that changes.

So a folder holds the whole model, and says which frozen values a continuation lacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from raysim.errors import RunFolderError
from raysim.storage import atomic, sealed
from raysim.storage.reading import parsing, regular

FILE = "frozen.safetensors"


def write(path: Path, constants: Mapping[str, Tensor]) -> None:
    """Write the frozen parameters into a run's folder, unless they are there; without any there is no file.

    Raises:
        DiskError: the disk is full, or the folder cannot be written.
    """
    file = path / FILE
    if constants and not file.exists():
        with atomic.aside(
            file, flushed=True, needed_bytes=sum(tensor.nbytes for tensor in constants.values())
        ) as aside:
            aside.touch()
            usual = aside.stat().st_mode
            save_file(dict(constants), aside, {"checksum": sealed.BLANK})
            # It lets nobody but the owner read.
            aside.chmod(usual)
            sealed.seal(aside)


def read(path: Path) -> dict[str, Tensor]:
    """Read the frozen parameters of a folder's run.

    Raises:
        RunFolderError: the file is damaged.
    """
    file = path / FILE
    if not file.exists():
        return {}
    regular(file, RunFolderError)
    sealed.check(file, RunFolderError, "Delete it: a resumed run writes it anew.")
    with parsing(file, "a safetensors file", RunFolderError), safe_open(file, framework="pt") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def differing(path: Path, constants: Mapping[str, Tensor]) -> list[str]:
    """Return a clause for each frozen parameter that is not as the folder's run had it."""
    stored = read(path)
    return [
        f"the frozen parameter {name!r} has other values"
        for name in dict.fromkeys([*stored, *constants])
        if name not in stored or name not in constants or not _is_same(stored[name], constants[name])
    ]


def _is_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
