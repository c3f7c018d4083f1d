"""Recorded local steps: what is recorded computes what autograd does, and what cannot be repeated is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import raysim
from raysim.client import dropout, local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.construction import make, step_obstacles
from raysim.client.trainers.one_by_one import OneByOne
from raysim.client.trainers.recording import recorded_steps
from raysim.client.trainers.recording.recorded_steps import StepRecording
from raysim.client.trainers.trainer_choice import ShortBatches, TrainerChoice
from raysim.data.on_device import Examples
from raysim.engine.plan.resolve import resolve
from raysim.models.model import create
from raysim.models.task import Task, task_for
from tests.support.trainer_models import dataset

Forward = Callable[[Any, Tensor], Tensor]

TASK = task_for(4, None)
LR = 0.1


class Written(nn.Module):
    """Two layers and a forward of the test's own."""

    def __init__(self, forward: Forward, **held: Any) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 4)
        for name, value in held.items():
            setattr(self, name, value)
        self._own = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._own(self, x)


def skip(self: Any, x: Tensor) -> Tensor:
    h = functional.gelu(self.a(x))
    return self.b(self.norm(h + torch.tanh(h)))


def attention(self: Any, x: Tensor) -> Tensor:
    h = self.a(x.unsqueeze(1).expand(-1, 3, -1))
    h = h + torch.arange(3.0, dtype=h.dtype)[:, None]
    return self.b(functional.scaled_dot_product_attention(h, h, h, is_causal=True).mean(1))


def tied(self: Any, x: Tensor) -> Tensor:
    h = torch.relu(self.a(x))
    return self.b(torch.relu(h @ self.b.weight.T @ self.b.weight))


def drawing(self: Any, x: Tensor) -> Tensor:
    return self.b(functional.dropout(torch.relu(self.a(x)), 0.5, self.training) + torch.rand(()))


def one_layer(self: Any, x: Tensor) -> Tensor:
    return self.b(torch.cat([x, x[:, :2]], 1))


