"""Computes how large a built-in model would be, before any memory is taken for it."""

from __future__ import annotations

import os

import torch

from raysim.errors import ModelError
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Distilbert
from raysim.models.section import ModelSection, factory

VECTORS = 3
"""Vectors of the model's size that training holds at least: weights, a gradient, an update."""


def num_params(section: ModelSection, x_shape: tuple[int, ...], outputs: int) -> int:
    """Return the number of parameters, from a module without storage.

    >>> from raysim.models.mlp import Mlp
    >>> num_params(Mlp(hidden=(10**6, 10**6)), (784,), 10)
    1000796000010
    """
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        module = factory(section, x_shape, outputs)()
    return sum(parameter.numel() for parameter in module.parameters())


def check(section: ModelSection, x_shape: tuple[int, ...], outputs: int, dtype: torch.dtype) -> None:
    """Refuse a model that this machine cannot hold.

    Raises:
        ModelError: says its number of parameters, and the memory that it would take.
    """
    if isinstance(section, Distilbert | CausalLm):
        # Its sizes are those of a file.
        return
    count = num_params(section, x_shape, outputs)
    needed, there = VECTORS * count * dtype.itemsize, _memory_bytes()
    if needed > there:
        raise ModelError(
            f"model.name = {section.name!r} would have {count:,} parameters for inputs of shape {x_shape} and "
            f"{outputs} outputs: weights, a gradient and an update take {needed / 1e9:,.0f} GB, and this machine has "
            f"{there / 1e9:,.0f} GB. Choose smaller sizes."
        )


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
