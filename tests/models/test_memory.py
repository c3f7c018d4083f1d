"""Large vectors take memory that the process used before, and never memory that something still reads."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from raysim.models import memory
from raysim.models.memory import MOST_FREE, MOST_SIZES, SMALLEST_BYTES, Blocks
from raysim.models.vectors import empty

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="blocks are kept on Linux only")

NUMBERS = SMALLEST_BYTES // 4


def test_freed_memory_is_lent_again_and_lent_memory_is_not() -> None:
    blocks = Blocks()
    first, second = blocks.lend(SMALLEST_BYTES), blocks.lend(SMALLEST_BYTES)
    first[:], second[:] = 1, 2
    assert first.ctypes.data != second.ctypes.data
    place = first.ctypes.data
    del first
    third = blocks.lend(SMALLEST_BYTES)
    assert third.ctypes.data == place
    assert (second == 2).all()


def test_a_view_keeps_the_memory() -> None:
    whole = empty((NUMBERS,), torch.float32, torch.device("cpu")).fill_(1)
    part, array = whole[:10], whole.numpy()[10:20]
    del whole
    gc.collect()
    others = [empty((NUMBERS,), torch.float32, torch.device("cpu")).fill_(2) for _ in range(MOST_FREE + 1)]
    assert (part == 1).all()
    assert (array == 1).all()
    assert len({one.data_ptr() for one in others}) == len(others)


def test_few_free_blocks_are_kept() -> None:
    blocks = Blocks()
    lent = [blocks.lend(SMALLEST_BYTES) for _ in range(MOST_FREE + 2)]
    del lent
    assert [len(free) for free in blocks._free.values()] == [MOST_FREE]
    for size in range(2, MOST_SIZES + 3):
        blocks.lend(size * SMALLEST_BYTES)
    assert len(blocks._free) <= MOST_SIZES


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_large_tensor_is_what_torch_would_make(dtype: torch.dtype) -> None:
    made = empty((3, NUMBERS), dtype, torch.device("cpu"))
    assert made.shape == (3, NUMBERS)
    assert made.dtype == dtype
    assert made.is_contiguous()
    assert made.data_ptr() % 64 == 0
    made.zero_()
    made += 1
    assert made.sum() == 3 * NUMBERS


def test_without_memory_torch_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(length: int) -> None:
        raise OSError("no memory")

    monkeypatch.setattr(memory, "_new", fails)
    monkeypatch.setattr(memory.BLOCKS, "_free", {})
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        empty((1 << 50,), torch.float64, torch.device("cpu"))
    assert empty((NUMBERS,), torch.float32, torch.device("cpu")).shape == (NUMBERS,)
