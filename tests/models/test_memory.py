"""Large vectors take memory that the process used before, and never memory that something still reads."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
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


FAULTS = """
import resource, torch
from raysim.models import memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def step():
    # As a local step: several blocks that are freed together.
    made = [torch.ones(3_000_000) for _ in range(6)]
    return float(made[0][0])

torch.set_num_threads(1)
{asked}
for _ in range(3):
    step()
before = faults()
for _ in range(10):
    step()
print(faults() - before)
"""


def faults_of_ten_steps(asked: str, **environment: str) -> int:
    pytest.importorskip("resource")
    if getattr(ctypes.CDLL(None), "mallopt", None) is None:
        pytest.skip("the C library of this machine is not glibc")
    kept = {name: value for name, value in os.environ.items() if name not in memory.OWN_SETTINGS}
    done = subprocess.run(
        [sys.executable, "-c", FAULTS.format(asked=asked)],
        capture_output=True,
        text=True,
        check=True,
        env={**kept, **environment},
    )
    return int(done.stdout)


def test_what_local_steps_free_stays_with_the_process() -> None:
    assert faults_of_ten_steps("memory.keep_freed()") < 1_000


def test_settings_of_the_environment_stay() -> None:
    # 72 MB a step are 17,578 pages of 4 KiB. Without a setting it depends on what lies behind them.
    asked = "memory.keep_freed()"
    assert faults_of_ten_steps(asked, MALLOC_TRIM_THRESHOLD_="1000000", MALLOC_MMAP_THRESHOLD_="1000000") > 10_000
