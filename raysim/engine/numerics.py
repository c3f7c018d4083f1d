"""torch's process-wide settings that fix the bits, held while clients are trained and put back after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from raysim.client.trainers.choose import Precision
from raysim.errors import ResourceError


def choose_device(gpus_per_worker: float | str) -> torch.device:
    """The card where one may be used and is there, else the CPU."""
    return torch.device("cuda" if gpus_per_worker != 0 and torch.cuda.is_available() else "cpu")


def take_share(gpus: float) -> float:
    """Keep this process to its share of a card's memory; returns the share, in (0, 1].

    Args:
        gpus: what Ray gave; 0 is no card.
    """
    share = gpus if 0 < gpus < 1 else 1.0
    if share < 1 and torch.cuda.is_available():
        # Ray's fraction only counts workers; without a cap one of them could take the whole card.
        torch.cuda.set_per_process_memory_fraction(share)
    return share


def has_bf16(device: torch.device) -> bool:
    """Whether the device multiplies bfloat16 numbers itself; a processor that does not is slow at it, and right."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16 "))


def fix(threads: int, device: torch.device, precision: Precision) -> None:
    """A fixed intra-op thread count (two threads change most kernels' bits), and deterministic kernels on a card.

    Raises:
        ResourceError: bf16 on a card that has none.
    """
    torch.set_num_threads(threads)
    if device.type == "cuda":
        if precision == "bf16" and not has_bf16(device):
            raise ResourceError(
                "engine.precision = 'bf16' needs a card with bfloat16 products (compute capability 8.0 and later), and "
                "this one has none: take 'float32'."
            )
        # cuBLAS reads this when it is first used, and is only deterministic with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # A kernel of a user's module that has no deterministic form is a warning of torch's, and no error.
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextmanager
def fixed(threads: int, device: torch.device, precision: Precision) -> Iterator[None]:
    """`fix` inside the block, and the process's own settings after it."""
    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    matmul_tf32, cudnn_tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    fix(threads, device, precision)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            # Only where it must: the call imports torch's compiler, which takes seconds.
            torch.use_deterministic_algorithms(deterministic)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul_tf32, cudnn_tf32
