"""The built-in models: the parameter counts that their papers state, and weights addressed by the seed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import TypeAdapter, ValidationError

from raysim.errors import ModelError
from raysim.models.model import bind, create
from raysim.models.section import ModelSection, factory

MNIST = (1, 28, 28)


def made(keys: dict[str, Any], x_shape: tuple[int, ...], outputs: int, seed: int = 0) -> Any:
    section = TypeAdapter(ModelSection).validate_python(keys)
    return create(factory(section, x_shape, outputs), seed, torch.float32)


def dense(inputs: int, outputs: int) -> int:
    return (inputs + 1) * outputs


def conv(channels: int, outputs: int, size: int) -> int:
    return (channels * size**2 + 1) * outputs


def lstm(features: int, h: int, biases: int, peepholes: bool = False) -> int:
    """Four gates, and from the cell to three of them a weight for each unit."""
    return 4 * h * (features + h + biases) + 3 * h * peepholes


CNN = conv(1, 32, 3) + conv(32, 64, 3) + dense(64 * 12 * 12, 128) + dense(128, 62)
CNN_MCMAHAN = conv(1, 32, 5) + conv(32, 64, 5) + dense(64 * 7 * 7, 512) + dense(512, 10)


@pytest.mark.parametrize(
    ("keys", "x_shape", "outputs", "formula", "count"),
    [
        ({"name": "linear"}, (60,), 10, dense(60, 10), 610),
        # McMahan et al. 2017, 2NN and CNN
        ({"name": "mlp", "hidden": [200, 200]}, MNIST, 10, dense(784, 200) + dense(200, 200) + dense(200, 10), 199_210),
        ({"name": "cnn_mcmahan"}, MNIST, 10, CNN_MCMAHAN, 1_663_370),
        ({"name": "cnn"}, MNIST, 62, CNN, 1_206_590),  # Reddi et al. 2021, EMNIST character recognition
    ],
)
def test_the_number_of_parameters(
    keys: dict[str, Any], x_shape: tuple[int, ...], outputs: int, formula: int, count: int
) -> None:
    model, weights = made(keys, x_shape, outputs)
    assert model.params.num_values == formula == count
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, *x_shape)).shape == (2, outputs)


def char_lstm(v: int, biases: int, peepholes: bool = False) -> int:
    return v * 8 + lstm(8, 256, biases, peepholes) + lstm(256, 256, biases, peepholes) + dense(256, v)


def word_lstm(v: int, e: int, h: int, projection: bool = True, peepholes: bool = False) -> int:
    ends = dense(h, e) + dense(e, v) if projection else dense(h, v)
    return v * e + lstm(e, h, 1, peepholes) + ends


WORDS_2017 = {"name": "lstm_word", "embedding": 192, "hidden": 256, "projection": False}


@pytest.mark.parametrize(
    ("keys", "words", "ours", "count", "papers", "stated"),
    [
        # Reddi et al. 2021: Keras has one bias a gate, torch two. McMahan et al. 2017 have peepholes as well.
        ({"name": "lstm_char"}, 90, char_lstm(90, 2), 822_570, char_lstm(90, 1), 820_522),
        ({"name": "lstm_char", "initial": "keras"}, 90, char_lstm(90, 1), 820_522, char_lstm(90, 1), 820_522),
        ({"name": "lstm_char"}, 258, char_lstm(258, 2), 867_090, char_lstm(258, 1, peepholes=True), 866_578),
        ({"name": "lstm_word"}, 10_004, word_lstm(10_004, 96, 670), 4_050_748, word_lstm(10_004, 96, 670), 4_050_748),
        (
            WORDS_2017,
            10_000,
            word_lstm(10_000, 192, 256, projection=False),
            4_949_776,
            word_lstm(10_000, 192, 256, projection=False, peepholes=True),
            4_950_544,
        ),
    ],
)
def test_a_network_of_text_is_its_papers_but_for_biases_and_peepholes(
    keys: dict[str, Any], words: int, ours: int, count: int, papers: int, stated: int
) -> None:
    model, weights = made(keys, (20,), words)
    assert model.params.num_values == ours == count
    assert papers == stated
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, 20, dtype=torch.int64)).shape == (2, 20, words)


def test_several_layers_of_words_without_projection() -> None:
    model, _ = made({"name": "lstm_word", "embedding": 3, "hidden": 5, "layers": 2, "projection": False}, (6,), 4)
    assert model.params.num_values == 4 * 3 + lstm(3, 5, 1) + lstm(5, 5, 1) + dense(5, 4)


def test_a_character_model_may_start_as_keras_does() -> None:
    """Embedding on +-0.05, input weights of variance 2 / features, orthogonal states, forget bias 1, Glorot's last."""
    model, weights = made({"name": "lstm_char", "initial": "keras"}, (20,), 90)
    named = weights.to_named(model)
    assert 0.049 < named["embedding.weight"].abs().max() <= 0.05
    for layer, features in enumerate((8, 256)):
        inputs, states, bias = (named[f"recurrent.{name}_l{layer}"] for name in ("weight_ih", "weight_hh", "bias_ih"))
        assert float(inputs.var()) == pytest.approx(2 / features, rel=0.05)
        torch.testing.assert_close(states.T @ states, torch.eye(256), atol=1e-4, rtol=0)
        assert bias.tolist() == [0.0] * 256 + [1.0] * 256 + [0.0] * 512
    assert float(named["fc.weight"].var()) == pytest.approx(2 / (256 + 90), rel=0.05)
    assert not named["fc.bias"].any()


