"""Interpreted steps of short batches, made from those of two other lengths, are autograd's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.client import dropout
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.kernel.depthwise import Depthwise
from raysim.client.trainers.kernel.kernels import Kernels
from raysim.client.trainers.kernel.winograd import Winograd
from raysim.client.trainers.recording import local_step, recorded_steps, resized, resized_steps
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import needs_kernel

TASK = task_for(4, None)
LONGEST, LENGTHS = 9, (8, 5, 4, 3, 2, 1)


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


class Own(nn.Module):
    """Layers and a forward of the test's own, from 12 numbers to 4 outputs."""

    def __init__(self, forward: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.first, self.out = nn.Linear(12, 8), nn.Linear(8, 4)
        self.register_buffer("places", torch.arange(12.0))
        self.register_buffer("others", torch.ones(12))
        for name, layer in layers.items():
            self.add_module(name, layer)
        self._own = forward

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.out(self._own(self, x)))


def plain(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.first(x + self.places)) * torch.sigmoid(self.first(x))


def dropped(self: Any, x: Tensor) -> Tensor:
    return self.drop(torch.relu(self.first(x))) + self.drop(torch.tanh(self.first(x)))


def dropped_by_three(self: Any, x: Tensor) -> Tensor:
    # A draw is of four numbers of a mask.
    h = self.first(x)
    return torch.cat([self.drop(h[:, :3]), h[:, 3:]], 1)


def recurrent(self: Any, x: Tensor) -> Tensor:
    return self.gru(x.view(len(x), 4, 3))[0][:, -1]


def attending(self: Any, x: Tensor) -> Tensor:
    rows = x.view(len(x), 4, 3) @ self.first.weight[:3]
    scores = (rows @ rows.transpose(1, 2)).masked_fill(torch.ones(4, 4, dtype=torch.bool).triu(1), -torch.inf)
    return self.first((scores.softmax(2) @ rows).flatten(1)[:, :12])


def convolved(self: Any, x: Tensor) -> Tensor:
    maps = functional.max_pool2d(torch.relu(self.conv(x.view(len(x), 1, 3, 4))), (3, 2))
    return self.first(maps.flatten(1))


def normed(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.first(x))


def paused(self: Any, x: Tensor) -> Tensor:
    # No instructions are known for sums of exponentials so far, nor for sines.
    return torch.sin(self.first(x)).logcumsumexp(1) + self.first(torch.where(x > 0, x, x / len(x)))


def among_each_other(self: Any, x: Tensor) -> Tensor:
    h = torch.tanh(self.first(x))
    return torch.softmax(h @ h.t(), 1) @ h


def in_pairs(self: Any, x: Tensor) -> Tensor:
    h = torch.tanh(self.first(x))
    return (h[:, None] - h[None]).pow(2).reshape(-1, 8).view(len(x), len(x), 8).mean(1)


