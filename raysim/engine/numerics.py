"""torch's process-wide settings that fix the bits, held while clients are trained and put back after."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from raysim.client.forms.choose import Precision


def choose_device(gpus_per_worker: float | str) -> torch.device:
    """The card where one may be used and is there, else the CPU."""
    return torch.device("cuda" if gpus_per_worker != 0 and torch.cuda.is_available() else "cpu")


def fix(threads: int, device: torch.device, precision: Precision) -> None:
    """A fixed intra-op thread count (two threads change most kernels' bits), and deterministic kernels on a card."""
    torch.set_num_threads(threads)
    if device.type == "cuda":
        # cuBLAS reads this when it is first used, and is only deterministic with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
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
        torch.use_deterministic_algorithms(deterministic)
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul_tf32, cudnn_tf32
