"""What a compressor loses is measured to the same bits with a C compiler and without, while it rounds or afterwards."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from raysim.compression.passes import Groups, largest, measured, rounded, rounded_and_measured
from raysim.models.layout import Layout
from raysim.models.squared_norms import LANES
from raysim.storage import compiled_c
from tests.support.kernel import PROCESSORS, compiled_for, needs_kernel

LAYOUT = Layout.of([(str(size), torch.zeros(size)) for size in (0, 1, LANES - 1, LANES, LANES + 1, 0, 3000, 0)])


@pytest.fixture(params=["compiled", "in steps", *PROCESSORS])
def _compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    if request.param == "in steps":
        monkeypatch.setattr(compiled_c, "obstacle", lambda source, dtype: "it is not asked for")
        yield
        return
    needs_kernel()
    with compiled_for(request.param, tmp_path) if request.param in PROCESSORS else nullcontext():
        yield


def drawn(seed: int, dtype: torch.dtype) -> Tensor:
    vector = torch.zeros(LAYOUT.size, dtype=dtype)
    generator = torch.Generator().manual_seed(seed)
    for piece in LAYOUT.pieces(vector):
        piece.copy_(torch.randn(len(piece), generator=generator))
    return vector


def lanes_of(values: Sequence[float]) -> float:
    """The sum of squares in partial sums, number by number."""
    lanes = [0.0] * LANES
    for place, value in enumerate(values):
        lanes[place % LANES] += value * value
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]


def by_definition(a: Tensor, sent: Tensor) -> tuple[float, list[float]]:
    lost, norms = (
        np.array([lanes_of(piece.double().tolist()) for piece in LAYOUT.pieces(vector)]) for vector in (a - sent, sent)
    )
    return float(lost.sum()), norms.tolist()


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_norms_are_partial_sums_by_group(dtype: torch.dtype) -> None:
    a, sent = drawn(1, dtype), drawn(2, dtype)
    lost, norms = measured(a, sent, Groups(LAYOUT))
    assert (lost, norms.tolist()) == by_definition(a, sent)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_rounding_loses_is_measured_while_it_rounds(dtype: torch.dtype) -> None:
    a, sent, again = drawn(3, dtype), torch.empty(LAYOUT.size, dtype=dtype), torch.empty(LAYOUT.size, dtype=dtype)
    lost, norms = rounded_and_measured(a, 5.0, 0.2, 7, sent, Groups(LAYOUT))
    rounded(a, 5.0, 0.2, 7, again)
    assert torch.equal(sent, again)
    assert (sent - a).abs().max() <= 0.2
    assert (lost, norms.tolist()) == by_definition(a, sent)


@pytest.mark.usefixtures("_compiled")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_number_counts_without_its_sign(dtype: torch.dtype) -> None:
    a = drawn(4, dtype)
    assert largest(a) == max(abs(value) for value in a.tolist())
    a[-1] = -4e30
    assert largest(a) == float(a.abs().max())
    a[5] = -torch.inf
    assert largest(a) == torch.inf
    a[7] = torch.nan
    assert math.isnan(largest(a))
    assert largest(a[:0]) == 0
    assert math.copysign(1, largest(torch.full((3,), -0.0, dtype=dtype))) == 1
