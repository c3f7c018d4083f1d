"""torch's own generators, started at an address: what a module draws that is not dropout."""

from __future__ import annotations

import torch


def start(key: int, device: torch.device) -> None:
    """Start the generators that a module on the device may draw from at a 64-bit key.

    Not torch.manual_seed: while no card is in use that keeps a formatted stack trace of every call, three times over,
    which took longer than a small client's local step.
    """
    for generator in _generators(device):
        generator.manual_seed(key >> 1)


def _generators(device: torch.device) -> tuple[torch.Generator, ...]:
    if device.type != "cuda":
        return (torch.default_generator,)
    index = torch.cuda.current_device() if device.index is None else device.index
    return (torch.default_generator, torch.cuda.default_generators[index])
