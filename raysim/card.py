"""Asks torch for what a NVIDIA card has beside its operators: memory, generators, recordings of kernels.

No other file calls torch.cuda, so a test without a card has one place to stand in for (`tests/support/fake_card.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

import torch
from torch import Tensor


class Memory(NamedTuple):
    """Bytes of a card: free for any process, in all, and of this process's tensors; `reserved` are these and what torch
    keeps for further ones."""

    free: int
    total: int
    allocated: int
    reserved: int


def is_there() -> bool:
    """Whether this process may use a card."""
    return torch.cuda.is_available()


def has_bf16() -> bool:
    """Whether the card has bfloat16 products."""
    return bool(torch.cuda.is_bf16_supported(including_emulation=False))


def name() -> str:
    """What the card is called."""
    return torch.cuda.get_device_name()


def wait() -> None:
    """Wait until the card has done all that it was asked to."""
    torch.cuda.synchronize()


def memory(device: torch.device) -> Memory:
    """Return the card's memory."""
    free, total = torch.cuda.mem_get_info(device)
    return Memory(free, total, torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device))


def release_memory() -> None:
    """Give back what torch keeps for further tensors; nothing happens without a card."""
    torch.cuda.empty_cache()


def limit_memory(share: float) -> None:
    """Let this process take no more than a share of the card's memory."""
    torch.cuda.set_per_process_memory_fraction(share)


def generators(device: torch.device) -> tuple[torch.Generator, ...]:
    """Return the generators that a module on the device may draw from, on any machine."""
    if device.type != "cuda":
        return (torch.default_generator,)
    index = torch.cuda.current_device() if device.index is None else device.index
    return (torch.default_generator, torch.cuda.default_generators[index])


def start_generators(key: int, device: torch.device) -> None:
    """Start the generators that a module on the device may draw from at a 64-bit key.

    Not torch.manual_seed: while no card is in use that keeps a formatted stack trace of every call, three times over,
    which took longer than a small client's local step.
    """
    for generator in generators(device):
        generator.manual_seed(key >> 1)


def start_every_generator(key: int) -> None:
    """Start the generators of the CPU and of every card at a 64-bit key; not by torch.manual_seed, as above."""
    torch.default_generator.manual_seed(key >> 1)
    if torch.cuda.device_count():
        torch.cuda.manual_seed_all(key >> 1)


@contextmanager
def same_draws(device: torch.device) -> Iterator[Callable[[], None]]:
    """Put the generators of `generators` back to where they are, at the end of the block and when asked to."""
    before = [(generator, generator.get_state()) for generator in generators(device)]

    def put_back() -> None:
        for generator, state in before:
            generator.set_state(state)

    try:
        yield put_back
    finally:
        put_back()


class GraphMemory:
    """Memory of CUDA graphs. They are played one at a time, so what one computes in, another may compute in, too."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._aside = torch.cuda.Stream()

    def warm_up(self, work: Callable[[], object]) -> None:
        """Do the work once where it will be recorded: libraries allocate workspaces when a stream first calls them."""
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            try:
                work()
            finally:
                # What failed on the way must not go on beside what comes next.
                torch.cuda.synchronize()

    def record(
        self, work: Callable[[], tuple[Tensor | None, ...]]
    ) -> tuple[Callable[[], None], tuple[Tensor | None, ...], int]:
        """Record the kernels that `work` launches, which do not run; return what launches them, the results' places,
        and what the graph takes, in bytes.

        Not by torch.cuda.graph: that collects garbage and gives torch's free memory back at every recording.

        Raises:
            RuntimeError: the card cannot record it.
        """
        before = memory(self._device).free
        graph = torch.cuda.CUDAGraph()
        self._aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._aside):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = work()
            except BaseException:
                with suppress(RuntimeError):
                    graph.capture_end()
                raise
            graph.capture_end()
        torch.cuda.current_stream().wait_stream(self._aside)
        return graph.replay, results, max(0, before - memory(self._device).free)
