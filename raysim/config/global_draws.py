"""Notices draws from the process's global generators of random numbers, whose bits depend on who drew before."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from raysim.config.torch_settings import one_at_a_time

ADVICE = (
    "drew from a global generator (of torch, NumPy or Python), whose draws differ from worker to worker: take "
    "at.generator or at.rng"
)
"""What messages say of a function that draws."""


@contextmanager
def draws(of_torch_too: bool = True) -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether there were draws inside; put the generators back at the end.

    Args:
        of_torch_too: whether draws from torch's generator count.
    """
    with python_draws() as drew_python:
        of_torch = torch.get_rng_state()

        def drew() -> bool:
            return drew_python() or (of_torch_too and not torch.equal(torch.get_rng_state(), of_torch))

        try:
            yield drew
        finally:
            torch.set_rng_state(of_torch)


@contextmanager
def python_draws() -> Iterator[Callable[[], bool]]:
    """The same for the generators of Python and NumPy alone; they are put back too."""
    with one_at_a_time():
        python, numpy = random.getstate(), _numpy()
        try:
            yield lambda: random.getstate() != python or _numpy() != numpy
        finally:
            random.setstate(python)
            np.random.set_state((numpy[0], np.frombuffer(numpy[1], np.uint32), *numpy[2:]))


def _numpy() -> Any:
    state: Any = np.random.get_state()
    kind, keys, *others = state
    return (kind, keys.tobytes(), *others)
