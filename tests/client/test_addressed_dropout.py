"""Dropout's masks are read from SplitMix64, addressed by client, local step and layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from raysim import seeds
from raysim.client import dropout
from raysim.client.dropout import Masks


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_an_element_is_kept_where_its_16_bits_of_the_stream_are_at_least_p(p: float) -> None:
    key, count = 0x0123456789ABCDEF, 1001
    words = seeds.stream(key, 251).view("<u2")[:count].astype(np.int64)
    # torch reads the 16 bits with a sign; adding 2^15 modulo 2^16 is the same threshold one half turn on.
    kept = (words + (1 << 15)) % (1 << 16) >= round(p * (1 << 16))
    mask = Masks(p, torch.empty(0, dtype=torch.float64)).draw(torch.tensor(key), count)
    np.testing.assert_array_equal(mask.numpy() > 0, kept)
    assert mask.max() == 1 / (1 - p)


def test_a_stack_draws_what_each_client_draws_alone() -> None:
    masks = Masks(0.5, torch.empty(0))
    keys = torch.tensor([3, -5, 1 << 40])
    together = masks.draw(keys, 10)
    for key, row in zip(keys, together, strict=True):
        assert torch.equal(masks.draw(key, 10), row)


@pytest.mark.parametrize("p", [0.25, 1.0])
@pytest.mark.parametrize("at_once", [4, 20])
@pytest.mark.parametrize("counts", [[40] * 9, [40] * 8 + [12], [12] + [40] * 8, [12, 40, 8, 40, 40, 44, 44, 4, 44]])
def test_what_is_drawn_ahead_is_what_each_step_draws(
    counts: list[int], at_once: int, p: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the batches: short ones first or last; where the steps ahead are more than are drawn at once, or fewer;
    and where a step is made again."""
    draws = list[tuple[int, ...]]()
    draw = Masks.draw

    def counted(self: Masks, keys: torch.Tensor, count: int, rows: int = 1) -> torch.Tensor:
        draws.append(tuple(keys.shape))
        return draw(self, keys, count, rows)

    monkeypatch.setattr(dropout, "AHEAD", at_once * 40)
    masks, alone = Masks(p, torch.empty(0)), Masks(p, torch.empty(0))
    monkeypatch.setattr(Masks, "draw", counted)
    for client in (5, 6):
        of_steps = dropout.keys([client], 9, 2, torch.device("cpu"))[1, :, 0]
        for step, count in [*enumerate(counts), (7, counts[7]), (2, counts[2])]:
            ahead = masks.draw_ahead(dropout.StepKey(of_steps, step), count, rows=count // 4)
            assert torch.equal(ahead, draw(alone, of_steps[step], count, count // 4))
    assert len(draws) < 2 * len(counts)
    assert max(draws)[0] > 1


def test_a_layer_draws_alike_with_keys_ahead_and_without() -> None:
    """Also a second call, and where a forward changes the probability in every step."""
    x = torch.ones(6, 10)
    of_steps = dropout.keys([5], 7, 1, torch.device("cpu"))[0, :, 0]
    alone, ahead = (dropout.AddressedDropout(0.5, torch.empty(0)) for _ in range(2))
    for step, p in enumerate([0.5, 0.5, 0.25, 0.5, 0.0, 0.25, 0.25]):
        for layer, key in ((alone, None), (ahead, dropout.StepKey(of_steps, step))):
            layer.start(of_steps[step], key)
            layer.p = p
        for _ in range(2):
            assert torch.equal(alone(x), ahead(x))


@pytest.mark.parametrize(("p", "factor"), [(0.0, 1.0), (1.0, 0.0)])
def test_the_ends_of_the_range_are_exact(p: float, factor: float) -> None:
    assert torch.equal(Masks(p, torch.empty(0)).draw(torch.tensor(1), 5000), torch.full((5000,), factor))


@pytest.mark.parametrize("p", [0.1, 0.25, 0.5])
def test_the_share_of_zeros_is_p(p: float) -> None:
    mask = Masks(p, torch.empty(0)).draw(torch.tensor(1), 1_000_000)
    # Six standard deviations of a share of a million draws.
    assert float((mask == 0).double().mean()) == pytest.approx(p, abs=6 * np.sqrt(p * (1 - p) / 1e6))


def test_keys_differ_by_client_step_and_layer() -> None:
    keys = dropout.keys([1, 2], steps=3, layers=2, device=torch.device("cpu"))
    assert keys.shape == (2, 3, 2)
    assert len(set(keys.flatten().tolist())) == 12
    assert torch.equal(keys[:, :, :1], dropout.keys([1], 3, 2, torch.device("cpu")))


def test_address_replaces_every_dropout_of_a_module_and_nothing_else() -> None:
    module = nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)), nn.Dropout1d(0.5))
    found = dropout.address(module, torch.empty(0))
    inner = module[1]
    assert isinstance(inner, nn.Sequential)
    assert found == [module[0], inner[1]]
    assert isinstance(module[2], nn.Dropout1d)


def test_a_module_can_still_read_the_probability_of_its_layer() -> None:
    module = nn.Sequential(nn.Dropout(0.2))
    dropout.address(module, torch.empty(0))
    assert module[0].p == 0.2


def test_a_layer_called_twice_draws_two_masks() -> None:
    module = nn.Sequential(nn.Dropout(0.5))
    (layer,) = dropout.address(module, torch.empty(0))
    layer.start(torch.tensor(7))
    first, second = layer(torch.ones(100)), layer(torch.ones(100))
    layer.start(torch.tensor(7))
    assert torch.equal(layer(torch.ones(100)), first)
    assert not torch.equal(first, second)
    assert torch.equal(layer.eval()(torch.ones(100)), torch.ones(100))


def test_no_mask_is_drawn_where_nothing_is_dropped() -> None:
    module = nn.Sequential(nn.Dropout(0.0), nn.Dropout(0.5))
    none, half = dropout.address(module, torch.empty(0))
    x = torch.randn(3, 4)
    for one in (none, half):
        one.start(torch.tensor(7))
    assert none(x) is x
    assert not none.scratch.numel()
    assert half(x) is not x


def test_a_layer_stays_in_the_mode_in_which_its_module_left_it() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Sequential(nn.Dropout(0.5))).train()
    module[1].eval()
    first, second = dropout.address(module, torch.empty(0))
    assert (first.training, second.training) == (True, False)
    module.train()
    assert second.training


def test_a_forward_may_ask_for_the_class_of_its_layer() -> None:
    (layer,) = dropout.address(nn.Sequential(nn.Dropout(0.5)), torch.empty(0))
    assert isinstance(layer, nn.Dropout)


def test_a_forward_may_set_the_probability_until_the_next_client_begins() -> None:
    (layer,) = dropout.address(nn.Sequential(nn.Dropout(0.5)), torch.empty(0))
    ones = torch.ones(1000)

    def masked(p: float) -> torch.Tensor:
        layer.start(torch.tensor(7))
        layer.p = p
        made: torch.Tensor = layer(ones)
        return made

    assert not masked(1.0).any()
    assert torch.equal(masked(0.0), ones)
    assert torch.equal(masked(0.25), Masks(0.25, torch.empty(0)).draw(torch.tensor(7), 1000))
    with pytest.raises(ValueError, match=r"must be in \[0, 1\], but is 1.5"):
        masked(1.5)
    layer.put_back()
    assert layer.p == 0.5
