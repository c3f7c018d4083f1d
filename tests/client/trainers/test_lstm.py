"""The compiled passes of an LSTM: autograd's numbers in any size and direction, and the same bits on any processor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim.client.section import ClientSection
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.construction import step_obstacles
from raysim.client.trainers.kernel.kernels import Kernels, KernelsUsed
from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.recording.recorded_steps import RecordedSteps, StepRecording
from raysim.models.lstm import Lstm
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.kernel import compiled_for, needs_kernel

SHAPES = ((1, 1, 1), (3, 2, 5), (4, 3, 16), (2, 7, 33), (5, 11, 64), (2, 20, 130))
"""Places, examples, units: fewer units than a vector has, whole panels and parts of them, and rows of each block."""

CLASSES = 5


@pytest.fixture(autouse=True)
def _kernel() -> None:
    needs_kernel()


def drawn(shape: tuple[int, int, int], dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """What inputs add, U, the first state and cell, and gradients of states, of the last state and of the last cell."""
    places, examples, units = shape
    draw = torch.Generator().manual_seed(0)
    end = (examples, units)
    sizes = (places, examples, 4 * units), (4 * units, units), end, end, (places, examples, units), end, end
    made = [torch.randn(size, dtype=dtype, generator=draw) for size in sizes]
    # Sums of the size of what inputs add: gates that are all 0 or 1 would hide much.
    made[1] *= units**-0.5
    return made


def passes(given: list[Tensor], backwards: bool) -> list[Tensor]:
    """States, cells, and gradients of all that is given but those."""
    added, u, h, c, dy, dh, dc = given
    lstm = CompiledLstm(added.dtype)
    states, *kept = lstm.forward(added, u, h, c, backwards)
    return [states, kept[1], *lstm.backward(dy, dh, dc, kept, u, backwards)]


def by_place(given: list[Tensor], backwards: bool) -> list[Tensor]:
    """The same by autograd, from the equations."""
    added, u, h, c = (one.clone().requires_grad_() for one in given[:4])
    dy, dh, dc = given[4:]
    states, cells, places = [h], [c], len(added)
    for t in reversed(range(places)) if backwards else range(places):
        i, f, g, o = (added[t] + states[-1] @ u.t()).chunk(4, 1)
        cells.append(f.sigmoid() * cells[-1] + i.sigmoid() * g.tanh())
        states.append(o.sigmoid() * cells[-1].tanh())
    made = torch.stack(states[:0:-1] if backwards else states[1:])
    whole = (made * dy).sum() + (states[-1] * dh).sum() + (cells[-1] * dc).sum()
    gradients = torch.autograd.grad(whole, [added, h, c])
    order = -1 if backwards else 1
    return [torch.stack(states[::order]).detach(), torch.stack(cells[::order]).detach(), *gradients]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("backwards", [False, True])
def test_the_passes_have_autograds_numbers(shape: tuple[int, int, int], backwards: bool) -> None:
    given = drawn(shape)
    for got, wanted in zip(passes(given, backwards), by_place(given, backwards), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    few = [one.float() for one in given]
    for got, wanted in zip(passes(few, backwards), by_place(given, backwards), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_not_there_are_0() -> None:
    added, u, h, c, dy, dh, dc = drawn((3, 4, 9))
    lstm = CompiledLstm(torch.float64)
    _, *kept = lstm.forward(added, u, h, c, False)
    for is_there in ((True, False, False), (False, True, False), (False, False, True)):
        given = list(zip((dy, dh, dc), is_there, strict=True))
        one, two, three = (each if there else torch.zeros_like(each) for each, there in given)
        wanted = lstm.backward(one, two, three, kept, u, False)
        first, second, third = (each if there else None for each, there in given)
        assert all(map(torch.equal, lstm.backward(first, second, third, kept, u, False), wanted))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_an_examples_bits_do_not_depend_on_the_others(dtype: torch.dtype) -> None:
    given = drawn((3, 11, 33), dtype)
    whole = passes(given, False)
    for few in (1, 2, 4, 5, 6, 10):
        part = [one if one is given[1] else one.narrow(-2, 0, few) for one in given]
        for got, wanted in zip(passes(part, False), whole, strict=True):
            assert torch.equal(got, wanted.narrow(-2, 0, few))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("processor", ["haswell"])
def test_the_bits_are_the_same_with_shorter_vectors(dtype: torch.dtype, processor: str, tmp_path: Path) -> None:
    given = [drawn(shape, dtype) for shape in SHAPES]
    usual = [passes(one, False) for one in given]
    with compiled_for(processor, tmp_path):
        for one, wanted in zip(given, usual, strict=True):
            assert all(map(torch.equal, passes(one, False), wanted))


@pytest.mark.parametrize(
    ("at", "change", "said"),
    [
        (0, lambda one: one[:, :, :-1], "gates of shape"),
        (0, lambda one: one[:0], "none of them empty"),
        (1, lambda one: one.float(), "weights of shape"),
        (2, lambda one: one[:-1], "states of shape"),
        (3, lambda one: one.t(), "cells of shape"),
        (4, lambda one: one[1:], "gradients of shape"),
        (5, lambda one: one[1:], "gradients of shape"),
        (4, lambda one: torch._efficientzerotensor(one.shape, dtype=one.dtype), "gradients of shape"),
        (4, lambda one: torch._neg_view(one), "gradients of shape"),
    ],
)
def test_what_does_not_fit_is_refused(at: int, change: Callable[[Tensor], Tensor], said: str) -> None:
    given = drawn((3, 4, 9))
    given[at] = change(given[at])
    with pytest.raises(RuntimeError, match=said):
        passes(given, False)


def test_results_go_where_they_are_asked_for() -> None:
    added, u, h, c, *_ = drawn((3, 4, 9))
    lstm = CompiledLstm(torch.float64)
    wanted = lstm.forward(added, u, h, c, True)
    into = [torch.full_like(one, torch.nan) for one in wanted]
    assert lstm.forward(added, u, h, c, True, into)[0] is into[0]
    assert all(map(torch.equal, into, wanted))
    with pytest.raises(RuntimeError, match="writes to contiguous tensors"):
        lstm.forward(added, u, h, c, True, [into[0].transpose(1, 2).contiguous().transpose(1, 2), *into[1:]])


class Own(nn.Module):
    """An LSTM, and what is made of it.

    reads: "all" states, the "last" one, or the last cell ("cell"); from a state that the inputs say ("begun").
    """

    def __init__(self, layer: nn.Module, width: int, reads: str = "all") -> None:
        super().__init__()
        self.inside, self.layer, self.reads = nn.Linear(6, 6), layer, reads
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inside(x).tanh()
        if self.reads == "begun":
            state = x[:, :1, :3].transpose(0, 1)
            states, _ = self.layer(x, (state.contiguous(), (2 * state).contiguous()))
            return self.head(states.mean(1))
        made = self.layer(x)
        if self.reads == "all":
            states = made if isinstance(made, Tensor) else made[0]
            return self.head(states.mean(1))
        last = made[1][self.reads == "cell"][-1]
        return self.head(last)


class Two(nn.Module):
    """A trained LSTM behind another one that is not: its states have no gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.LSTM(6, 5, batch_first=True), nn.LSTM(5, 7, batch_first=True)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            states = self.first(x)[0]
        outputs: Tensor = self.head(self.second(states)[0].mean(1))
        return outputs


