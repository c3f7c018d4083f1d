"""Generators of random numbers that a function or an object holds, and what state they are in."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

Generator = torch.Generator | np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random

GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)
"""The classes of generators of torch, NumPy and Python."""


def generator_state(generator: Generator) -> Any:
    """Return the state, to be compared with `==`.

    >>> rng = random.Random(1)
    >>> before = generator_state(rng)
    >>> before == generator_state(rng), rng.random() > 1, before == generator_state(rng)
    (True, False, False)
    """
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, random.Random):
        # A generator of the system has none.
        return None if isinstance(generator, random.SystemRandom) else generator.getstate()
    if isinstance(generator, np.random.RandomState):
        return _plain(generator.get_state(legacy=False))
    return _plain(_bits_of(generator).state)


def generator_restorer(generator: Generator) -> Callable[[], object]:
    """Return a function that puts the generator's state back."""
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if isinstance(generator, random.Random):
        if isinstance(generator, random.SystemRandom):
            return lambda: None
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state(legacy=False))
    bits = _bits_of(generator)
    return partial(setattr, bits, "state", bits.state)


def _bits_of(generator: np.random.Generator | np.random.BitGenerator) -> np.random.BitGenerator:
    return generator.bit_generator if isinstance(generator, np.random.Generator) else generator


def _plain(state: Any) -> Any:
    """Arrays as bytes, which are compared as a whole."""
    if isinstance(state, np.ndarray):
        return state.tobytes()
    return {key: _plain(value) for key, value in state.items()} if isinstance(state, dict) else state
