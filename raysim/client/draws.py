"""torch's own generators, started at an address: what a module draws that is not dropout."""

from __future__ import annotations

import torch
from torch import Tensor


def start(key: int, device: torch.device) -> None:
    """Start the generators that a module on the device may draw from at a 64-bit key.

    Not torch.manual_seed: while no card is in use that keeps a formatted stack trace of every call, three times over,
    which took longer than a small client's local step.
    """
    for generator in _generators(device):
        generator.manual_seed(key >> 1)


def states(device: torch.device) -> list[Tensor]:
    """Where the generators stand."""
    return [generator.get_state() for generator in _generators(device)]


def restore(device: torch.device, before: list[Tensor]) -> None:
    """Put them back to where they stood."""
    for generator, state in zip(_generators(device), before, strict=True):
        generator.set_state(state)


def _generators(device: torch.device) -> tuple[torch.Generator, ...]:
    if device.type != "cuda":
        return (torch.default_generator,)
    index = torch.cuda.current_device() if device.index is None else device.index
    return (torch.default_generator, torch.cuda.default_generators[index])
