"""Reads and writes checkpoints: the server's state as one safetensors file. A crash leaves a complete file, old or new.

Tensors are named by their place in `ServerState` ("weights.params", "optimizer.m", ...); metadata hold the round, the
format, the run's fingerprint and the file's checksum. Nothing is pickled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from raysim.errors import CheckpointError, DiskError
from raysim.run_folder.checkpoint_check import PARTS, check_manifest, state_of
from raysim.server.state import ServerState
from raysim.storage import atomic, disk, sealed
from raysim.storage.reading import parsing, regular


class DamagedError(CheckpointError):
    """The file cannot be read; an older one may be intact."""


class UnreadableError(DamagedError):
    """This user may not read the file, of which nothing else is known: it may be whole."""


class ForeignError(CheckpointError):
    """The file belongs to another run."""


FORMAT = "4"

THEN = f"Earlier checkpoints are untouched: {disk.REMEDY}, then resume."
"""How to go on where records cannot be written."""


def write(state: ServerState, path: Path, fingerprint: str) -> None:
    """Write atomically: a temporary file beside it, flushed to the disk, then renamed.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written; earlier checkpoints are untouched.
    """
    metadata = {"checksum": sealed.BLANK, "format": FORMAT, "round": str(state.round), "fingerprint": fingerprint}
    content = save(_apart(_tensors(state)), metadata)
    try:
        atomic.write(path, lambda file: sealed.write(file, content), flushed=True, needed_bytes=len(content), then=THEN)
        with disk.writing(path.parent, then=THEN):
            atomic.sync_folder(path.parent)
    except DiskError as error:
        raise CheckpointError(f"The checkpoint {error}") from error


def digest(state: ServerState) -> str:
    """Return a digest of all numbers of a state."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(_tensors(state).items()):
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def _tensors(state: ServerState) -> dict[str, torch.Tensor]:
    return {
        "weights.params": state.weights.params,
        "weights.buffers": state.weights.buffers,
        "weights.counters": state.weights.counters,
        **{f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(state, part).items()},
    }


def _apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the tensors with memory of their own, as the format asks for: before the first step, vectors of a method
    may be the model's."""
    met: set[int] = set()
    apart = {}
    for name, tensor in tensors.items():
        place = tensor.untyped_storage().data_ptr()
        apart[name] = tensor.clone() if place in met and tensor.numel() else tensor.contiguous()
        met.add(place)
    return apart


def read(path: Path, fingerprint: str | None = None, done: int | None = None) -> ServerState:
    """Read a checkpoint back, bit for bit.

    Args:
        path: the file.
        fingerprint: whose it must be, see `experiment_record.stored_owner`; one of another run is refused.
        done: the number of rounds in the file's name; None: any.

    Raises:
        CheckpointError: the file is damaged, of another format, or of another experiment.
    """
    _check_sealed(path)
    where = f"The checkpoint {path}"
    with parsing(where, "a whole safetensors file", DamagedError), safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: _aligned(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} must be a checkpoint of format {FORMAT}, but is of {metadata.get('format')}.")
    if fingerprint is not None and metadata.get("fingerprint") != fingerprint:
        raise ForeignError(
            f"{path} belongs to another run ({metadata.get('fingerprint')}) than this one ({fingerprint}): the data, "
            f"the method, what a script passed, or the numbers of threads or clients per chunk differ."
        )

    with parsing(where, "a server state", DamagedError):
        return state_of(metadata, tensors, done)


def read_part(path: Path, part: str) -> dict[str, torch.Tensor]:
    """Read only one part of a checkpoint; empty if the file is damaged.

    Raises:
        UnreadableError: this user may not read it.
    """
    try:
        _check_sealed(path)
        with parsing(path, "a server state", DamagedError), safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(f"{part}.")]  # noqa: SIM118
            found = {name.removeprefix(f"{part}."): _aligned(file.get_tensor(name)) for name in names}
            if part == "clients":
                check_manifest(found)
            return found
    except UnreadableError:
        raise
    except DamagedError:
        return {}


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy whose memory torch allocated: a kernel's order of additions depends on alignment."""
    return tensor.clone()


def _check_sealed(path: Path) -> None:
    regular(path, DamagedError, denied=UnreadableError)
    sealed.check(path, DamagedError, "", denied=UnreadableError)
