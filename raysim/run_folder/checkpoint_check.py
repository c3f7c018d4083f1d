"""Makes a server state of a checkpoint's content, and refuses content that no run wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import torch
from torch import Tensor

from raysim.errors import CheckpointError
from raysim.models.model import Weights
from raysim.run_folder.files import checkpoint_file
from raysim.server import manifest
from raysim.server.state import ServerState, Tensors

PARTS = tuple(f.name for f in fields(ServerState) if f.name not in ("round", "weights"))
"""The parts of the state that hold tensors by name."""

_WEIGHTS = ("params", "buffers", "counters")


def state_of(metadata: Mapping[str, str], tensors: Tensors, done: int | None) -> ServerState:
    """Return the state of a checkpoint.

    Args:
        metadata: its texts by name.
        tensors: by their place in the state.
        done: the rounds in the file's name; None: any.

    Raises:
        ValueError, KeyError: content that no run wrote.
    """
    found = metadata["round"]
    if not (found.isascii() and found.isdigit() and len(found) <= 18):
        raise ValueError(f"its number of rounds is {found!r}")
    if done not in (None, int(found)):
        raise ValueError(f"it is that of {found} rounds, under the name of another")
    under = {part: _under(f"{part}.", tensors) for part in ("weights", *PARTS)}
    if odd := [name for name in tensors if name.partition(".")[0] not in under]:
        raise ValueError(f"it has the unknown tensor {odd[0]!r}")
    params, buffers, counters = (under["weights"][name] for name in _WEIGHTS)
    if any(each.ndim != 1 for each in (params, buffers, counters)) or not params.dtype.is_floating_point:
        raise ValueError("its weights are not vectors of numbers")
    if not bool(torch.isfinite(params).all()):
        raise ValueError("its parameters are not finite")
    check_manifest(under["clients"])
    return ServerState(int(found), Weights(params, buffers, counters), **{part: under[part] for part in PARTS})


def check_fits(state: ServerState, initial: Weights, path: Path) -> None:
    """Check that a checkpoint holds weights of the run's model: kernels rely on their sizes.

    Raises:
        CheckpointError: another number or kind of parameters, buffers or counters.
    """
    for name in _WEIGHTS:
        found, expected = getattr(state.weights, name), getattr(initial, name)
        if found.shape != expected.shape or found.dtype != expected.dtype:
            raise CheckpointError(
                f"{checkpoint_file(path, state.round)} must hold {_form(expected)} as {name} of the model, but holds "
                f"{_form(found)}: delete it to resume from the one before, or start afresh."
            )


def check_manifest(tensors: Tensors) -> None:
    """Raise ValueError unless the tensors are a manifest of client states, or none."""
    if not tensors:
        return
    columns = [tensors[name] for name in manifest.COLUMNS]
    if any(column.dtype != torch.int64 or column.shape != columns[0].shape or column.ndim != 1 for column in columns):
        raise ValueError("its manifest of client states has columns of different lengths or kinds")
    if any(bool((column < 0).any()) for column in columns) or bool((columns[0].diff() <= 0).any()):
        raise ValueError("its manifest of client states has negative or repeated numbers")


def _form(tensor: Tensor) -> str:
    return f"{tensor.numel()} values of {str(tensor.dtype).removeprefix('torch.')}"


def _under(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
