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
from raysim.models.model import create, replace_frozen, replace_params

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


class Tied(nn.Module):
    """Two layers with one weight, a counter, and whole numbers that are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.b.weight = self.a.weight
        self.register_buffer("count", torch.tensor(0))
        self.code = nn.Parameter(torch.zeros(2, dtype=torch.uint8), requires_grad=False)
        self.large = nn.Parameter(torch.zeros(1, dtype=torch.int64), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = self.head(self.b(torch.tanh(self.a(x))))
        return outputs


def begun(experiment: Make, dataset: raysim.FederatedDataset, **changed: Any) -> dict[str, torch.Tensor]:
    exp = experiment(engine={"workers": 0}, rounds=1, client={"optimizer": {"name": "sgd", "lr": 0.0}})
    values = {**Tied().state_dict(), **{name.replace("__", "."): value for name, value in changed.items()}}
    (done,) = raysim.rounds(exp, model=Tied, dataset=dataset, params=values)
    return done.params


def test_a_state_dict_may_name_a_tied_weight_twice(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    weight = np.eye(5)
    again = begun(experiment, dataset, a__weight=weight, b__weight=weight)
    np.testing.assert_array_equal(again["a.weight"], weight)
    with pytest.raises(ModelError, match=r"params\['a.weight'\] and params\['b.weight'\] are one .* values differ"):
        begun(experiment, dataset, a__weight=weight, b__weight=weight + 1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"count": 2.5}, r"params\['count'\] must be whole numbers of at most 64 bits.* has 2.5"),
        ({"count": float("nan")}, r"params\['count'\] must be whole numbers"),
        ({"count": 1e19}, r"params\['count'\] must be whole numbers .* has 1e\+19"),
        ({"code": [0.5, 1]}, r"params\['code'\] must be whole numbers"),
        ({"code": [256, 1]}, r"params\['code'\] must fit into torch.uint8"),
    ],
)
def test_whole_numbers_that_would_become_others_are_refused(
    value: dict[str, Any], message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(ModelError, match=message):
        begun(experiment, dataset, **value)


def test_whole_numbers_are_taken_as_they_are() -> None:
    model, _ = create(Tied, 0, torch.float32)
    made, _ = replace_frozen(model, {"large": np.array([2**62 + 1])})
    assert made.constants["large"].tolist() == [2**62 + 1]
