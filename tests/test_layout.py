"""The layout: every tensor in one vector, each at a multiple of 64 bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from raysim.errors import ModelError
from raysim.models.layout import Layout

TENSORS = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor(7.0), "c": torch.arange(40.0)}


def layout() -> Layout:
    return Layout.of(TENSORS.items())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_every_tensor_starts_at_a_multiple_of_64_bytes(dtype: torch.dtype) -> None:
    flat = layout().flatten(TENSORS, dtype)
    assert flat.data_ptr() % 64 == 0
    assert all(view.data_ptr() % 64 == 0 for view in layout().views(flat).values())


def test_a_vector_holds_the_tensors_and_zeros() -> None:
    flat = layout().flatten(TENSORS, torch.float32)
    assert flat.sum() == sum(tensor.sum() for tensor in TENSORS.values())
    for name, view in layout().views(flat).items():
        assert torch.equal(view, TENSORS[name])
    assert layout().num_values == 6 + 1 + 40


def test_views_of_a_stack_keep_the_client_axis() -> None:
    stack = torch.stack([layout().flatten(TENSORS, torch.float32) * k for k in range(3)])
    assert torch.equal(layout().views(stack)["a"][2], TENSORS["a"] * 2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"d": np.zeros(1)}, r"but got \['d'\]"),
        ({"a": np.zeros((3, 2))}, r"params\['a'\] must have shape \(2, 3\), but has \(3, 2\)"),
        ({"a": None}, "'a' of shape .* is missing"),
    ],
)
def test_a_users_arrays_must_fit(change: dict[str, np.ndarray | None], message: str) -> None:
    arrays = {name: tensor.numpy() for name, tensor in TENSORS.items()} | change
    with pytest.raises(ModelError, match=message):
        layout().flatten_arrays({n: a for n, a in arrays.items() if a is not None}, torch.float32)
