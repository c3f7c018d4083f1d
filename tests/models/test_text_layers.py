"""Modules that models of texts are made of, against torch's own, or in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from raysim.models.layers import CausalSelfAttention, Residual, Tied, waves
from raysim.models.lstm import Lstm


@pytest.mark.parametrize("layers", [1, 2])
def test_an_lstm_is_torchs_with_its_initial_weights(layers: int) -> None:
    torch.manual_seed(0)
    theirs = nn.LSTM(3, 5, layers, batch_first=True)
    torch.manual_seed(0)
    ours = Lstm(3, 5, layers)
    assert dict(ours.named_parameters()).keys() == dict(theirs.named_parameters()).keys()
    x = torch.randn(4, 6, 3)
    assert torch.equal(ours(x), theirs(x)[0])


@pytest.mark.parametrize("biases", [0, 1])
def test_a_bias_left_out_is_one_of_zeros(biases: int) -> None:
    fewer, both = Lstm(3, 5, 2, biases=biases), Lstm(3, 5, 2)  # type: ignore[arg-type]
    with torch.no_grad():
        for name, parameter in both.named_parameters():
            parameter.copy_(fewer.get_parameter(name) if name in dict(fewer.named_parameters()) else 0 * parameter)
    x = torch.randn(4, 6, 3)
    torch.testing.assert_close(fewer(x), both(x))


def test_attention_is_torchs_with_the_same_weights() -> None:
    ours, theirs = CausalSelfAttention(6, 3), nn.MultiheadAttention(6, 3, batch_first=True)
    with torch.no_grad():
        projections = (ours.query, ours.key, ours.value)
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in projections]))
        theirs.in_proj_bias.copy_(torch.cat([p.bias for p in projections]))
        theirs.out_proj.load_state_dict(ours.out.state_dict())
    x = torch.randn(2, 5, 6)
    later = torch.ones(5, 5, dtype=torch.bool).triu(1)
    torch.testing.assert_close(ours(x), theirs(x, x, x, attn_mask=later, need_weights=False)[0])


def test_heads_that_do_not_divide_the_width_are_refused() -> None:
    with pytest.raises(ValueError, match="heads must divide width, but got heads = 4 and width = 6"):
        CausalSelfAttention(6, 4)


def test_places_are_waves_of_growing_length() -> None:
    made = waves(4, 4, torch.zeros(0, dtype=torch.float64))
    for t in range(4):
        wanted = [math.sin(t), math.cos(t), math.sin(t / 100), math.cos(t / 100)]
        assert made[t].tolist() == pytest.approx(wanted, rel=1e-12)


def test_a_residual_adds_its_body() -> None:
    double = nn.Linear(2, 2, bias=False)
    double.load_state_dict({"weight": 2 * torch.eye(2)})
    assert Residual(nn.Sequential(double))(torch.tensor([[1.0, -3.0]])).tolist() == [[3.0, -9.0]]


def test_tied_ends_score_words_by_their_inner_products() -> None:
    tied = Tied(3, 2, nn.Sequential())
    tied.embedding.load_state_dict({"weight": torch.tensor([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])})
    assert tied(torch.tensor([[2, 1]])).tolist() == [[[1.0, 2.0, 2.0], [0.0, 4.0, 2.0]]]