def in_place(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    h[:, 0] = 0
    h.mul_(2).add_(self.shift)
    return self.b(h.relu_())


def recursive() -> Callable[[int], int]:
    def product(n: int) -> int:
        return 1 if n == 0 else n * product(n - 1)

    return product


MODULES: Mapping[str, Callable[[], nn.Module]] = {
    "skip and norm": lambda: Written(skip, norm=nn.LayerNorm(8)),
    "attention": lambda: Written(attention),
    "tied weights": lambda: Written(tied),
    "draws from torch": lambda: Written(drawing),
    "a layer unused": lambda: Written(one_layer),
    "writes in place": lambda: Written(in_place, shift=torch.ones(())),
    "dropout": lambda: Written(lambda self, x: self.b(self.drop(torch.relu(self.a(x)))), drop=nn.Dropout(0.3)),
    "dropout called three times": lambda: Written(
        lambda self, x: self.b(self.drop(self.drop(self.drop(self.a(x))))), drop=nn.Dropout(0.3)
    ),
    "batch norm": lambda: Written(lambda self, x: self.b(self.norm(self.a(x))), norm=nn.BatchNorm1d(8)),
    "recurrent": lambda: Written(
        lambda self, x: self.b(self.lstm(x.unsqueeze(-1))[0][:, -1]), lstm=nn.LSTM(1, 8, batch_first=True)
    ),
    # Its gradient comes before that of what it is multiplied with, which reads it.
    "a weight on the right": lambda: Written(
        lambda self, x: self.b(torch.relu(self.a(x)) @ self.right), right=nn.Parameter(torch.eye(8) + 0.1)
    ),
    "batch norm for its statistics": lambda: Written(
        lambda self, x: (self.norm(self.a(x)), self.b(self.a(x)))[1], norm=nn.BatchNorm1d(8)
    ),
    "complex numbers": lambda: Written(
        lambda self, x: self.b(torch.view_as_real(self.a(x) * torch.exp(1j * self.phase)).sum(-1)),
        phase=nn.Parameter(torch.zeros(8)),
    ),
    # It turns its outputs in place.
    "gated recurrent": lambda: Written(
        lambda self, x: self.b(self.gru(x.unsqueeze(-1))[0][:, -1]), gru=nn.GRU(1, 8, batch_first=True)
    ),
    "turns twice": lambda: Written(lambda self, x: self.b((self.a(x) * 2).t_().unsqueeze_(0).squeeze_(0).t_())),
    "an index of positions": lambda: Written(lambda self, x: self.b(self.a(x)[:, torch.tensor([3, 2, 1, 0] * 2)])),
    "calls itself": lambda: Written(lambda self, x: self.b(self.a(x)) * self.product(3), product=recursive()),
    "constants": lambda: Written(lambda self, x: self.b(self.a(x) * torch.tensor(2.0) + torch.zeros(8))),
}


RULES: list[dict[str, Any]] = [
    {},
    {"optimizer": {"momentum": 0.5, "weight_decay": 0.1}},
    {"optimizer": {"name": "adam", "eps": 0.1}},
]


def trained(
    trainer: str,
    factory: Callable[[], nn.Module],
    work: dict[str, Any],
    precision: Any = "float32",
    short_batches: ShortBatches = "resized",
) -> tuple[OneByOne, list[tuple[Tensor, Tensor, Tensor]]]:
    """The trainer, and every client's delta, buffers and loss."""
    data, section = dataset((6,), classes=4), ClientSection.model_validate({"batch_size": 4, "epochs": 2} | work)
    dtype = torch.float64 if precision == "float32" else torch.float32
    model, weights = create(factory, 0, dtype)
    choice = TrainerChoice.of_size(trainer, 5, short_batches=short_batches)  # type: ignore[arg-type]
    made = make(choice, model, weights, TASK, section, precision)
    members = local_training.members(Examples(data), (0, 1, 2, 3), section, 0, 3, weights.params)
    rows = []
    for done in local_training.train(made, weights, members, LR, model.params):
        rows.append((done.updates.delta.clone(), done.updates.buffers.clone(), done.updates.loss))
    assert isinstance(made, OneByOne)
    return made, rows


def recordings(trainer: OneByOne) -> dict[int, Any]:
    return trainer._own._recorded._steps


@pytest.mark.parametrize(
    "work",
    [{}, {"optimizer": {"momentum": 0.5, "weight_decay": 0.1}}, {"optimizer": {"name": "adam", "eps": 0.1}}],
    ids=str,
)
@pytest.mark.parametrize("how", ["recorded", "interpreted"])
@pytest.mark.parametrize("name", MODULES)
def test_a_recorded_step_is_that_of_autograd(name: str, how: str, work: dict[str, Any]) -> None:
    # Batch norm takes no batch of one.
    work = {**work, "fill_last_batch": "batch norm" in name}
    trainer, rows = trained(how, MODULES[name], work)
    _, wanted = trained("one_by_one", MODULES[name], work)
    # Short last batches are recorded too.
    lengths = {4} if "batch norm" in name else {4, 1}
    assert {length for length, made in recordings(trainer).items() if made is not None} == lengths
    for row, other in zip(rows, wanted, strict=True):
        for got, expected in zip(row, other, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", MODULES)
def test_recorded_steps_infer_beside_steps_by_autograd(name: str) -> None:
    model, weights = create(MODULES[name], 0, torch.float64)
    got, wanted = (
        BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording(lengths))
        for lengths in ((4,), ())
    )
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    (masks,) = dropout.keys_of_steps(5, 1, len(got.dropouts), x.device)
    with torch.no_grad():
        for bound in (got, wanted):
            bound.load(weights)
            bound.record([x, x[:3]], [y, y[:3]], [4, 3])
            torch.manual_seed(0)
            # What a recorded step writes is differentiated, saved and written to by the others.
            for length in (4, 3, 4, 3):
                outputs, losses = bound.differentiate(x[:length], y[:length], masks, -LR)
                assert outputs is not None
                assert outputs.is_inference() == (bound is got and length == 4)
                assert losses is None or not losses.requires_grad
    torch.testing.assert_close(got.weights.params, wanted.weights.params, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(got.weights.buffers, wanted.weights.buffers, rtol=1e-9, atol=1e-12)


def test_the_loss_counts_recorded_steps_and_others_of_one_client() -> None:
    trainer, rows = trained("recorded", MODULES["skip and norm"], {}, short_batches="by autograd")
    assert {length: made is not None for length, made in recordings(trainer).items()} == {4: True, 1: False}
    for (*_, got), (*_, wanted) in zip(rows, trained("one_by_one", MODULES["skip and norm"], {})[1], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)


def checkpointed(self: Any, x: Tensor) -> Tensor:
    return self.b(checkpoint(lambda x: self.drop(torch.tanh(self.a(x))) * self.a(x), x, use_reentrant=False))


def uncheckpointed(self: Any, x: Tensor) -> Tensor:
    return self.b(self.drop(torch.tanh(self.a(x))) * self.a(x))


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded"])
def test_what_a_checkpoint_computes_again_has_the_masks_of_the_first_time(trainer: str) -> None:
    (_, rows), (_, wanted) = (
        trained(trainer, lambda own=own: Written(own, drop=nn.Dropout(0.5)), {})  # type: ignore[misc]
        for own in (checkpointed, uncheckpointed)
    )
    for (delta, *_), (expected, *_) in zip(rows, wanted, strict=True):
        torch.testing.assert_close(delta, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", ["dropout", "dropout called three times"])
def test_a_step_is_recorded_behind_one_by_autograd_whose_masks_were_drawn_ahead(name: str) -> None:
    model, weights = create(MODULES[name], 0, torch.float64)
    bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording((4,)))
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    first, _ = dropout.keys_of_steps(5, 2, len(bound.dropouts), x.device)
    with torch.no_grad():
        assert not bound.record([x[:3]], [y[:3]], [3])
        bound.differentiate(x[:3], y[:3], first, -LR)
        # Its trial moves the keys, and both ways must follow.
        assert bound.record([x], [y], [4])


def test_a_dropout_called_twice_whose_masks_a_checkpoint_would_take_again_is_an_error() -> None:
    def twice(self: Any, x: Tensor) -> Tensor:
        return self.b(checkpoint(lambda x: self.drop(self.drop(torch.tanh(self.a(x)))), x, use_reentrant=False))

    with pytest.raises(raysim.RaysimError) as raised:
        trained("one_by_one", lambda: Written(twice, drop=nn.Dropout(0.5)), {})
    assert "a layer of its own" in f"{raised.value} {raised.value.__cause__}"


def test_in_bf16_products_are_rounded_as_autocast_rounds_them() -> None:
    trainer, rows = trained("recorded", MODULES["skip and norm"], {}, "bf16")
    _, wanted = trained("one_by_one", MODULES["skip and norm"], {}, "bf16")
    assert recordings(trainer)[4] is not None
    for (delta, *_), (expected, *_) in zip(rows, wanted, strict=True):
        torch.testing.assert_close(delta, expected, rtol=0.02, atol=1e-4)


def test_an_lstm_in_float32_is_recorded_too() -> None:
    # torch's kernel for it prepares for a backward pass only while gradients are on.
    model, weights = create(MODULES["recurrent"], 0, torch.float32)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    assert step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, y), False).recorded is None


