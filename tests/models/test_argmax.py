"""The largest output of each row: torch's answer for everything that torch takes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from raysim.models.argmax import argmax

INF, NAN = float("inf"), float("nan")
OUTPUTS = {
    "wide": torch.randn(7, 2004),
    "over time": torch.randn(3, 5, 90),
    "equal": torch.zeros(4, 10),
    "some equal": torch.tensor([[1.0, 3.0, 3.0, 3.0], [-0.0, 0.0, -0.0, 0.0]]),
    "not finite": torch.tensor([[1.0, NAN, INF, NAN], [-INF, -INF, -INF, -INF], [INF, 0.0, INF, NAN]]),
    "rows apart": torch.randn(6, 16)[:, :10],
    "turned": torch.randn(10, 6).t(),
    "float64": torch.randn(6, 10, dtype=torch.float64),
    "bfloat16": torch.randn(6, 10).bfloat16(),
    "whole numbers": torch.tensor([[3, 9, 9], [0, 0, 0]]),
    "no rows": torch.randn(0, 10),
    "one row without an axis": torch.randn(10),
    "a number": torch.tensor(3.0),
    "with a gradient": torch.randn(6, 10, requires_grad=True),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_it_is_torchs(name: str) -> None:
    outputs = OUTPUTS[name]
    wanted = outputs.argmax(-1)
    got = argmax(outputs)
    assert got.dtype == wanted.dtype
    assert got.shape == wanted.shape
    assert torch.equal(got, wanted)


def test_it_works_under_vmap() -> None:
    outputs = torch.randn(3, 4, 5)
    assert torch.equal(torch.vmap(argmax)(outputs), outputs.argmax(-1))


def test_no_class_is_torchs_error() -> None:
    with pytest.raises(IndexError, match="non-zero size"):
        argmax(torch.zeros(4, 0))


def test_it_works_in_inference_mode() -> None:
    def largest(outputs: Tensor) -> list[int]:
        with torch.inference_mode():
            return argmax(outputs * 2).tolist()

    assert largest(torch.tensor([[0.0, 2.0], [5.0, 1.0]])) == [1, 0]
