"""Which modules have hand-written trainers, and what is said of the others."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest
import torch
from torch import nn

from raysim.client.trainers.recognise import Recognised, recognise
from raysim.models.layers import CausalSelfAttention, Residual, Tied


def paths(module: nn.Module) -> list[str]:
    found = recognise(module)
    assert isinstance(found, Recognised), found
    return [placed.path for placed in found.layers]


def test_a_nested_sequential_is_its_layers_with_their_full_names() -> None:
    module = nn.Sequential(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), nn.Identity(), nn.Linear(4, 2))
    assert paths(module) == ["0.0.", "0.1.", "2."]


def test_a_single_layer_is_recognised() -> None:
    assert paths(nn.Linear(3, 2)) == [""]


def test_pooling_goes_before_relu_and_flattening_before_dropout() -> None:
    module = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Flatten(), nn.Linear(8, 2)
    )
    assert paths(module) == ["0.", "2.", "1.", "4.", "3.", "5."]


def test_layers_made_of_others_have_them_inside_with_their_full_names() -> None:
    body = nn.Sequential(CausalSelfAttention(4, 2), nn.Identity(), nn.Sequential(nn.Dropout(0.1)))
    found = recognise(nn.Sequential(Residual(body), nn.LayerNorm(4)))
    assert isinstance(found, Recognised), found
    around, norm = found.layers
    assert (around.path, norm.path) == ("0.", "1.")
    assert [one.path for one in around.inner] == ["0.body.0.", "0.body.2.0."]
    assert [one.path for one in around.inner[0].inner] == [
        f"0.body.0.{name}." for name in ("query", "key", "value", "out")
    ]


def test_the_words_of_tied_ends_come_before_the_body() -> None:
    found = recognise(Tied(5, 4, nn.Sequential(nn.Linear(4, 4))))
    assert isinstance(found, Recognised), found
    assert [one.path for one in found.layers[0].inner] == ["embedding.", "body.0."]


@pytest.mark.parametrize(
    ("layers", "lowest"),
    [
        ([nn.Flatten(), nn.ReLU(), nn.Linear(3, 2)], 2),
        ([Residual(nn.Sequential(nn.Tanh())), nn.Linear(3, 2)], 1),
        ([Residual(nn.Sequential(nn.Linear(2, 2))), nn.Linear(2, 2)], 0),
    ],
)
def test_nothing_below_the_lowest_parameters_needs_a_gradient(layers: list[nn.Module], lowest: int) -> None:
    found = recognise(nn.Sequential(*layers))
    assert isinstance(found, Recognised), found
    assert found.lowest_with_parameters == lowest


class TwoNames(nn.Module):
    """Its layers have names of their own, and others in a list of them, by which they are called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)
        self.features = nn.Sequential(self.first, nn.ReLU())
        self.options = Namespace(hidden=[8], activation=nn.ReLU)

    def forward(self, x: Any) -> Any:
        return self.last(self.features(x.view(-1, 6)))


def test_a_layer_goes_by_the_name_that_its_parameters_have() -> None:
    assert paths(TwoNames()) == ["", "first.", "features.1.", "last."]


def replaced() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].forward = lambda x: x
    return module


class Calls(nn.Linear):
    def __call__(self, x: Any) -> Any:
        return super().__call__(x).relu()


def masked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].get_parameter("weight").register_hook(lambda gradient: gradient * 0)
    return module


def shadowed() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    vars(module[0])["weight"] = torch.ones(2, 3)
    return module


def tied_to_one_that_is_not_called() -> nn.Module:
    module = TwoNames()
    module.last = nn.Linear(8, 8)
    module.aside = nn.Linear(8, 8)
    module._modules = {"aside": module.aside, **module._modules}
    module.last.weight = module.aside.weight
    return module


class Own(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.sin()


class OwnLinear(nn.Linear):
    pass


def other_projection() -> nn.Module:
    attention = CausalSelfAttention(4, 2)
    attention.key = nn.Identity()  # type: ignore[assignment]
    return attention


def other_words() -> nn.Module:
    tied = Tied(5, 4, nn.Sequential())
    tied.embedding = nn.Linear(5, 4)  # type: ignore[assignment]
    return tied


def frozen() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    module[0].weight.requires_grad_(False)
    return module


def hooked() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module[0].register_forward_hook(lambda *_: None)
    return module


def hooked_whole() -> nn.Module:
    module = nn.Sequential(nn.Linear(3, 2))
    module.register_forward_pre_hook(lambda *_: None)
    return module


def shared() -> nn.Module:
    layer = nn.Linear(3, 3)
    return nn.Sequential(layer, nn.Tanh(), layer)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (Own(), "Own.forward asks the batch for 'sin', which stands for none of the layers"),
        (nn.Sequential(Own()), "Own.forward ('0') asks the batch for 'sin'"),
        (nn.Sequential(OwnLinear(3, 2)), "OwnLinear.forward ('0') calls linear, which stands for none of the layers"),
        (nn.Sequential(nn.Conv2d(4, 4, 3, groups=2)), "has groups"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding="same")), "pads by other means"),
        (nn.Sequential(nn.Conv2d(1, 4, 3, padding=1, padding_mode="reflect")), "pads by other means"),
        (nn.Sequential(nn.Flatten(0)), "does not flatten all axes but the batch"),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), "buffers"),
        (nn.Embedding(5, 3, max_norm=1.0), "max_norm"),
        (nn.Embedding(5, 3, sparse=True), "sparse"),
        (nn.Sequential(nn.LSTM(3, 2)), "'0' (LSTM) has no hand-written layer"),
        (
            nn.Sequential(Residual(nn.Sequential(nn.Linear(3, 3), Own()))),
            "Own.forward ('0.body.1') asks the batch for 'sin'",
        ),
        (other_words(), "has another layer than nn.Embedding for its words"),
        (other_projection(), "has other layers than nn.Linear for query, key, value, out"),
        (frozen(), "frozen"),
        (hooked(), "hooks"),
        (hooked_whole(), "the Sequential has hooks"),
        (shared(), "shares a parameter"),
        (tied_to_one_that_is_not_called(), "shares a parameter"),
        (replaced(), "layer '0' (Linear) is called in a way of its own"),
        (nn.Sequential(Calls(3, 2)), "layer '0' (Calls) is called in a way of its own"),
        (masked(), "layer '0' (Linear) has hooks"),
        (shadowed(), "layer '0' (Linear) has attributes in the place of its parameters"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), "the ParametrizedLinear has hooks"),
    ],
)
def test_others_are_refused_with_the_reason(module: nn.Module, reason: str) -> None:
    said = recognise(module)
    assert isinstance(said, str)
    assert reason in said
