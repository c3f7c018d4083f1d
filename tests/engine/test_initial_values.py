"""`params=`: the initial values that a script passes, as arrays of any kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.errors import ModelError
from raysim.models.model import create, replace_params

Make = Callable[..., raysim.Experiment]


def factory() -> nn.Module:
    """Five features, three classes."""
    return nn.Linear(5, 3)


WEIGHT = np.arange(15.0).reshape(3, 5)


UNREADABLE: dict[str, tuple[Any, str]] = {
    "complex": (WEIGHT * 1j, "params\\['weight'\\] must be an array of real numbers, .* torch.complex128"),
    "masked": (np.ma.masked_array(WEIGHT, mask=WEIGHT > 3), "some of its values are masked"),
    "masked in a list": ([np.ma.masked_array(row, mask=row > 3) for row in WEIGHT], "some of its values are masked"),
    "objects": (WEIGHT.astype(object), "numpy.object_"),
    "text": ("weights.pt", "params\\['weight'\\] must be an array"),
    "nothing": (None, "params\\['weight'\\] must be an array"),
    "ragged": ([[1, 2], [3]], "params\\['weight'\\] must be an array"),
    "sparse": (torch.ones(3, 5).to_sparse(), "sparse_coo"),
    "meta": (torch.ones(3, 5, device="meta"), "meta tensor"),
    "NaN": (WEIGHT * np.nan, "15 of the 15 of 'weight' are not"),
    "too large": (np.full((3, 5), 1e300), "15 of the 15 of 'weight' are not, as torch.float32"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_initial_values_that_are_none_are_refused(
    name: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    value, message = UNREADABLE[name]
    start = {"weight": value, "bias": np.zeros(3)}
    with pytest.raises(ModelError, match=message):
        raysim.run(
            experiment(engine={"workers": 0}), model=factory, params=start, dataset=dataset, path=tmp_path / "run"
        )


@pytest.mark.filterwarnings("ignore:The PyTorch API of MaskedTensors")
def test_a_tensor_whose_class_says_what_its_numbers_are_is_refused() -> None:
    model, weights = create(factory, 0, torch.float64)
    weight = torch.from_numpy(WEIGHT)
    masked = torch.masked.masked_tensor(weight, weight > 3)
    with pytest.raises(ModelError, match=r"params\['weight'\] must be an array of real numbers, .* MaskedTensor"):
        replace_params(model, weights, {"weight": masked, "bias": np.zeros(3)})


def test_initial_values_without_names_are_refused(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    unnamed: Any = [WEIGHT]
    with pytest.raises(ModelError, match="params= must be a mapping from names to arrays, but got list"):
        raysim.run(experiment(), model=factory, params=unnamed, dataset=dataset)


READABLE: dict[str, Any] = {
    "byte order": WEIGHT.astype(">f4"),
    "read-only": np.broadcast_to(WEIGHT, (3, 5)),
    "from behind": WEIGHT[::-1].copy()[::-1],
    "a list": WEIGHT.tolist(),
    "a tensor with a gradient": torch.from_numpy(WEIGHT).requires_grad_(),
    "nothing masked": np.ma.masked_array(WEIGHT),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", READABLE)
def test_initial_values_are_taken_as_numpy_means_them(name: str) -> None:
    model, weights = create(factory, 0, torch.float64)
    made = replace_params(model, weights, {"weight": READABLE[name], "bias": np.zeros(3)})
    np.testing.assert_array_equal(made.to_named(model)["weight"].numpy(), WEIGHT)
