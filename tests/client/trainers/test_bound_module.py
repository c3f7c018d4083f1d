"""A bound module makes the gradients of what takes part, and holds nothing that holds it."""

from __future__ import annotations

import gc
from weakref import ref

import pytest
import torch
from torch import Tensor, nn

from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for


class OneOfTwo(nn.Module):
    """Which layer takes part depends on the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers[int(x[0, 0] > 0)](x)
        return outputs


@pytest.mark.parametrize("plain", [True, False], ids=["step", "gradient"])
def test_parameters_that_take_no_part_have_no_gradient(plain: bool) -> None:
    model, weights = create(OneOfTwo, 0, torch.float32)
    bound = BoundModule(model, weights, task_for(4, None), torch.float32, plain=plain)
    bound.load(weights)
    x, y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    before = {name: value.clone() for name, value in model.params.views(weights.params).items()}
    for place in (0, 1, 0):
        # Behind one another: a gradient must not stay from the batch before.
        x[0, 0] = 1.0 if place else -1.0
        start = {name: value.clone() for name, value in model.params.views(bound.weights.params).items()}
        bound.differentiate(x, y, None, -0.5)
        layer = nn.Linear(6, 4)
        layer.load_state_dict({name: start[f"layers.{place}.{name}"] for name in ("weight", "bias")})
        nn.functional.cross_entropy(layer(x), y).backward()
        made = model.params.views(bound.gradient)
        for name, parameter in layer.named_parameters():
            assert parameter.grad is not None
            wanted = parameter.detach() - 0.5 * parameter.grad if plain else parameter.grad
            torch.testing.assert_close(made[f"layers.{place}.{name}"], wanted)
            other = f"layers.{1 - place}.{name}"
            assert torch.equal(made[other], start[other] if plain else torch.zeros_like(start[other]))
    assert plain != all(
        torch.equal(value, before[name]) for name, value in model.params.views(bound.weights.params).items()
    )


def test_pieces_of_a_batch_add_the_gradients_of_what_takes_part_in_them() -> None:
    model, weights = create(OneOfTwo, 0, torch.float32)
    bound = BoundModule(model, weights, task_for(4, None), torch.float32, plain=False, pieces=2)
    bound.load(weights)
    x, y = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)), torch.arange(4)
    x[0, 0], x[2, 0] = -1.0, 1.0
    for _ in bound.in_pieces(x, y, None, 1.0):
        pass
    made, values = model.params.views(bound.gradient), model.params.views(weights.params)
    for place, rows in enumerate((slice(2), slice(2, 4))):
        layer = nn.Linear(6, 4)
        layer.load_state_dict({name: values[f"layers.{place}.{name}"] for name in ("weight", "bias")})
        (nn.functional.cross_entropy(layer(x[rows]), y[rows], reduction="sum") / 4).backward()
        for name, parameter in layer.named_parameters():
            torch.testing.assert_close(made[f"layers.{place}.{name}"], parameter.grad)


@pytest.mark.parametrize("recording", [StepRecording(), StepRecording((4,))], ids=["by autograd", "recorded"])
def test_a_module_that_nobody_holds_is_freed_without_a_collection(recording: StepRecording) -> None:
    model, weights = create(lambda: nn.Linear(6, 4), 0, torch.float32)
    bound = BoundModule(model, weights, task_for(4, None), torch.float32, plain=True, recording=recording)
    assert bound.record([torch.randn(4, 6)], [torch.arange(4)], [4]) == bool(recording.lengths)
    alive = ref(bound)
    gc.disable()
    try:
        del bound
        assert alive() is None
    finally:
        gc.enable()
