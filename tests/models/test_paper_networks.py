"""The papers' larger networks: parameter counts from the architecture's own formula, shapes, and what padding is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter
from torch import nn

from raysim.errors import ModelError
from raysim.models.model import Model, bind, create
from raysim.models.section import ModelSection, factory

COLOUR = (3, 24, 24)


def made(keys: dict[str, Any], x_shape: tuple[int, ...], outputs: int) -> tuple[Model, nn.Module]:
    section = TypeAdapter(ModelSection).validate_python(keys)
    model, weights = create(factory(section, x_shape, outputs), 0, torch.float32)
    return model, bind(model, weights, torch.device("cpu")).eval()


def conv(a: int, b: int, size: int) -> int:
    return a * b * size**2


def tutorial(outputs: int) -> int:
    """24 x 24 colour images, halved twice: 6 x 6."""
    hidden = (64 * 6 * 6 + 1) * 384 + (384 + 1) * 192 + (192 + 1) * outputs
    return conv(3, 64, 5) + 64 + conv(64, 64, 5) + 64 + hidden


def resnet18(outputs: int) -> int:
    """A norm has two numbers a channel; a block that changes the channels has a third convolution and norm."""
    total, a = conv(3, 64, 3) + 2 * 64, 64
    for b in (64, 128, 256, 512):
        total += conv(a, b, 3) + 3 * conv(b, b, 3) + 4 * 2 * b + (conv(a, b, 1) + 2 * b if a != b else 0)
        a = b
    return total + (512 + 1) * outputs


def resnet56(outputs: int) -> int:
    """Nine blocks a stage, two convolutions and two norms each; shortcuts have no parameters."""
    total, a = conv(3, 16, 3) + 2 * 16, 16
    for b in (16, 32, 64):
        total += conv(a, b, 3) + 17 * conv(b, b, 3) + 18 * 2 * b
        a = b
    return total + (64 + 1) * outputs


def mobilenet_v2(outputs: int) -> int:
    """Table 2 of the paper: t, c, n of each stage; a convolution on each channel alone has 9 numbers a channel."""
    total, a = conv(3, 32, 3) + 2 * 32, 32
    for t, c, n in ((1, 16, 1), (6, 24, 2), (6, 32, 3), (6, 64, 4), (6, 96, 3), (6, 160, 3), (6, 320, 1)):
        for _ in range(n):
            wide = t * a
            total += (a * wide + 2 * wide if t > 1 else 0) + 9 * wide + 2 * wide + wide * c + 2 * c
            a = c
    return total + 320 * 1280 + 2 * 1280 + (1280 + 1) * outputs


def bilstm(vocabulary: int, e: int, h: int, outputs: int) -> int:
    """Each direction: four gates, two matrices and torch's two biases."""
    return vocabulary * e + 2 * 4 * h * (e + h + 2) + (2 * h + 1) * outputs


@pytest.mark.parametrize(
    ("keys", "x_shape", "outputs", "formula", "count"),
    [
        ({"name": "cnn_tutorial"}, COLOUR, 10, tutorial(10), 1_068_298),  # McMahan et al. 2017: about 10^6
        ({"name": "resnet18_gn"}, COLOUR, 100, resnet18(100), 11_220_132),
        ({"name": "resnet56"}, (3, 32, 32), 10, resnet56(10), 853_018),  # He et al. 2016: 0.85 M
        ({"name": "mobilenet_v2_gn"}, (3, 32, 32), 1000, mobilenet_v2(1000), 3_504_872),  # Sandler et al. 2018: 3.4 M
        ({"name": "bilstm", "vocabulary": 30_002}, (16,), 4, bilstm(30_002, 300, 300, 4), 10_447_804),
    ],
)
def test_the_number_of_parameters(
    keys: dict[str, Any], x_shape: tuple[int, ...], outputs: int, formula: int, count: int
) -> None:
    model, module = made(keys, x_shape, outputs)
    assert model.params.num_values == formula == count
    x = torch.zeros(2, *x_shape, dtype=torch.int64 if len(x_shape) == 1 else torch.float32)
    assert module(x).shape == (2, outputs)