class Table(nn.Module):
    """An LSTM over a weight without its gradient, which is also trained."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Parameter(torch.randn(4, 6)), nn.LSTM(6, 7)
        self.head = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        states = self.layer(self.table.detach().unsqueeze(1))[0].mean(0)
        outputs: Tensor = self.head(states + (x[:, 0] @ self.table.t()).mean(1, keepdim=True))
        return outputs


MODULES: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: Own(nn.LSTM(6, 7, batch_first=True), 7),
    "two layers": lambda: Own(nn.LSTM(6, 7, 2, batch_first=True), 7),
    "both directions": lambda: Own(nn.LSTM(6, 7, 2, batch_first=True, bidirectional=True), 14),
    "no biases": lambda: Own(nn.LSTM(6, 7, bias=False, batch_first=True), 7),
    "the last state": lambda: Own(nn.LSTM(6, 7, 2, batch_first=True), 7, "last"),
    "the last cell": lambda: Own(nn.LSTM(6, 7, batch_first=True), 7, "cell"),
    "begun elsewhere": lambda: Own(nn.LSTM(6, 3, batch_first=True), 3, "begun"),
    "raysim's": lambda: Own(Lstm(6, 7, 2), 7),
    "raysim's, one bias": lambda: Own(Lstm(6, 7, 1, 1), 7),
    "behind one that is not trained": Two,
    "frozen in part": lambda: frozen(Own(nn.LSTM(6, 7, 2, batch_first=True), 7)),
}


def frozen(module: nn.Module) -> nn.Module:
    for name, parameter in module.named_parameters():
        parameter.requires_grad_("weight_hh_l0" not in name and "inside" not in name)
    return module


@pytest.mark.parametrize("name", [*MODULES, "a table"])
@pytest.mark.parametrize("interprets", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_recorded_steps_have_autograds_numbers(name: str, interprets: bool, plain: bool) -> None:
    model, weights = create(MODULES.get(name, Table), 0, torch.float32)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 4, 6, generator=draw), torch.arange(5) % CLASSES
    found = step_obstacles(
        model, weights, task_for(CLASSES, None), ClientSection(), "float32", (x, y), interprets, KernelsUsed(lstm=True)
    )
    assert found.recorded is None
    assert not interprets or found.interpreted is None
    lstm = Counted(torch.float32)
    made = []
    kernels = Kernels(lstm=lstm)
    for recording in (StepRecording((5, 4), interprets=interprets, kernels=kernels), StepRecording()):
        bound = BoundModule(model, weights, task_for(CLASSES, None), torch.float32, plain=plain, recording=recording)
        bound.load(weights)
        assert bound.record([x], [y], [5]) == bool(recording.lengths)
        # A step that reads a weight too late may pass a trial all the same: it is not tried.
        assert not (lstm.calls and name == "a table")
        lstm.calls.clear()
        for _ in range(3):
            outputs, _ = bound.differentiate(x, y, None, -0.5 if plain else 1.0)
        assert outputs is not None
        made.append((bound.gradient.clone(), outputs, list(lstm.calls)))
    (gradient, outputs, calls), (wanted, wanted_outputs, none) = made
    torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(outputs, wanted_outputs, rtol=1e-4, atol=1e-6)
    assert calls.count("forward") == calls.count("backward")
    assert len(calls) >= (0 if name == "a table" else 6)
    assert not none


class Counted(CompiledLstm):
    """Notes its calls."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__(dtype)
        self.calls: list[str] = []

    def forward(self, *given: Any) -> tuple[Tensor, ...]:
        self.calls.append("forward")
        return super().forward(*given)

    def backward(self, *given: Any) -> tuple[Tensor, ...]:
        self.calls.append("backward")
        return super().backward(*given)


