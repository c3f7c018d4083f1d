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


def test_a_vector_of_numbers_and_tensors_by_name_has_zeros_in_the_gaps() -> None:
    like = torch.zeros(layout().size, dtype=torch.float64)
    made = layout().vector({"a": 0.3, "b": torch.tensor(2.0)}, default=-1.0, like=like)
    views = layout().views(made)
    assert views["a"].unique().tolist() == [0.3]  # not that of float32
    assert views["b"].item() == 2.0
    assert views["c"].unique().tolist() == [-1.0]
    assert made.sum().item() == pytest.approx(6 * 0.3 + 2 - 40)
    with pytest.raises(ModelError, match=r"may only name the model's tensors .* but got \['d'\]"):
        layout().vector({"d": 1.0})
    named = Layout.of([("fc1.weight", torch.zeros(2))])
    with pytest.raises(ModelError, match=r"but got \['fc1\.weigth'\] \(did you mean 'fc1\.weight'\?\)\.$"):
        named.vector({"fc1.weigth": 1.0})
    with pytest.raises(ModelError, match=r"params= may only .* \(did you mean 'fc1\.weight'\?\)\.$"):
        named.flatten_arrays({"fc1.weigth": np.zeros(2)}, torch.float32)


def test_a_map_leaves_the_gaps_of_a_stack_zero_and_its_argument_alone() -> None:
    stack = torch.stack([layout().flatten(TENSORS, torch.float32) * k for k in range(3)])
    before = stack.clone()
    made = layout().map(lambda name, tensor: tensor + (name == "a"), stack)
    assert torch.equal(layout().views(made)["a"][1], TENSORS["a"] + 1)
    assert torch.equal(layout().views(made)["c"][2], TENSORS["c"] * 2)
    assert torch.equal(stack, before)
    assert layout().has_zero_gaps(made)
    assert not layout().has_zero_gaps(made + 1)


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