def test_initial_weights_are_addressed_by_the_seed_alone() -> None:
    torch.manual_seed(1)
    _, first = made({"name": "linear"}, (5,), 3, seed=4)
    torch.manual_seed(2)
    _, again = made({"name": "linear"}, (5,), 3, seed=4)
    _, other = made({"name": "linear"}, (5,), 3, seed=5)
    assert torch.equal(first.params, again.params)
    assert not torch.equal(first.params, other.params)


def test_writing_the_vector_is_loading_the_module() -> None:
    model, weights = made({"name": "linear"}, (5,), 3)
    module = bind(model, weights, torch.device("cpu"))
    weights.params.zero_()
    assert module(torch.ones(1, 5)).tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize(("d", "m", "h", "layers", "words"), [(96, 96, 1536, 3, 10_004), (6, 8, 5, 2, 11)])
def test_the_word_transformers_parameters_are_those_of_its_architecture(
    d: int, m: int, h: int, layers: int, words: int
) -> None:
    keys = {"name": "transformer_word", "embedding": d, "width": m, "hidden": h, "layers": layers, "heads": 2}
    model, weights = made(keys, (20,), words)
    attention, network, norms = 4 * (m * m + m), (m * h + h) + (h * m + m), 2 * 2 * m
    ends = (d * m + m) + (m * d + d)
    # The words' scores are products with their embeddings: one matrix for both.
    assert model.params.num_values == words * d + ends + layers * (attention + network + norms)
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, 20, dtype=torch.int64)).shape == (2, 20, words)


@pytest.mark.parametrize("name", ["lstm_char", "lstm_word", "transformer_word"])
def test_scores_of_a_place_follow_from_what_is_before_it(name: str) -> None:
    model, weights = made({"name": name}, (7,), 12)
    module = bind(model, weights, torch.device("cpu")).eval()
    text = torch.arange(7).unsqueeze(0)
    changed = text.clone()
    changed[0, 4] = 11
    before, after = module(text), module(changed)
    assert torch.equal(before[:, :4], after[:, :4])
    for place in (4, 5, 6):
        assert not torch.allclose(before[:, place], after[:, place])


@pytest.mark.parametrize("name", ["lstm_char", "lstm_word", "transformer_word"])
def test_models_of_texts_take_a_row_of_words(name: str) -> None:
    with pytest.raises(ModelError, match=rf"{name} takes texts \(time,\), but x has shape \(28, 28\)"):
        made({"name": name}, (28, 28), 12)


def test_heads_divide_the_width() -> None:
    with pytest.raises(ValidationError, match="heads must divide width, but got heads = 5 and width = 96"):
        made({"name": "transformer_word", "heads": 5}, (7,), 12)
