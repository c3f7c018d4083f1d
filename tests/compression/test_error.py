"""What a compressor loses is measured to the same bits with a C compiler and without."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from raysim.compression.error import LANES, Measuring
from raysim.models.layout import Layout
from raysim.storage import library
from tests.support.kernel import needs_kernel


def lanes_of(values: Sequence[float]) -> float:
    """The sum of squares in partial sums, number by number."""
    lanes = [0.0] * LANES
    for place, value in enumerate(values):
        lanes[place % LANES] += value * value
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_norms_are_partial_sums_by_group(
    compiled: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    if compiled:
        needs_kernel()
    else:
        monkeypatch.setattr(library, "obstacle", lambda source, dtype: "it is not asked for")
    layout = Layout.of([(str(size), torch.zeros(size)) for size in (0, 1, LANES - 1, LANES, LANES + 1, 1000)])
    generator = torch.Generator().manual_seed(3)
    a, sent = torch.zeros(2, layout.size, dtype=dtype)
    for vector in (a, sent):
        for piece in layout.pieces(vector):
            piece.copy_(torch.randn(len(piece), generator=generator))
    lost, norms = Measuring(layout).measure(a, sent)
    by_group = [
        ((piece - its).tolist(), its.tolist())
        for piece, its in zip(layout.pieces(a.double()), layout.pieces(sent.double()), strict=True)
    ]
    assert norms.tolist() == [lanes_of(its) for _, its in by_group]
    assert lost == float(np.sum([lanes_of(less) for less, _ in by_group]))
