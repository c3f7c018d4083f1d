"""Skips tests of compiled code where it cannot be had, and compiles it for other processors than this one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from raysim.client.trainers.kernel.dense import SOURCE
from raysim.storage import compiled_c

PROCESSORS = {"haswell": {"fma", "avx2"}, "x86-64-v2": {"ssse3"}}
"""With vectors of 32 and of 16 bytes, and what a processor that runs their code says of itself."""


def needs_kernel() -> None:
    """Skip the test, saying why, where the compiled kernel cannot be had."""
    if (missing := compiled_c.obstacle(SOURCE, torch.float32)) is not None:
        pytest.skip(f"no kernel: {missing}")


@contextmanager
def compiled_for(processor: str, cache: Path) -> Iterator[None]:
    """Compile for this one of PROCESSORS inside the block, into a cache of its own; skip the test elsewhere."""
    cpu = Path("/proc/cpuinfo")
    flags = set(cpu.read_text(encoding="utf-8").split()) if cpu.exists() else set()
    if not PROCESSORS[processor] <= flags:
        pytest.skip(f"this processor does not run code for {processor}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSIM_CACHE", str(cache))
        patch.setattr(compiled_c, "FOR_THIS_PROCESSOR", ((f"-march={processor}",),))
        _forget()
        try:
            yield
            assert list(cache.glob("kernels-*/*.so"))
        finally:
            _forget()


def _forget() -> None:
    compiled_c.library.cache_clear()
    compiled_c.obstacle.cache_clear()
