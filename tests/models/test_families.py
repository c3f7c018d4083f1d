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


@pytest.mark.parametrize(
    ("keys", "x_shape", "outputs", "count"),
    [
        ({"name": "linear"}, (60,), 10, 610),
        ({"name": "mlp", "hidden": [200, 200]}, MNIST, 10, 199_210),  # McMahan et al. 2017, 2NN
        ({"name": "cnn_mcmahan"}, MNIST, 10, 1_663_370),  # McMahan et al. 2017, CNN
        ({"name": "cnn"}, MNIST, 62, 1_206_590),  # Reddi et al. 2021, EMNIST character recognition
    ],
)
def test_the_number_of_parameters(keys: dict[str, Any], x_shape: tuple[int, ...], outputs: int, count: int) -> None:
    model, weights = made(keys, x_shape, outputs)
    assert model.params.num_values == count
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, *x_shape)).shape == (2, outputs)


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


def test_the_character_lstm_scores_every_place_of_a_text() -> None:
    model, weights = made({"name": "lstm_char"}, (80,), 90)
    assert model.params.num_values == 822_570
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, 80, dtype=torch.int64)).shape == (2, 80, 90)


def test_the_word_lstm_is_that_of_reddi_et_al() -> None:
    model, weights = made({"name": "lstm_word"}, (20,), 10_004)
    assert model.params.num_values == 4_050_748
    module = bind(model, weights, torch.device("cpu")).eval()
    assert module(torch.zeros(2, 20, dtype=torch.int64)).shape == (2, 20, 10_004)


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
