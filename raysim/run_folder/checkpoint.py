"""Reads and writes checkpoints: the server's state as one safetensors file. A crash leaves a complete file, old or new.

Tensors are named by their place in `ServerState` ("weights.params", "optimizer.m", ...); metadata hold the round, the
format, the run's fingerprint and the file's checksum. Nothing is pickled.
"""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from raysim.errors import CheckpointError, DiskError
from raysim.models.model import Weights
from raysim.server.state import ServerState
from raysim.storage import atomic, disk, sealed


class DamagedError(CheckpointError):
    """The file cannot be read; an older one may be intact."""


FORMAT = "4"

THEN = "Earlier checkpoints are untouched: make room, then resume."
"""How to go on where records cannot be written."""

PARTS = tuple(f.name for f in fields(ServerState) if f.name not in ("round", "weights"))
"""The parts of the state that hold tensors by name."""


def write(state: ServerState, path: Path, fingerprint: str) -> None:
    """Write atomically: a temporary file beside it, flushed to the disk, then renamed.

    Raises:
        CheckpointError: the disk is full, or the folder cannot be written; earlier checkpoints are untouched.
    """
    tensors = {
        "weights.params": state.weights.params,
        "weights.buffers": state.weights.buffers,
        "weights.counters": state.weights.counters,
        **{f"{part}.{name}": tensor for part in PARTS for name, tensor in getattr(state, part).items()},
    }
    metadata = {"checksum": sealed.BLANK, "format": FORMAT, "round": str(state.round), "fingerprint": fingerprint}
    content = save({name: tensor.contiguous() for name, tensor in tensors.items()}, metadata)
    try:
        atomic.write(path, lambda file: sealed.write(file, content), flushed=True, needed_bytes=len(content), then=THEN)
        with disk.writing(path.parent, then=THEN):
            sync_folder(path.parent)
    except DiskError as error:
        raise CheckpointError(f"The checkpoint {error}") from error


def read(path: Path, fingerprint: str | None = None) -> ServerState:
    """Read a checkpoint back, bit for bit.

    Args:
        path: the file.
        fingerprint: the run's; a checkpoint of another experiment is refused.

    Raises:
        CheckpointError: the file is damaged, of another format, or of another experiment.
    """
    _check_sealed(path)
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, torch.Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise DamagedError(f"The checkpoint {path} is damaged: {error}") from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path} must be a checkpoint of format {FORMAT}, but is of {metadata.get('format')}.")
    if fingerprint is not None and metadata["fingerprint"] != fingerprint:
        raise CheckpointError(
            f"{path} belongs to an experiment with fingerprint {metadata['fingerprint']}, but this one has "
            f"{fingerprint}: the data, the method or the numbers of threads or clients per chunk differ."
        )

    def under(prefix: str) -> dict[str, torch.Tensor]:
        return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}

    weights = under("weights.")
    return ServerState(
        round=int(metadata["round"]),
        weights=Weights(weights["params"], weights["buffers"], weights["counters"]),
        **{part: under(f"{part}.") for part in PARTS},
    )


def read_part(path: Path, part: str) -> dict[str, torch.Tensor]:
    """Read only one part of a checkpoint; empty if the file is damaged."""
    try:
        _check_sealed(path)
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.startswith(f"{part}.")]  # noqa: SIM118
            return {name.removeprefix(f"{part}."): file.get_tensor(name) for name in names}
    except (DamagedError, SafetensorError, OSError):
        return {}


def _check_sealed(path: Path) -> None:
    sealed.check(path, DamagedError, "raysim goes on from the checkpoint before it, if there is one.")


def sync_folder(folder: Path) -> None:
    """Flush renames in the folder to the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