def by_value(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    return self.b(h if h.sum() > 0 else -h)


def counting(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.b(self.a(x)) * self.calls


class Schedule:
    def __init__(self) -> None:
        self.at = 0


def scheduled(self: Any, x: Tensor) -> Tensor:
    self.schedule.at += 1
    return self.b(self.a(x)) * self.schedule.at


def split_by_value(self: Any, x: Tensor) -> Tensor:
    first, second = torch.tensor_split(self.a(x), 1 + x.flatten().topk(1).indices % 6, dim=1)
    return self.b(torch.cat([first, 2 * second], dim=1))


def masked(self: Any, x: Tensor) -> Tensor:
    return self.b(self.a(x)) * (x[x > 0].shape[0] + 1.0)


def read_by_function(method: str, operands: int) -> Callable[[Any, Tensor], Tensor]:
    def forward(self: Any, x: Tensor) -> Tensor:
        numbers = x.detach().clone()
        read: list[float] = []

        def kept(*each: float) -> float:
            read.append(each[0])
            return each[0]

        getattr(numbers, method)(*[numbers] * operands, kept)
        return self.b(self.a(x)) * (1.0 + (max(read) > 100))

    return forward


def packed(self: Any, x: Tensor) -> Tensor:
    lengths = 1 + (x > 0).sum(1)
    taken = nn.utils.rnn.pack_padded_sequence(x, lengths.sort(descending=True).values.clamp(max=6), batch_first=True)
    return self.b(self.a(x)) * (1.0 + len(taken.data))


class BoundedInNumpy(torch.autograd.Function):
    """Its gradients are bounded where one is large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return bounded_in_numpy(gradients[0])


def bounded_in_numpy(gradient: Tensor) -> Tensor:
    return gradient.clamp(-1, 1) if np.abs(gradient.numpy()).max() > 100 else gradient.clone()


def hooked(self: Any, x: Tensor) -> Tensor:
    h = self.a(x)
    if h.requires_grad:
        h.register_hook(bounded_in_numpy)
    return self.b(h)


REFUSED: Mapping[str, tuple[Callable[[], nn.Module], str]] = {
    "branch on a value": (lambda: Written(by_value), "reads a value"),
    "item": (lambda: Written(lambda self, x: self.b(self.a(x)) * x.max().item()), "reads a value"),
    "numpy": (lambda: Written(lambda self, x: self.b(self.a(x)) * float(x.numpy().max())), "calls numpy"),
    "tolist": (lambda: Written(lambda self, x: self.b(self.a(x)) * max(x.flatten().tolist())), "calls tolist"),
    "text": (lambda: Written(lambda self, x: self.b(self.a(x)) * (1.0 + len(str(x[0, 0])))), "calls __repr__"),
    "formatted": (lambda: Written(lambda self, x: self.b(self.a(x)) * (1.0 + len(f"{x}"))), "calls __format__"),
    "split by value": (lambda: Written(split_by_value), "calls tensor_split"),
    "shape by value": (lambda: Written(masked), "shape that depends on values"),
    "number by number": (lambda: Written(read_by_function("apply_", 0)), "calls apply_"),
    "pair by pair": (lambda: Written(read_by_function("map_", 1)), "calls map_"),
    "three by three": (lambda: Written(read_by_function("map2_", 2)), "calls map2_"),
    "entries of a sparse tensor": (
        lambda: Written(lambda self, x: self.b(self.a(x)) * (1.0 + x.relu().to_sparse()._nnz())),
        "sparse_coo",
    ),
    "packed by length": (lambda: Written(packed), "shape that depends on values"),
    "a hook in NumPy": (lambda: Written(hooked), "calls numpy"),
    "a branch of a backward in NumPy": (
        lambda: Written(lambda self, x: self.b(BoundedInNumpy.apply(self.a(x)))),  # type: ignore[no-untyped-call]
        "calls numpy",
    ),
    "counts its calls": (lambda: Written(counting, calls=0), "changes what the module holds"),
    "keeps a schedule": (lambda: Written(scheduled, schedule=Schedule()), "changes what the module holds"),
    "draws from Python": (lambda: Written(lambda self, x: self.b(self.a(x)) * random.random()), "NumPy or Python"),
    "draws from NumPy": (
        lambda: Written(lambda self, x: self.b(self.a(x)) * float(np.random.rand())),
        "NumPy or Python",
    ),
    "holds an iterator": (
        lambda: Written(lambda self, x: self.b(self.a(x)) * next(self.them), them=iter(range(1, 10**6))),
        "changes what the module holds",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_repeated_is_refused_and_trained_by_autograd(name: str) -> None:
    factory, reason = REFUSED[name]
    model, weights = create(factory, 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, y), False).recorded
    assert found is not None
    assert reason in found
    trainer, rows = trained("recorded", factory, {})
    assert set(recordings(trainer).values()) == {None}
    # What a generator of the process draws depends on who drew before, and an iterator cannot be turned back.
    if not name.startswith(("draws", "holds")):
        for (delta, *_), (expected, *_) in zip(rows, trained("one_by_one", factory, {})[1], strict=True):
            assert torch.equal(delta, expected)


def test_a_loss_whose_backward_reads_values_is_refused() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        bounded: Tensor = BoundedInNumpy.apply(outputs)  # type: ignore[no-untyped-call]
        return functional.cross_entropy(bounded, targets, reduction="none")

    model, weights = create(MODULES["skip and norm"], 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = step_obstacles(model, weights, task_for(4, loss), ClientSection(), "float32", (x, y), False).recorded
    assert found is not None
    assert "calls numpy" in found


def test_a_forward_that_is_not_recorded_leaves_what_its_module_holds() -> None:
    def busy(self: Any, x: Tensor) -> Tensor:
        self.calls += 1
        self.made = x
        self.seen.append(self.calls)
        self.table["a"] = {"seen": self.seen.pop(0)}
        self.table["b"].add(x.shape)
        self.schedule.at += 1
        self.python.random(), self.numpy.random(), self.count()
        return self.b(self.a(x)) * self.calls

    def counter() -> Callable[[], int]:
        at = 0

        def count() -> int:
            nonlocal at
            at += 1
            return at

        return count

    made: list[Any] = []

    def factory() -> nn.Module:
        held = {"seen": [7, 8], "table": {"b": set()}, "schedule": Schedule(), "count": counter()}
        made.append(Written(busy, calls=0, python=random.Random(0), numpy=np.random.default_rng(0), **held))
        return made[-1]

    model, weights = create(factory, 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, y), False).recorded is not None
    found = made[-1]
    assert (found.calls, found.seen, found.schedule.at, hasattr(found, "made")) == (0, [7, 8], 0, False)
    assert found.table == {"b": set()}
    assert found.count() == 1
    assert found.python.random() == random.Random(0).random()
    assert found.numpy.random() == np.random.default_rng(0).random()


class InNumpy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.relu()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return torch.from_numpy(gradients[0].numpy() * (ctx.saved_tensors[0].numpy() > 0))


def swallowing(self: Any, x: Tensor) -> Tensor:
    h = torch.relu(self.a(x))
    try:
        factor = float(h.max())
    except Exception:
        factor = 1.0
    return self.b(h * factor)


def literal_written(self: Any, x: Tensor) -> Tensor:
    h = torch.relu(self.a(x))
    mask = torch.tensor([0.0] * 8, dtype=x.dtype)
    mask[h.mean(0).topk(3).indices] = 1
    return self.b(h * mask)


def averaging(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        self.mean.mul_(0.5).add_(x.mean())
    return self.b(self.a(x)) * self.mean


# What a forward takes from its values, or from outside, past the operators: all of it stays with the batch it was for.
FIXED: Mapping[str, Callable[[], nn.Module]] = {
    "a literal of values": lambda: Written(lambda self, x: self.b(self.a(x)) * torch.tensor([x.mean()])),
    "a parameter made in forward": lambda: Written(lambda self, x: self.b(self.a(x) * nn.Parameter(x.mean()))),
    "a layer copied in forward": lambda: Written(lambda self, x: self.b(deepcopy(self.a)(x).detach() + self.a(x))),
    "a backward in NumPy": lambda: Written(lambda self, x: self.b(InNumpy.apply(self.a(x)))),  # type: ignore[no-untyped-call]
    "a value read in try": lambda: Written(swallowing),
    "a literal written to": lambda: Written(literal_written),
    "a plain tensor written to": lambda: Written(averaging, mean=torch.ones((), dtype=torch.float64)),
    "a weight returned": lambda: Written(lambda self, x: self.rows[: len(x)], rows=nn.Parameter(torch.zeros(4, 4))),
    "another thread": lambda: Written(
        lambda self, x: self.b(self.a(x)) * ThreadPoolExecutor(1).submit(lambda: x.sin().sum(1, keepdim=True)).result()
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_what_a_recording_would_fix_or_change_is_refused_and_leaves_no_trace(name: str) -> None:
    trainer, rows = trained("recorded", FIXED[name], {})
    assert set(recordings(trainer).values()) == {None}
    for row, wanted in zip(rows, trained("one_by_one", FIXED[name], {})[1], strict=True):
        assert all(torch.equal(got, expected) for got, expected in zip(row, wanted, strict=True))


def test_a_counter_outside_of_the_module_is_seen() -> None:
    def counted(self: Any, x: Tensor, calls: list[int] = [0]) -> Tensor:  # noqa: B006
        calls[0] += 1
        return self.b(self.a(x)) * (1 + calls[0] % 3)

    model, weights = create(lambda: Written(counted), 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    found = step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, y), False).recorded
    assert found is not None
    assert "another batch" in found


def test_a_module_that_fails_while_it_is_recorded_trains_by_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError

    monkeypatch.setattr(recorded_steps, "record_step", failing)
    trainer, _ = trained("recorded", MODULES["skip and norm"], {})
    assert set(recordings(trainer).values()) == {None}


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_branch_that_torch_compiles_where_it_is_called_still_works_after_the_trial_of_a_recording() -> None:
    def branch(self: Any, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(torch.cond(h.sum() > 0, lambda h: torch.tanh(h), lambda h: torch.relu(h), (h,)))

    def gone_on() -> Tensor:
        return cast(Tensor, Written(branch)(torch.ones(2, 6)))

    gone_on()
    model, weights = create(lambda: Written(branch), 0, torch.float32)
    x, y = torch.randn(4, 6), torch.tensor([0, 1, 2, 3])
    assert step_obstacles(model, weights, TASK, ClientSection(), "float32", (x, y), False).recorded is not None
    assert gone_on().shape == (2, 4)


def test_a_recording_writes_neither_to_its_batch_nor_to_tensors_of_the_module() -> None:
    model, weights = create(FIXED["a plain tensor written to"], 0, torch.float64)
    bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording((4,)))
    bound.load(weights)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert not bound.record([x], [y], [len(y)])
    assert float(bound.module.mean) == 1  # type: ignore[arg-type]
    model, weights = create(lambda: Written(lambda self, x: self.b(self.a(x.mul_(0.9)))), 0, torch.float64)
    bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording((4,)))
    bound.load(weights)
    before = x.clone()
    assert bound.record([x], [y], [len(y)])
    assert torch.equal(x, before)


def clamped(self: Any, x: Tensor) -> Tensor:
    # Behind autograd's back: the product that would make the step finds other weights.
    self.a.weight.data.clamp_(-0.2, 0.2)
    return self.b(torch.relu(self.a(x)))


@pytest.mark.parametrize(("work", "is_recorded"), [({}, False), ({"optimizer": {"momentum": 0.5}}, True)])
def test_a_recording_is_tried_with_the_rule_of_the_run(work: dict[str, Any], is_recorded: bool) -> None:
    model, weights = create(lambda: Written(clamped), 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    section = ClientSection.model_validate(work)
    assert (step_obstacles(model, weights, TASK, section, "float32", (x, y), False).recorded is None) == is_recorded
    trainer, _ = trained("recorded", lambda: Written(clamped), work)
    assert {made is not None for made in recordings(trainer).values()} == {is_recorded}


def test_recording_leaves_weights_buffers_and_generators_as_they_are() -> None:
    model, weights = create(MODULES["batch norm"], 0, torch.float64)
    bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording((4,)))
    bound.load(weights)
    before, numpy, python = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # type: ignore[index]
    x, y = torch.randn(4, 6, dtype=torch.float64, generator=torch.Generator()), torch.tensor([0, 1, 2, 3])
    assert bound.record([x], [y], [len(y)])
    assert torch.equal(bound.weights.params, weights.params)
    assert torch.equal(bound.weights.buffers, weights.buffers)
    assert torch.equal(bound.weights.counters, weights.counters)
    assert torch.equal(torch.get_rng_state(), before)
    assert (np.random.get_state()[1].tolist(), random.getstate()) == (numpy, python)  # type: ignore[index]


def test_a_product_makes_the_step_of_its_weight_after_the_weight_was_read() -> None:
    model, weights = create(MODULES["skip and norm"], 0, torch.float64)
    bound = BoundModule(model, weights, TASK, torch.float64, plain=True, recording=StepRecording((4,)))
    bound.load(weights)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    assert bound.record([x], [y], [len(y)])
    step = bound._recorded._steps[4]
    assert step is not None
    lines = str(step.__doc__).splitlines()
    assert sum(".addmm_(" in line for line in lines) == 2
    assert not any("detach" in line for line in lines)


def test_a_loss_of_ones_own_is_recorded_with_its_values() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)

    model, weights = create(MODULES["skip and norm"], 0, torch.float64)
    x, y = torch.randn(4, 6, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    own = Task(loss, None)
    got, wanted = (
        BoundModule(model, weights, own, torch.float64, plain=True, recording=StepRecording(recorded))
        for recorded in ((4,), ())
    )
    for bound in (got, wanted):
        bound.load(weights)
        bound.record([x], [y], [len(y)])
    assert got._recorded._steps[4] is not None
    for batch in (x, x.flip(0), -x):
        with torch.no_grad():
            (_, losses), (_, expected) = (bound.differentiate(batch, y, None, -LR) for bound in (got, wanted))
        assert losses is not None
        assert expected is not None
        torch.testing.assert_close(losses, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(got.weights.params, wanted.weights.params, rtol=1e-12, atol=1e-12)


def test_auto_takes_it_for_a_module_of_ones_own_and_says_why_not() -> None:
    data = dataset((6,), classes=4)
    made = raysim.Experiment.model_validate(
        {"cohort": {"size": 2}, "client": {"batch_size": 4}, "engine": {"workers": 0}}
    )
    assert resolve(made, dataset=data, model=MODULES["skip and norm"]).choice.trainer == "interpreted"
    refused = resolve(made, dataset=data, model=REFUSED["branch on a value"][0]).choice
    assert refused.trainer == "one_by_one"
    assert "reads a value of a tensor" in refused.why
    full = made.model_copy(update={"client": made.client.model_copy(update={"batch_size": "full"})})
    assert resolve(full, dataset=data, model=MODULES["skip and norm"]).choice.trainer == "one_by_one"
    asked = made.model_copy(update={"engine": made.engine.model_copy(update={"trainer": "recorded"})})
    with pytest.raises(raysim.ModelError, match="recorded"):
        resolve(asked, dataset=data, model=REFUSED["item"][0])


class DeepConvolution(nn.Module):
    """A kernel of more than a million numbers over small maps."""

    def __init__(self, stride: int, bias: bool, size: int) -> None:
        super().__init__()
        self.size = size
        self.first = nn.Conv2d(2, 256, 1)
        self.deep = nn.Conv2d(256, 512, 3, stride, padding=1, bias=bias)
        self.out = nn.Linear(512, 4)

    def forward(self, x: Tensor) -> Tensor:
        maps = torch.tanh(self.deep(self.first(x.view(len(x), 2, self.size, self.size))))
        return cast(Tensor, self.out(maps.mean((2, 3))))


@pytest.mark.parametrize(("stride", "bias", "size", "products"), [(1, True, 3, 1), (2, False, 6, 1), (1, False, 6, 0)])
@pytest.mark.parametrize("plain", [True, False])
def test_the_gradient_of_a_deep_kernel_is_a_product(
    stride: int, bias: bool, size: int, products: int, plain: bool
) -> None:
    model, weights = create(lambda: DeepConvolution(stride, bias, size), 0, torch.float64)
    got = BoundModule(model, weights, TASK, torch.float64, plain=plain, recording=StepRecording((4,)))
    wanted = BoundModule(model, weights, TASK, torch.float64, plain=plain)
    x, y = torch.randn(4, 2 * size * size, dtype=torch.float64), torch.tensor([0, 1, 2, 3])
    for bound in (got, wanted):
        bound.load(weights)
    assert got.record([x], [y], [4])
    # One of the product's operands is what each position of the map sees.
    assert str(got._recorded._steps[4].__doc__).count("2304, -1") == products
    alpha = -0.1 if plain else 1.0
    with torch.no_grad():
        got.differentiate(x, y, None, alpha)
    wanted.differentiate(x, y, None, alpha)
    torch.testing.assert_close(got.gradient, wanted.gradient, rtol=1e-10, atol=1e-12)
    assert not torch.equal(got.gradient, weights.params)


class GrowsAtLength(nn.Module):
    """What batches of one length do to it shows in all that come behind them."""

    def __init__(self, length: int, by: str) -> None:
        super().__init__()
        self.inner, self.drop, self.length, self.by = nn.Linear(6, 4), nn.Dropout(0.0), length, by
        self.factor = 1.0

    def forward(self, x: Tensor) -> Tensor:
        if len(x) == self.length:
            if self.by == "attribute":
                self.factor += 1
            else:
                self.drop.p = 1.0
        made: Tensor = self.drop(self.inner(x))
        return made * self.factor


@pytest.mark.parametrize("short_batches", ["resized", "recorded", "by autograd"])
@pytest.mark.parametrize("trainer", ["recorded", "interpreted"])
@pytest.mark.parametrize("by", ["attribute", "probability of a dropout"])
@pytest.mark.parametrize("length", [1, 4])
def test_no_step_is_replayed_beside_one_that_changes_the_module(
    length: int, by: str, trainer: str, short_batches: ShortBatches
) -> None:
    def module() -> nn.Module:
        return GrowsAtLength(length, by)

    _, rows = trained(trainer, module, {}, short_batches=short_batches)
    _, wanted = trained("one_by_one", module, {})
    for row, other in zip(rows, wanted, strict=True):
        for got, expected in zip(row, other, strict=True):
            torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


class CopiesWeight(nn.Module):
    """Its outputs are a copy of its parameter, to which a plain step writes."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = nn.Parameter(torch.arange(3.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.mean.clone().expand(len(x), 3)


@pytest.mark.parametrize("interprets", [False, True])
def test_a_copy_of_a_weight_keeps_what_it_was_before_the_step(interprets: bool) -> None:
    model, weights = create(CopiesWeight, 0, torch.float64)
    recording = StepRecording((4,), interprets=interprets)
    bound = BoundModule(model, weights, task_for(3, None), torch.float64, plain=True, recording=recording)
    bound.load(weights)
    x, y = torch.zeros(4, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 2])
    with torch.no_grad():
        assert bound.record([x], [y], [4])
        outputs, _ = bound.differentiate(x, y, None, -0.5)
    assert outputs is not None
    assert outputs.tolist() == [[0.0, 1.0, 2.0]] * 4
    assert bound.weights.params[:3].tolist() != [0.0, 1.0, 2.0]
