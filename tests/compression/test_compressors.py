"""Compressors: errors in closed form, no bias where none is promised, bits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from raysim.client.compression import ClientCompression
from raysim.compression import choice
from raysim.compression.rotation import rotated, rotated_length
from raysim.config.section import Section
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.storage import compiled_c
from tests.support.kernel import needs_kernel

V = torch.randn(300, generator=torch.Generator().manual_seed(1))


class Table(Section):
    compression: ClientCompression


@cache
def section(**keys: Any) -> Any:
    return Table.checked({"compression": keys}).compression


def compressed(v: Tensor, key: int = 0, **keys: Any) -> Tensor:
    keeps_rest = section(**keys).error_feedback
    return choice.make(section(**keys), keeps_rest).apply(v, key, torch.full_like(v, torch.nan))


def rounding_error(levels: int, norm: float) -> Callable[[Tensor], float]:
    """(n/s)^2 sum f (1 - f)"""

    def error(v: Tensor) -> float:
        n = float(v.double().norm(p=norm))
        u = v.double().abs() * levels / n
        f = u - u.floor()
        return float((n / levels) ** 2 * (f * (1 - f)).sum())

    return error


UNBIASED: dict[str, tuple[dict[str, Any], Callable[[Tensor], float]]] = {
    "quantise": ({"name": "quantise", "levels": 4}, rounding_error(4, 2)),
    "ternary": ({"name": "quantise", "levels": 1, "norm": "max"}, rounding_error(1, math.inf)),
    "random_k": ({"name": "random_k", "fraction": 0.1}, lambda v: float((300 / 30 - 1) * v.double().square().sum())),
}


def test_numbers_too_small_for_a_quotient_become_zeros() -> None:
    assert not compressed(torch.full((3,), 1e-40), name="quantise", levels=255, norm="max").any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("keys", [{"levels": 127, "norm": "max"}, {"levels": 3}, {"levels": 5, "rotate": True}])
def test_numbers_are_rounded_to_the_same_bits_without_a_compiler(
    dtype: torch.dtype, keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    needs_kernel()
    v = torch.randn(2 * 1024 + 3, generator=torch.Generator().manual_seed(2), dtype=dtype)
    v[::5] = 0
    compiled = [compressed(v, key, name="quantise", **keys) for key in (0, 2**64 - 1)]
    monkeypatch.setattr(compiled_c, "obstacle", lambda source, dtype: "it is not asked for")
    plain = [compressed(v, key, name="quantise", **keys) for key in (0, 2**64 - 1)]
    assert all(torch.equal(one, other) for one, other in zip(compiled, plain, strict=True))
    assert not torch.equal(*plain)


@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_compressors_have_the_error_of_their_equations(name: str) -> None:
    keys, error = UNBIASED[name]
    draws = torch.stack([compressed(V, key, **keys) for key in range(1_500)]).double()
    measured = float((draws - V).square().sum(1).mean())
    assert measured == pytest.approx(error(V), rel=0.02)
    # Of independent draws without bias, the mean's squared error is one draw's over their number.
    of_mean = float((draws.mean(0) - V).square().sum()) * len(draws)
    assert of_mean == pytest.approx(measured, rel=0.3)


def test_a_small_number_is_sent_as_often_as_its_size_says() -> None:
    # Smaller than a step of the 16 bits that each number draws by itself.
    v = torch.full((200_000,), 1e-5)
    v[0] = 1.0
    sent = sum(int((compressed(v, key, name="quantise", levels=1, norm="max")[1:] > 0).sum()) for key in range(60))
    assert sent / (60 * 200_000) == pytest.approx(1e-5, rel=0.4)


def test_rounding_does_not_follow_the_signs_of_the_rotation() -> None:
    v = 1.3 * torch.nn.functional.one_hot(torch.tensor(15), 16)
    keys = {"name": "quantise", "levels": 1, "rotate": True}
    draws = torch.stack([compressed(v, key, **keys) for key in range(3_000)]).double()
    of_one, of_mean = ((some - v).square().sum(-1) for some in (draws, draws.mean(0)))
    # One draw's over their number, if there is no bias.
    assert of_mean * len(draws) < 2 * of_one.mean()


def test_a_rotated_vector_is_rounded_and_rotated_back() -> None:
    keys = {"name": "quantise", "levels": 1, "norm": "max", "rotate": True}
    draws = torch.stack([compressed(V, key, **keys) for key in range(400)]).double()
    # The error is that of the rotated vector, of which the share d/D comes back.
    errors = [rounding_error(1, math.inf)(rotated(V, key)) * 300 / 512 for key in range(100)]
    measured = float((draws - V).square().sum(1).mean())
    assert measured == pytest.approx(sum(errors) / len(errors), rel=0.02)
    assert float((draws.mean(0) - V).square().sum()) * len(draws) == pytest.approx(measured, rel=0.3)


def test_signs_have_the_error_of_their_equation() -> None:
    sent = compressed(V, name="sign")
    assert sent.unique().tolist() == pytest.approx([-float(V.abs().mean()), float(V.abs().mean())])
    error = float(V.square().sum() - V.abs().sum() ** 2 / 300)
    assert float((sent - V).square().sum()) == pytest.approx(error, rel=1e-5)
    assert compressed(torch.tensor([0.0, 2.0, -4.0]), name="sign").tolist() == [2.0, 2.0, -2.0]


def test_the_largest_numbers_are_sent() -> None:
    sent, kept = compressed(V, name="top_k", fraction=0.1), 30
    order = V.abs().argsort(descending=True)
    assert torch.equal(sent[order[:kept]], V[order[:kept]])
    assert not sent[order[kept:]].any()
    assert float((sent - V).square().sum()) <= (1 - kept / 300) * float(V.square().sum())


def test_of_equal_numbers_the_first_are_sent() -> None:
    v = torch.tensor([1.0, -2.0, 2.0, 3.0, 2.0, -2.0])
    assert compressed(v, name="top_k", fraction=0.5).tolist() == [0.0, -2.0, 2.0, 3.0, 0.0, 0.0]
    assert compressed(torch.ones(5), name="top_k", fraction=1e-6).tolist() == [1.0, 0.0, 0.0, 0.0, 0.0]


def test_random_places_without_a_scale_send_the_numbers_themselves() -> None:
    sent = compressed(V, name="random_k", fraction=0.25, scale="least")
    assert int((sent != 0).sum()) == 75
    assert torch.equal(sent[sent != 0], V[sent != 0])


BIASED = {1: 0.36338, 2: 0.11748, 3: 0.03455, 4: 0.00950}
UNBIASED_EDEN = {1: 0.5708, 2: 0.1331, 3: 0.0358, 4: 0.0096}


@pytest.mark.parametrize("bits", range(1, 5))
def test_eden_has_the_published_errors(bits: int) -> None:
    v = torch.randn(2**15, generator=torch.Generator().manual_seed(bits))
    square = float(v.square().sum())
    for scale, wanted in (("least", BIASED[bits]), ("unbiased", UNBIASED_EDEN[bits])):
        errors = [float((compressed(v, k, name="eden", bits=bits, scale=scale) - v).square().sum()) for k in range(4)]
        assert sum(errors) / len(errors) / square == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("bits", [1, 3])
def test_eden_has_no_bias(bits: int) -> None:
    v = torch.randn(1_000, generator=torch.Generator().manual_seed(2))
    draws = torch.stack([compressed(v, key, name="eden", bits=bits) for key in range(100)]).double()
    measured = float((draws - v).square().sum(1).mean())
    assert measured == pytest.approx(UNBIASED_EDEN[bits] * 1_000 / 1_024 * float(v.square().sum()), rel=0.02)
    assert float((draws.mean(0) - v).square().sum()) * len(draws) == pytest.approx(measured, rel=0.3)


def test_error_feedback_sends_the_nearest_multiple_unless_the_key_says_otherwise() -> None:
    sent, key = {}, 5
    for feedback in (False, True):
        for scale in (None, "unbiased", "least"):
            keys = {"name": "eden", "bits": 1, "error_feedback": feedback, "scale": scale}
            sent[feedback, scale] = compressed(V, key, **keys)
    assert torch.equal(sent[False, None], sent[False, "unbiased"])
    assert torch.equal(sent[True, None], sent[True, "least"])
    assert not torch.equal(sent[True, None], sent[False, None])


ALL: dict[str, dict[str, Any]] = {
    "quantise": {"name": "quantise", "levels": 3},
    "max": {"name": "quantise", "levels": 3, "norm": "max"},
    "rotate": {"name": "quantise", "levels": 3, "rotate": True},
    "sign": {"name": "sign"},
    "top_k": {"name": "top_k", "fraction": 0.2},
    "random_k": {"name": "random_k", "fraction": 0.2},
    "eden": {"name": "eden", "bits": 3},
}

BITS: dict[str, Callable[[int], int]] = {
    "quantise": lambda d: 32 + 3 * d,
    "max": lambda d: 32 + 3 * d,
    "rotate": lambda d: 32 + 3 * rotated_length(d),
    "sign": lambda d: 32 + d,
    "top_k": lambda d: max(1, round(d / 5)) * (32 + math.ceil(math.log2(d))),
    "random_k": lambda d: 32 + 32 * max(1, round(d / 5)),
    "eden": lambda d: 32 + 3 * rotated_length(d),
}
LAYOUT = Layout.of([("weight", torch.zeros(11, 6)), ("bias", torch.zeros(11)), ("one", torch.zeros(()))])


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scope", ["model", "group"])
def test_the_bits_are_those_of_all_numbers_or_of_each_tensor(name: str, scope: str) -> None:
    lengths = [78] if scope == "model" else [66, 11, 1]
    bits = sum(BITS[name](length) for length in lengths)
    assert choice.over(section(**ALL[name], scope=scope), LAYOUT).num_bytes == math.ceil(bits / 8)


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 127, 128])
def test_a_level_has_as_many_bits_as_there_are_levels_and_none(levels: int) -> None:
    bits = choice.make(section(name="quantise", levels=levels)).bits(1_000)
    assert bits == 32 + 1_000 * (1 + math.ceil(math.log2(levels + 1)))


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("scope", ["model", "group"])
@pytest.mark.parametrize("names", [("weight", "bias", "one"), ("bias", "one")], ids=["all", "some"])
def test_gaps_and_zeros_stay_zeros(name: str, scope: str, names: tuple[str, ...]) -> None:
    layout = LAYOUT.only(names)
    compression = choice.over(section(**ALL[name], scope=scope), layout)
    flat = LAYOUT.map(lambda _, tensor: torch.rand_like(tensor) + 1, torch.zeros(LAYOUT.size))
    sent = compression.apply(flat, 3, torch.full_like(flat, torch.nan))
    assert layout.has_zero_gaps(sent)
    assert sent.any()
    assert not compression.apply(torch.zeros_like(flat), 3, flat).any()


@pytest.mark.parametrize("name", ALL)
def test_tensors_are_compressed_apart(name: str) -> None:
    compression = choice.over(section(**ALL[name], scope="group"), LAYOUT)
    flat = LAYOUT.map(lambda _, tensor: torch.rand_like(tensor) + 1, torch.zeros(LAYOUT.size))
    longer = flat.clone()
    LAYOUT.views(longer)["weight"].mul_(8)
    first, second = (LAYOUT.views(compression.apply(v, 3, torch.empty_like(v))) for v in (flat, longer))
    assert torch.equal(first["bias"], second["bias"])
    torch.testing.assert_close(8 * first["weight"], second["weight"])


@pytest.mark.parametrize("name", ["quantise", "max", "rotate", "random_k", "eden"])
def test_draws_follow_from_the_key(name: str) -> None:
    first, again, other = (compressed(V, key, **ALL[name]) for key in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"name": "eden", "bits": 0}, r"compression.bits .* 0"),
        ({"name": "eden", "bits": 9}, r"compression.bits .* 9"),
        ({"name": "quantise", "levels": 0}, r"compression.levels .* 0"),
        ({"name": "top_k", "fraction": 1.5}, r"compression.fraction .* 1.5"),
        ({"name": "random_k", "fraction": 0.0}, r"compression.fraction .* 0"),
        ({"name": "sign", "bits": 1}, r"compression.bits"),
        ({"name": "quantize", "levels": 1}, r"quantise"),
    ],
)
def test_what_cannot_be_sent_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        section(**keys)