@pytest.mark.parametrize(
    "name", ["two layers", "both directions", "the last state", "the last cell", "begun elsewhere"]
)
def test_short_batches_are_made_from_two_lengths(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # No short length is recorded by itself.
    monkeypatch.setattr(RecordedSteps, "_by_itself", refusing(RecordedSteps._by_itself))
    model, weights = create(MODULES[name], 0, torch.float32)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(6, 4, 6, generator=draw), torch.arange(6) % CLASSES
    lstm = Counted(torch.float32)
    resizes = StepRecording((6,), interprets=True, longest=6, kernels=Kernels(lstm=lstm))
    got, wanted = (
        BoundModule(model, weights, task_for(CLASSES, None), torch.float32, plain=True, recording=recording)
        for recording in (resizes, StepRecording())
    )
    for length in range(1, 7):
        assert got.record([x[:length]], [y[:length]], [length])
        for one in (got, wanted):
            one.load(weights)
            lstm.calls.clear()
            one.differentiate(x[:length], y[:length], None, -0.5)
            assert bool(lstm.calls) == (one is got)
        torch.testing.assert_close(got.weights.params, wanted.weights.params, rtol=1e-4, atol=1e-6)


def refusing(records: Callable[..., Any]) -> Callable[..., Any]:
    """Of batches with less than five examples none is recorded."""
    return lambda self, x, y: records(self, x, y) if len(y) >= 5 else None


def test_a_step_that_fails_with_the_passes_is_recorded_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, weights = create(MODULES["one layer"], 0, torch.float32)
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(5, 4, 6, generator=draw), torch.arange(5) % CLASSES
    lstm = Counted(torch.float32)
    back = CompiledLstm.backward
    monkeypatch.setattr(CompiledLstm, "backward", lambda *given: [2 * one for one in back(*given)])
    made = []
    for recording in (StepRecording((5,), kernels=Kernels(lstm=lstm)), StepRecording()):
        bound = BoundModule(model, weights, task_for(CLASSES, None), torch.float32, plain=True, recording=recording)
        bound.load(weights)
        assert bound.record([x], [y], [5]) == bool(recording.lengths)
        lstm.calls.clear()
        bound.differentiate(x, y, None, -0.5)
        assert not lstm.calls
        made.append(bound.weights.params)
    torch.testing.assert_close(made[0], made[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("interprets", [False, True])
def test_whether_the_passes_are_taken_does_not_depend_on_the_batch_at_hand(interprets: bool) -> None:
    """Another worker has another batch, and must come to the same end: its trial is on the same numbers."""

    class Seen(CompiledLstm):
        def forward(self, added: Tensor, *given: Any) -> tuple[Tensor, ...]:
            seen[-1].append(added.clone())
            return super().forward(added, *given)

    model, weights = create(MODULES["two layers"], 0, torch.float32)
    draw, y = torch.Generator().manual_seed(1), torch.arange(5) % CLASSES
    seen: list[list[Tensor]] = []
    for turn in range(2):
        kernels = Kernels(lstm=Seen(torch.float32))
        recording = StepRecording((5,), interprets=interprets, kernels=kernels)
        bound = BoundModule(model, weights, task_for(CLASSES, None), torch.float32, plain=True, recording=recording)
        bound.load(weights)
        seen.append([])
        assert bound.record([torch.randn(5, 4, 6, generator=draw)], [(y + turn) % CLASSES], [5])
    assert len(seen[0]) >= 2
    assert all(map(torch.equal, *seen))
