"""Counts the processor's cores that this process may use, and those of them that other work leaves free."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def own() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


def free() -> int:
    """Return how many of them the work of the last minute leaves free; at least 1."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):
        # Windows knows no load.
        return own()
    return max(1, min(own(), round((os.cpu_count() or 1) - load)))


@contextmanager
def on_free_cores() -> Iterator[None]:
    """Let torch use no more threads inside the block than there are free cores, for what is tried before a run.

    An operator's threads wait for each other: beside other work, two take several times as long as one. The last digits
    depend on their number, so the block computes nothing that a run goes on with.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(min(before, free()))
    try:
        yield
    finally:
        torch.set_num_threads(before)