def otherwise_if_short(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    return torch.relu(h) if len(x) > 3 else torch.tanh(h)


def by_length(self: Any, x: Tensor) -> Tensor:
    return self.first(x) / len(x) ** 2


def normed_by_hand(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


def not_finite_in_trials(self: Any, x: Tensor) -> Tensor:
    h = self.first(torch.log(x - 1))
    return torch.relu(h) if len(x) > 3 else torch.tanh(h)


def with_a_constant_of_its_own(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    return h + torch.atan2(h.detach(), torch.full((8,), 1 + 1e-8 * len(x), dtype=h.dtype))


def with_a_constant_of_an_instruction(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.first(x)) * torch.full((8,), 1 + 1e-8 * len(x), dtype=x.dtype)


class OtherwiseBehind(torch.autograd.Function):
    """The numbers as they are; their gradient is another one for five examples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (gradient,) = gradients
        return gradient * 2 if len(gradient) == 5 else gradient * 3


def otherwise_at_five(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    return torch.tanh(h) if len(x) == 5 else torch.relu(h)


def scaled_at_five(self: Any, x: Tensor) -> Tensor:
    return self.first(x) * (2.0 if len(x) == 5 else 1.0)


def with_another_literal_at_five(self: Any, x: Tensor) -> Tensor:
    return self.first(x) * torch.tensor(2.0 if len(x) == 5 else 1.0, dtype=x.dtype)


def with_another_buffer_at_five(self: Any, x: Tensor) -> Tensor:
    return self.first(x + (self.others if len(x) == 5 else self.places))


def otherwise_behind_at_five(self: Any, x: Tensor) -> Tensor:
    return cast(Tensor, OtherwiseBehind.apply(self.first(x)))  # type: ignore[no-untyped-call]


def hooked_at_five(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    if h.requires_grad:
        h.register_hook(lambda gradient: gradient * (2 if len(gradient) == 5 else 3))
    return cast(Tensor, h)


def hooked_only_at_five(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    if h.requires_grad and len(x) == 5:
        h.register_hook(lambda gradient: gradient * 2)
    return cast(Tensor, h)


def detached_at_five(self: Any, x: Tensor) -> Tensor:
    with torch.set_grad_enabled(torch.is_grad_enabled() and len(x) != 5):
        h = self.first(x)
    return torch.tanh(h + self.first(x))


def marked_at_five(self: Any, x: Tensor) -> Tensor:
    # The rest is 1, 0 and 3 of the longest batches, of those with an example less, and of three.
    mark = torch.full((), len(x), dtype=torch.int64) % 8 == 5
    return cast(Tensor, self.first(x) * (1 + mark.to(x.dtype)))


def with_a_flag_at_five(self: Any, x: Tensor) -> Tensor:
    is_five = torch.full((8,), len(x)) == 5
    return torch.tanh(self.first(x)) * (1 + is_five.to(x.dtype))


def with_a_count_at_five(self: Any, x: Tensor) -> Tensor:
    count = torch.ones_like(x[:, 0]).sum()
    return torch.tanh(self.first(x)) * (1 + (count == 5).to(x.dtype))


def by_a_count_between(self: Any, x: Tensor) -> Tensor:
    count = torch.full((), float(len(x)), dtype=x.dtype)
    return torch.tanh(self.first(x)) * (1 + ((count - 3) * (count - LONGEST + 1) * (count - LONGEST)).abs())


def with_a_frozen_weight_at_five(self: Any, x: Tensor) -> Tensor:
    self.first.weight.requires_grad_(len(x) != 5)
    h = torch.tanh(self.first(x))
    self.first.weight.requires_grad_(True)
    return h


def hooked_behind_at_five(self: Any, x: Tensor) -> Tensor:
    h = self.first(x)
    if h.requires_grad:
        h.grad_fn.register_prehook(lambda given: tuple(one * (2 if len(one) == 5 else 3) for one in given))
    return torch.tanh(h)


def kept_otherwise_at_five(self: Any, x: Tensor) -> Tensor:
    def unpacked(kept: Tensor) -> Tensor:
        return kept * 2 if kept.dim() == 2 and len(kept) == 5 else kept

    with torch.autograd.graph.saved_tensors_hooks(lambda one: one, unpacked):
        return torch.tanh(self.first(x))


def with_positions(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.first(x)) * (torch.arange(len(x), dtype=x.dtype)[:, None] % 3)


def with_the_row_of_its_length(self: Any, x: Tensor) -> Tensor:
    return torch.tanh(self.first(x)) * self.rows.weight[len(x)]


MODULES: dict[str, tuple[Callable[[], nn.Module], set[int]]] = {
    "plain": (lambda: Own(plain), set(LENGTHS)),
    "dropout": (lambda: Own(dropped, drop=nn.Dropout(0.5)), set(LENGTHS)),
    "dropout of threes": (lambda: Own(dropped_by_three, drop=nn.Dropout(0.5)), set(LENGTHS)),
    "GRU": (lambda: Own(recurrent, gru=nn.GRU(3, 8, batch_first=True)), set(LENGTHS)),
    "attention": (lambda: Own(attending), set(LENGTHS)),
    "convolution": (lambda: Own(convolved, conv=nn.Conv2d(1, 6, 3, padding=1)), set(LENGTHS)),
    # Without a variance of one example.
    "batch norm": (lambda: Own(normed, norm=nn.BatchNorm1d(8)), {8, 5, 4, 3, 2}),
    "normed by hand": (lambda: Own(normed_by_hand), set(LENGTHS)),
    "pauses": (lambda: Own(paused), set(LENGTHS)),
    "examples among each other": (lambda: Own(among_each_other), set(LENGTHS)),
    # Of these, sizes do not grow by the same amount with each example, or a factor follows no rule.
    "all pairs": (lambda: Own(in_pairs), {8}),
    "another course": (lambda: Own(otherwise_if_short), {8, 5, 4}),
    "a factor of its own": (lambda: Own(by_length), {8}),
    "not finite in trials": (lambda: Own(not_finite_in_trials), {8}),
    "a constant of an instruction": (lambda: Own(with_a_constant_of_an_instruction), {8}),
    "a constant of its own": (lambda: Own(with_a_constant_of_its_own), {8}),
    "another course at five": (lambda: Own(otherwise_at_five), {*LENGTHS} - {5}),
    "another factor at five": (lambda: Own(scaled_at_five), {*LENGTHS} - {5}),
    "another literal at five": (lambda: Own(with_another_literal_at_five), {*LENGTHS} - {5}),
    "another buffer at five": (lambda: Own(with_another_buffer_at_five), {*LENGTHS} - {5}),
    "another backward pass at five": (lambda: Own(otherwise_behind_at_five), {*LENGTHS} - {5}),
    "another hook at five": (lambda: Own(hooked_at_five), {*LENGTHS} - {5}),
    "a hook at five only": (lambda: Own(hooked_only_at_five), {*LENGTHS} - {5}),
    "no gradient at five": (lambda: Own(detached_at_five), {*LENGTHS} - {5}),
    "a mark at five": (lambda: Own(marked_at_five), {*LENGTHS} - {5}),
    "a flag at five": (lambda: Own(with_a_flag_at_five), {*LENGTHS} - {5}),
    "a count at five": (lambda: Own(with_a_count_at_five), {*LENGTHS} - {5}),
    "a function of a count between": (lambda: Own(by_a_count_between), {8, 3}),
    "a frozen weight at five": (lambda: Own(with_a_frozen_weight_at_five), {*LENGTHS} - {5}),
    "a hook behind at five": (lambda: Own(hooked_behind_at_five), {*LENGTHS} - {5}),
    "something kept otherwise at five": (lambda: Own(kept_otherwise_at_five), {*LENGTHS} - {5}),
    "positions": (lambda: Own(with_positions), set(LENGTHS)),
    "the row of its length": (lambda: Own(with_the_row_of_its_length, rows=nn.Embedding(10, 8)), set(LENGTHS)),
}
"""And the lengths whose steps are interpreted."""


def bound_to(model: Any, weights: Any, recording: StepRecording) -> BoundModule:
    made = BoundModule(model, weights, TASK, weights.params.dtype, plain=False, recording=recording)
    made.load(weights)
    return made


RESIZES = StepRecording((LONGEST,), interprets=True, longest=LONGEST)


@pytest.mark.parametrize("name", MODULES)
def test_steps_of_short_batches_are_autograds(name: str) -> None:
    factory, interpreted = MODULES[name]
    model, weights = create(factory, 0, torch.float64)
    got, wanted = (bound_to(model, weights, recording) for recording in (RESIZES, StepRecording()))
    x, y = torch.randn(LONGEST, 12, dtype=torch.float64), torch.arange(LONGEST) % 4
    if name == "not finite in trials":
        x = x.abs() + 1.5
    keys = list(dropout.keys_of_steps(5, 2, len(got.dropouts), x.device))
    assert got.record([x], [y], [LONGEST])
    # In any order; a batch of another length in between uses the same memory.
    for length in (*LENGTHS, *reversed(LENGTHS)):
        if length > 1 or name != "batch norm":
            assert got.record([x[:length]], [y[:length]], [length]) == (length in interpreted)
            for batch, key in zip((x, x[:length].flip(0), x), keys * 2, strict=False):
                short, targets = batch[:length], y[:length]
                results = []
                for bound in (got, wanted):
                    with torch.no_grad():
                        outputs, _ = bound.differentiate(short, targets, key, 1.0)
                        assert outputs is not None
                        results.append((outputs.clone(), bound.gradient.clone(), bound.weights.buffers.clone()))
                for one, expected in zip(*results, strict=True):
                    torch.testing.assert_close(one, expected, rtol=1e-9, atol=1e-12)
                with torch.no_grad():
                    got.differentiate(x, y, key, 1.0)
                    wanted.differentiate(x, y, key, 1.0)


def test_a_loss_of_ones_own_is_looked_at_for_each_length() -> None:
    def losses(outputs: Tensor, targets: Tensor) -> Tensor:
        each = functional.cross_entropy(outputs, targets, reduction="none")
        return each * 2 if len(targets) == 5 else each

    task = replace(TASK, losses=losses)
    model, weights = create(MODULES["plain"][0], 0, torch.float64)
    got, wanted = (
        BoundModule(model, weights, task, weights.params.dtype, plain=False, recording=recording)
        for recording in (RESIZES, StepRecording())
    )
    x, y = torch.randn(LONGEST, 12, dtype=torch.float64), torch.arange(LONGEST) % 4
    for length in (LONGEST, *LENGTHS):
        for bound in (got, wanted):
            bound.load(weights)
        assert got.record([x[:length]], [y[:length]], [length]) == (length != 5)
        with torch.no_grad():
            for bound in (got, wanted):
                bound.differentiate(x[:length], y[:length], None, 1.0)
        torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


def grows_by_a_value_at_five(self: Any, x: Tensor) -> Tensor:
    if len(x) == 5 and bool(x.mean() > 0):
        self.factor = 2.0
    return torch.tanh(self.first(x)) * getattr(self, "factor", 1.0)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1)])
def test_no_step_is_replayed_beside_one_that_changes_the_module_by_a_value(signs: tuple[int, int]) -> None:
    """Which batch of five came first, which another worker does not have, decides nothing."""
    model, weights = create(lambda: Own(grows_by_a_value_at_five), 0, torch.float64)
    got, wanted = (bound_to(model, weights, recording) for recording in (RESIZES, StepRecording()))
    x, y = torch.randn(LONGEST, 12, dtype=torch.float64).abs(), torch.arange(LONGEST) % 4
    for sign in signs:
        for bound in (got, wanted):
            bound.load(weights)
        lengths = [LONGEST, 5, LONGEST]
        got.record([sign * x[:length] for length in lengths], [y[:length] for length in lengths], lengths)
        assert got._recorded.get(LONGEST) is None
        for length in lengths:
            with torch.no_grad():
                for bound in (got, wanted):
                    bound.differentiate(sign * x[:length], y[:length], None, 1.0)
            torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


def test_only_few_lengths_are_tried_by_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    resize = local_step.resize_step

    def noted(weighted: Any, loss_gradient: Any, batch: tuple[Tensor, Tensor], *given: Any) -> Any:
        tried.append(len(batch[1]))
        return resize(weighted, loss_gradient, batch, *given)

    monkeypatch.setattr(resized_steps, "resize_step", noted)
    model, weights = create(MODULES["normed by hand"][0], 0, torch.float32)
    bound = bound_to(model, weights, RESIZES)
    x, y = torch.randn(LONGEST, 12), torch.arange(LONGEST) % 4
    for length in (7, 6, 5, 4, 3, 1):
        assert bound.record([x[:length]], [y[:length]], [length])
    assert tried == [resized_steps.FEWEST, 1]


@pytest.mark.parametrize("order", [(4, 5, 6), (6, 5, 4)])
def test_a_module_that_refuses_few_examples_is_tried_at_each_length(order: tuple[int, ...]) -> None:
    def four_or_more(self: Any, x: Tensor) -> Tensor:
        if len(x) < 4:
            raise ValueError("four examples or more")
        return torch.tanh(self.first(x))

    model, weights = create(lambda: Own(four_or_more), 0, torch.float32)
    bound = bound_to(model, weights, RESIZES)
    x, y = torch.randn(LONGEST, 12), torch.arange(LONGEST) % 4
    assert all(bound.record([x[:length]], [y[:length]], [length]) for length in order)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_what_a_longer_batch_has_left_passes_for_nothing(p: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials of all lengths have the same masks and numbers: what is not written is there, from the longer batch."""
    draw = dropout.Masks.draw

    def drawn_together(self: dropout.Masks, keys: Tensor, count: int, rows: int = 1) -> Tensor:
        # The number of draws does not grow by the same amount with each example.
        return draw(self, keys, count)

    monkeypatch.setattr(dropout.Masks, "draw", drawn_together)
    model, weights = create(lambda: Own(dropped_by_three, drop=nn.Dropout(p)), 0, torch.float64)
    got, wanted = (bound_to(model, weights, recording) for recording in (RESIZES, StepRecording()))
    x, y = torch.randn(LONGEST, 12, dtype=torch.float64), torch.arange(LONGEST) % 4
    assert got.record([x], [y], [LONGEST])
    keys = dropout.keys_of_steps(5, 9, len(got.dropouts), x.device)
    assert not all(got.record([x[:length]], [y[:length]], [length]) for length in LENGTHS)
    for length, key in zip((*LENGTHS, *reversed(LENGTHS)), keys, strict=False):
        with torch.no_grad():
            for bound in (got, wanted):
                bound.differentiate(x[:length], y[:length], key, 1.0)
        torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["plain", "dropout", "dropout of threes", "GRU", "attention", "pauses"])
def test_bits_are_those_of_a_recording_of_that_length(name: str) -> None:
    model, weights = create(MODULES[name][0], 0, torch.float32)
    x, y = torch.randn(LONGEST, 12), torch.arange(LONGEST) % 4
    gradients = []
    for recording in (RESIZES, StepRecording(range(1, LONGEST + 1), interprets=True)):
        bound = bound_to(model, weights, recording)
        (key,) = dropout.keys_of_steps(5, 1, len(bound.dropouts), x.device)
        for length in LENGTHS:
            assert bound.record([x[:length]], [y[:length]], [length])
            with torch.no_grad():
                bound.differentiate(x[:length], y[:length], key, 1.0)
            gradients.append(bound.gradient.clone())
    for one, other in zip(gradients[: len(LENGTHS)], gradients[len(LENGTHS) :], strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["pauses", "normed by hand", "dropout"])
def test_the_bits_do_not_depend_on_which_length_comes_first(name: str) -> None:
    model, weights = create(MODULES[name][0], 0, torch.float32)
    x, y = torch.randn(LONGEST, 12), torch.arange(LONGEST) % 4
    found, taken = [], []
    for order in ((LONGEST, *LENGTHS), (*reversed(LENGTHS), LONGEST), (3, LONGEST, 1, 5, 4, 2, 8)):
        bound = bound_to(model, weights, RESIZES)
        made, recorded = {}, {}
        for length in order:
            # Of a first batch, only the shape counts.
            first = torch.randn(length, 12) if order[0] != LONGEST else x[:length]
            targets = torch.randint(0, 4, (length,)) if order[0] != LONGEST else y[:length]
            recorded[length] = bound.record([first], [targets], [length])
            (key,) = dropout.keys_of_steps(5, 1, len(bound.dropouts), x.device)
            with torch.no_grad():
                bound.differentiate(x[:length], y[:length], key, 1.0)
            made[length] = bound.gradient.clone()
        found.append([made[length] for length in sorted(made)])
        taken.append(recorded)
    assert taken[1:] == taken[:-1]
    assert all(taken[0][length] for length in (LONGEST, 8, 5, 4, 3))
    for others in found[1:]:
        assert all(torch.equal(one, other) for one, other in zip(found[0], others, strict=True))


def test_a_length_is_not_recorded_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    record = local_step.record_step

    def noted(weighted: Any, loss_gradient: Any, x: Tensor, *given: Any) -> Any:
        lengths.append(len(x))
        return record(weighted, loss_gradient, x, *given)

    monkeypatch.setattr(recorded_steps, "record_step", noted)
    model, weights = create(MODULES["plain"][0], 0, torch.float32)
    bound = bound_to(model, weights, RESIZES)
    x, y = torch.randn(LONGEST, 12), torch.arange(LONGEST) % 4
    for length in LENGTHS:
        assert bound.record([x[:length]], [y[:length]], [length])
    assert bound.record([x], [y], [LONGEST])
    assert lengths == [LONGEST, LONGEST - 1]


def test_an_index_out_of_its_range_is_torchs_error() -> None:
    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.out = nn.Embedding(9, 5), nn.Linear(5, 4)

        def forward(self, x: Tensor) -> Tensor:
            return cast(Tensor, self.out(self.table(x).sum(1)))

    model, weights = create(Words, 0, torch.float32)
    bound = bound_to(model, weights, RESIZES)
    x, y = torch.randint(0, 9, (LONGEST, 3)), torch.arange(LONGEST) % 4
    assert bound.record([x[:4]], [y[:4]], [4])
    with torch.no_grad():
        bound.differentiate(x[:4], y[:4], None, 1.0)
        with pytest.raises(IndexError):
            bound.differentiate(torch.full((4, 3), 9), y[:4], None, 1.0)


def sized(length: int, name: str) -> resized.Sized:
    model, weights = create(MODULES[name][0], 0, torch.float32)
    bound = bound_to(model, weights, StepRecording((length,), interprets=True, longest=length))
    assert bound.record([torch.randn(length, 12)], [torch.arange(length) % 4], [length])
    found = bound._recorded._attempts[length]
    assert found is not None
    assert found.sized is not None
    return found.sized


@pytest.mark.parametrize(
    ("large", "small", "length", "why"),
    [
        ((7, "plain"), (5, "plain"), 3, "no two lengths"),
        ((7, "plain"), (6, "plain"), 8, "no two lengths"),
        ((7, "plain"), (6, "attention"), 3, "another step"),
        ((7, "plain"), (6, "GRU"), 3, "another step"),
        ((7, "all pairs"), (6, "all pairs"), 1, "another step"),
    ],
)
def test_what_is_no_two_lengths_of_one_step_is_refused(
    large: tuple[int, str], small: tuple[int, str], length: int, why: str
) -> None:
    with pytest.raises(NotInterpreted, match=why):
        resized.resized(sized(*large), sized(*small), length)


class Convolved(nn.Module):
    """A convolution that gains by a kernel in C, and is too large for the interpreter itself."""

    def __init__(self, side: int = 3, groups: int = 1) -> None:
        super().__init__()
        self.wide, self.out = nn.Conv2d(2, 32, 1), nn.Linear(32, 4)
        self.conv = nn.Conv2d(32, 32, side, padding=side // 2, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.wide(x))
        return cast(Tensor, self.out((h + torch.tanh(self.conv(h))).mean((2, 3))))


@pytest.mark.parametrize("is_depthwise", [False, True], ids=["minimal filtering", "depthwise"])
def test_short_batches_are_convolved_in_c_too(is_depthwise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    kernel: Any = Depthwise if is_depthwise else Winograd
    method = "kernels_gradient" if is_depthwise else "convolution"
    made = getattr(kernel, method)

    def noted(self: Any, first: Tensor, *given: Any) -> Tensor:
        lengths.append(len(first))
        return cast(Tensor, made(self, first, *given))

    monkeypatch.setattr(kernel, method, noted)
    model, weights = create(partial(Convolved, *((5, 32) if is_depthwise else ())), 0, torch.float32)
    kernels = Kernels(depthwise=Depthwise(torch.float32)) if is_depthwise else Kernels(Winograd(torch.float32))
    got, wanted = (bound_to(model, weights, one) for one in (RESIZES._replace(kernels=kernels), StepRecording()))
    x, y = torch.randn(LONGEST, 2, 12, 12), torch.arange(LONGEST) % 4
    for length in (LONGEST, *LENGTHS):
        assert got.record([x[:length]], [y[:length]], [length])
        lengths.clear()
        for bound in (got, wanted):
            with torch.no_grad():
                bound.differentiate(x[:length], y[:length], None, 1.0)
        assert lengths == [length]
        torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-4, atol=1e-6)
