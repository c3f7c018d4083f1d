"""Skips tests of the compiled kernel where it cannot be had."""

from __future__ import annotations

import pytest
import torch

from raysim.client.trainers.kernel.dense import SOURCE
from raysim.storage import library


def needs_kernel() -> None:
    """Skip the test, saying why, where the compiled kernel cannot be had."""
    if (missing := library.obstacle(SOURCE, torch.float32)) is not None:
        pytest.skip(f"no kernel: {missing}")
