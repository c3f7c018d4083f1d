"""Attention over short texts in a recorded step: made of products where these are faster, and autograd's always."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for

PLACES, HEADS = 20, 2


class Attentive(nn.Module):
    """One attention over the numbers of an example.

    width: of a head. joint: queries, keys and values are views of one tensor, in the order in which its axes are split
    most often; else each is turned by itself. mask: one of the module's own. how: what torch's function is called with.
    """

    def __init__(self, width: int = 8, *, joint: bool = True, mask: bool = False, **how: Any) -> None:
        super().__init__()
        self.joint, self.mask, self.how = joint, mask, how
        self.embed = nn.Linear(1, HEADS * width)
        self.qkv = nn.Linear(HEADS * width, 3 * HEADS * width)
        self.out = nn.Linear(HEADS * width, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.embed(x.unsqueeze(-1)))
        batch, places, width = h.shape
        if self.joint:
            q, k, v = self.qkv(h).view(batch, places, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = (one.reshape(batch, places, HEADS, -1).transpose(1, 2) for one in self.qkv(h).chunk(3, -1))
        mask = torch.zeros(places, places, dtype=q.dtype).tril() if self.mask else None
        z = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.how)
        return cast(Tensor, self.out(z.transpose(1, 2).reshape(batch, places, width).mean(1)))


def after_a_step(
    module: Callable[[], nn.Module], x: Tensor, batches: tuple[int, ...], interprets: bool = False
) -> tuple[Tensor, Any]:
    """The weights after two local steps, and the recording."""
    model, weights = create(module, 0, torch.float64)
    recording = StepRecording(batches, interprets=interprets)
    bound = BoundModule(model, weights, task_for(4, None), torch.float64, plain=True, recording=recording)
    bound.load(weights)
    y = torch.tensor([0, 1, 2, 3])
    bound.record([x], [y], [4])
    for batch in (x, x.flip(0)):
        with torch.no_grad():
            bound.differentiate(batch, y, None, -0.1)
    assert not torch.equal(bound.weights.params, weights.params)
    return bound.weights.params, bound._recorded.get(4)


@pytest.mark.parametrize(
    ("places", "module", "is_product"),
    [
        (PLACES, lambda: Attentive(is_causal=True), True),
        (PLACES, lambda: Attentive(), True),
        (PLACES, lambda: Attentive(joint=False, is_causal=True), True),
        (PLACES, lambda: Attentive(scale=0.7, is_causal=True), True),
        (8, lambda: Attentive(is_causal=True), False),
        (40, lambda: Attentive(is_causal=True), False),
        (PLACES, lambda: Attentive(48, is_causal=True), False),
        (PLACES, lambda: Attentive(mask=True), False),
    ],
    ids=["causal", "all places", "turned each", "scale", "few places", "many places", "wide heads", "a mask"],
)
def test_a_step_is_autograds_and_of_products_where_they_are_faster(
    places: int, module: Callable[[], Attentive], is_product: bool
) -> None:
    x = torch.randn(4, places, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got, recording = after_a_step(module, x, (4,))
    wanted, _ = after_a_step(module, x, ())
    assert recording is not None
    assert (torch.baddbmm in inspect.unwrap(recording).__globals__.values()) == is_product
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("places", "width", "is_product"),
    [(1, 8, True), (48, 8, True), (49, 8, False), (PLACES, 64, True), (PLACES, 65, False)],
)
@pytest.mark.parametrize("is_causal", [True, False])
def test_an_interpreted_step_is_autograds_and_of_products_where_these_are_faster(
    places: int, width: int, is_product: bool, is_causal: bool
) -> None:
    def module() -> nn.Module:
        return Attentive(width, is_causal=is_causal)

    x = torch.randn(4, places, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    got, recording = after_a_step(module, x, (4,), interprets=True)
    wanted, _ = after_a_step(module, x, ())
    assert isinstance(recording, InterpretedStep)
    assert recording.takes_several == is_product, "torch's operators are called between instructions"
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-13)