def test_fifty_six_layers() -> None:
    _, module = made({"name": "resnet56"}, (3, 32, 32), 10)
    assert sum(isinstance(layer, nn.Conv2d | nn.Linear) for layer in module.modules()) == 56


@pytest.mark.parametrize("name", ["resnet18_gn", "mobilenet_v2_gn"])
def test_group_norm_leaves_no_buffers_to_average(name: str) -> None:
    model, module = made({"name": name}, COLOUR, 10)
    assert (model.buffers.num_values, model.counters.num_values) == (0, 0)
    # So an example's outputs do not depend on its batch, in training neither.
    images = torch.randn(3, *COLOUR, generator=torch.Generator().manual_seed(0))
    module.eval()
    torch.testing.assert_close(module(images)[:1], module(images[:1]), rtol=1e-4, atol=1e-4)


def test_a_text_ends_where_its_padding_begins() -> None:
    _, module = made({"name": "bilstm", "vocabulary": 9, "embedding": 4, "hidden": 3}, (5,), 2)
    texts = torch.tensor([[3, 4, 0, 0, 0], [0, 0, 0, 0, 0]])
    assert module(texts).isfinite().all()
    lstm, embedding, fc = (module.get_submodule(name) for name in ("lstm", "embedding", "fc"))
    longest = lstm(embedding(texts))[0][0, :2].amax(0)
    torch.testing.assert_close(module(texts)[0], fc(longest))


def test_the_last_output_of_a_text_is_that_before_its_padding() -> None:
    keys = {"name": "bilstm", "vocabulary": 9, "embedding": 4, "hidden": 3, "pooling": "last", "dropout": 0.2}
    _, module = made(keys, (5,), 2)
    module.eval()
    texts = torch.tensor([[3, 4, 0, 0, 0], [5, 6, 7, 8, 1], [0, 0, 0, 0, 0]])
    lstm, embedding, fc = (module.get_submodule(name) for name in ("lstm", "embedding", "fc"))
    places = lstm(embedding(texts))[0]
    torch.testing.assert_close(module(texts), fc(torch.stack([places[0, 1], places[1, 4], places[2, 0]])))
    # Dropout is on the outputs of a text, so about a fifth of these are zero.
    module.train()
    dropped = torch.cat([module.get_submodule("drop")(torch.ones(1, 6)) for _ in range(500)])
    assert 0.15 < (dropped == 0).float().mean() < 0.25
    assert module.get_submodule("drop")(torch.ones(1)) in (0, 1 / 0.8)


def test_response_normalisation_is_tensorflows() -> None:
    """x / (1 + .001 / 9 * sum of squares over the 4 channels on either side) ^ .75."""
    _, module = made({"name": "cnn_tutorial"}, COLOUR, 10)
    x = torch.randn(1, 64, 2, 2, generator=torch.Generator().manual_seed(0)) * 10
    squares = torch.stack([x[:, max(0, c - 4) : c + 5].square().sum(1) for c in range(64)], 1)
    torch.testing.assert_close(module.get_submodule("norm1")(x), x / (1 + 0.001 / 9 * squares) ** 0.75)


@pytest.mark.parametrize(
    ("keys", "x_shape", "problem"),
    [
        ({"name": "resnet18_gn"}, (5,), "takes images"),
        ({"name": "resnet18_gn", "groups": 3}, COLOUR, "must divide 64"),
        ({"name": "resnet56", "norm": "group", "groups": 3}, COLOUR, "must divide 16"),
        ({"name": "resnet56", "groups": 4}, COLOUR, "belongs to model.norm = 'group'"),
        ({"name": "mobilenet_v2_gn", "groups": 5}, COLOUR, "must divide 8"),
        ({"name": "cnn_tutorial"}, (3, 2, 2), "height >= 4"),
        ({"name": "bilstm"}, COLOUR, "takes texts"),
        ({"name": "bilstm"}, (5,), r"model.vocabulary = 'auto'.*give a number"),
        ({"name": "distilbert", "path": "nowhere"}, COLOUR, "takes texts"),
    ],
)
def test_what_does_not_fit_is_refused(keys: dict[str, Any], x_shape: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ModelError, match=problem):
        made(keys, x_shape, 2)
