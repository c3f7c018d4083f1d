"""The norms of updates: float64, and the same bits whatever is measured beside them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.local_training import Trained
from raysim.client.trainer import Updates
from raysim.models.layout import Layout


def measured(delta: torch.Tensor) -> Trained:
    """|row|^2 of updates that the trainer has not measured."""
    rows = len(delta)
    none = torch.empty(rows, 0)
    counts = torch.zeros(rows, dtype=torch.int64)
    updates = Updates(delta, none, counts[:, None], torch.zeros(rows), counts, np.zeros(rows, np.int64))
    layout = Layout.of([("weight", delta[0])])
    return local_training.with_norms(ChunkClients.none(), updates, layout, np.ones(rows, dtype=np.bool_))


@pytest.mark.parametrize("numbers", [5, 1_000, 300_007])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_norm_of_an_update_does_not_depend_on_the_others(numbers: int, dtype: torch.dtype) -> None:
    delta = torch.randn(3, numbers, dtype=dtype, generator=torch.Generator().manual_seed(0))
    together = measured(delta).squared_norms[:, 0]
    assert together.tolist() == [measured(delta[row : row + 1]).squared_norms.item() for row in range(3)]
    torch.testing.assert_close(together, delta.double().square().sum(dim=1), rtol=1e-13, atol=0)


@pytest.mark.parametrize("numbers", [7, 300_000])
def test_an_update_that_is_not_finite_is_seen(numbers: int) -> None:
    delta = torch.zeros(2, numbers)
    delta[1, -1] = torch.inf
    assert measured(delta).finite.tolist() == [True, False]
