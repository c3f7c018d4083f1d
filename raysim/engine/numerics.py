"""Sets torch's process-wide options that fix the bits while clients are trained, and restores them afterwards."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from raysim import card
from raysim.client.trainers.trainer_choice import Precision
from raysim.config.torch_settings import as_on_workers, one_at_a_time
from raysim.errors import ResourceError


def choose_device(gpus_per_worker: float | str) -> torch.device:
    """Return the card if the experiment allows one and the machine has one, else the CPU."""
    return torch.device("cuda" if gpus_per_worker != 0 and card.is_there() else "cpu")


def take_share(gpus: float) -> float:
    """Limit this process to its share of a card's memory; returns the share, in (0, 1].

    Args:
        gpus: the share that Ray assigned; 0 is not a card.
    """
    share = gpus if 0 < gpus < 1 else 1.0
    if share < 1 and card.is_there():
        # Ray's fraction only counts workers; without a limit one of them could take the whole card.
        card.limit_memory(share)
    return share


def has_bf16(device: torch.device) -> bool:
    """Whether the device has bfloat16 products; a processor without them computes the same numbers slowly."""
    if device.type == "cuda":
        return card.has_bf16()
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return True
    return any(flag in flags for flag in ("avx512_bf16", "amx_bf16", " bf16 "))


def fix(threads: int, device: torch.device, precision: Precision) -> None:
    """Fix the intra-op thread count (two threads change most kernels' bits), and deterministic kernels on a card.

    Raises:
        ResourceError: bf16 on a card without it.
    """
    torch.set_num_threads(threads)
    if device.type == "cuda":
        if precision == "bf16" and not has_bf16(device):
            raise ResourceError(
                "engine.precision = 'bf16' needs a card with bfloat16 products (compute capability 8.0 and later), and "
                "this one has none: take 'float32'."
            )
        # cuBLAS reads this at its first use, and is deterministic only with it.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        # If a user's module needs a kernel without a deterministic version, torch warns instead of failing.
        torch.use_deterministic_algorithms(True, warn_only=True)
        # torch would also write to all memory that an operator is about to write to: 400 kernels in a local step of a
        # ResNet, a quarter of its time. What reads memory that was not written has other bits on a CPU, too.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        # Clients' weights are parts of one vector, in another order than cuDNN's. torch advises a call that moves them.
        warnings.filterwarnings("ignore", "RNN module weights are not part of single contiguous chunk", UserWarning)
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


@contextmanager
def fixed(threads: int, device: torch.device, precision: Precision) -> Iterator[None]:
    """Apply `fix` inside the block, and restore the process's settings after it; one thread is inside at a time."""
    with one_at_a_time(), _fixed(threads, device, precision):
        yield


@contextmanager
def _fixed(threads: int, device: torch.device, precision: Precision) -> Iterator[None]:
    before = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    matmul_tf32, cudnn_tf32 = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    try:
        with as_on_workers():
            fix(threads, device, precision)
            yield
    finally:
        torch.set_num_threads(before)
        if torch.are_deterministic_algorithms_enabled() != deterministic:
            # Only if necessary: the call imports torch's compiler, which takes seconds.
            torch.use_deterministic_algorithms(deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        # Only if necessary: they are parts of torch.set_float32_matmul_precision, which knows more values.
        if (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) != (matmul_tf32, cudnn_tf32):
            torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = matmul_tf32, cudnn_tf32
