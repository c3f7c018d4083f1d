"""A trainer's local steps are compared with autograd's: rounding is no difference, and other numbers are one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysim.client import local_training
from raysim.client.chunk_clients import ChunkClients
from raysim.client.local_training import ClientFailure
from raysim.client.section import ClientSection
from raysim.client.trainer import Client, Trainer, Updates
from raysim.client.trainers import compared_trainer
from raysim.client.trainers.compared_trainer import STEPS, ComparedTrainer, is_due
from raysim.client.trainers.construction import Further, make
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.trainer_choice import Precision, TrainerChoice
from raysim.data.on_device import Examples
from raysim.models.model import Model, Weights, create
from raysim.models.task import Task, squared_error, task_for
from tests.support.kernel import needs_kernel
from tests.support.local_updates import LR
from tests.support.trainer_models import MODELS, WORK, dataset

ADAM = {"batch_size": 4, "optimizer": {"name": "adam", "lr": 0.1}}


class WithStatistics(nn.Module):
    """A bias in front of a norm, whose gradient is rounding alone, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.norm(self.first(x))))
        return outputs


class Case:
    """A model, its clients, and trainers of it in float32."""

    def __init__(
        self,
        factory: Callable[[], nn.Module],
        x_shape: tuple[int, ...],
        work: dict[str, Any],
        precision: Precision = "float32",
        classes: int | None = 4,
    ) -> None:
        data = dataset(x_shape, classes)
        self.section, self.precision = ClientSection.model_validate(work), precision
        self.model: Model
        self.weights: Weights
        self.model, self.weights = create(factory, 0, torch.float32)
        self.task: Task = task_for(data.num_classes, None, data.y.padding, by_place=data.y.by_place)
        # Of a batch with a single example there are no statistics.
        has_statistics = isinstance(factory, type) and issubclass(factory, WithStatistics)
        positions = (1, 4) if has_statistics else (0, 1, 2, 3, 4)
        self.clients = local_training.members(Examples(data), positions, self.section, 0, 3, self.weights.params)

    def trainer(self, name: str, sums_gradients: bool = False, winograd: bool = False) -> Trainer:
        kernels = KernelsUsed(winograd=winograd)
        choice = TrainerChoice.of_size(name, 5, short_batches="resized", kernels=kernels)  # type: ignore[arg-type]
        further = Further(sums_gradients=sums_gradients)
        return make(choice, self.model, self.weights, self.task, self.section, self.precision, further)

    def compared(self, trainer: Trainer) -> ComparedTrainer:
        is_squared = self.task.losses is squared_error
        return ComparedTrainer(
            trainer, lambda: self.trainer("one_by_one", True), self.model.params, self.precision, is_squared
        )

    def trained(self, compared: ComparedTrainer, calls: int = 2) -> ComparedTrainer:
        for _ in range(calls):
            list(compared.train(self.weights, self.clients, LR))
        return compared


class Altered:
    """A trainer whose updates are altered on their way."""

    trains_together = False

    def __init__(self, trainer: Trainer, alter: Callable[[Updates], Updates]) -> None:
        self._trainer, self._alter = trainer, alter
        self.trained: list[int] = []
        self.inputs: list[Tensor] = []
        self.windows: list[object] = []

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        clients = ChunkClients.of(clients)
        self.trained.append(int(clients.batches.steps.sum()))
        self.inputs.append(clients.visited_inputs())
        self.windows.append(clients.inputs.windows)
        return map(self._alter, self._trainer.train(broadcast, clients, lr, start))


def test_a_client_is_compared_at_the_second_call_and_eight_times_later_each() -> None:
    assert [count for count in range(1, 10_000) if is_due(count)] == [2, 16, 128, 1024, 8192]


@pytest.mark.parametrize(
    ("trainer", "name"), [*product(["recorded", "interpreted", "fused", "stacked"], MODELS), ("vmap", "written")]
)
@pytest.mark.parametrize("work", [WORK["all at once"], ADAM], ids=["sgd", "adam"])
def test_rounding_is_no_difference(trainer: str, name: str, work: dict[str, Any]) -> None:
    factory, x_shape = MODELS[name]
    case = Case(factory, x_shape, work)
    assert case.trained(case.compared(case.trainer(trainer))).difference(nullcontext) is None


@pytest.mark.parametrize("precision", ["float32", "bf16"])
@pytest.mark.parametrize("work", [WORK["stored order"], ADAM])
@pytest.mark.parametrize("trainer", ["recorded", "interpreted"])
def test_nor_is_what_adam_makes_of_it(trainer: str, work: dict[str, Any], precision: Precision) -> None:
    """Adam makes a step as long as any of a gradient that is rounding alone."""
    case = Case(WithStatistics, (6,), work, precision)
    assert case.trained(case.compared(case.trainer(trainer))).difference(nullcontext) is None


def noisy(updates: Updates) -> Updates:
    """Another step of the bias in front of the norm, as another order of additions gives one."""
    delta = updates.delta.clone()
    delta[:, 32 : 32 + 5] *= -1
    return replace(updates, delta=delta)


def test_what_autograd_makes_otherwise_when_weights_move_a_little_is_no_difference() -> None:
    case = Case(WithStatistics, (6,), ADAM)
    assert case.model.params.names[1] == "first.bias"
    assert case.model.params.offsets[1] == 32
    assert case.trained(case.compared(Altered(case.trainer("one_by_one"), noisy))).difference(nullcontext) is None


class Chaotic(WithStatistics):
    """Its gradients are others wherever the weights are moved to."""

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = torch.sin(1e7 * super().forward(x))
        return outputs


def test_nor_is_another_gradient_where_weights_that_move_a_little_give_another() -> None:
    case = Case(Chaotic, (6,), WORK["stored order"])
    trainer = Altered(case.trainer("one_by_one"), lambda updates: replace(updates, delta=updates.delta.flip(1)))
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None


def test_nor_is_the_last_digit_of_a_weight_that_does_not_move() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    digit = torch.finfo(torch.float32).eps * case.weights.params
    trainer = Altered(case.trainer("one_by_one"), lambda updates: replace(updates, delta=updates.delta + digit))
    compared = case.compared(trainer)
    for _ in range(2):
        list(compared.train(case.weights, case.clients, 1e-10))
    assert compared.difference(nullcontext) is None


def with_other_weights(updates: Updates) -> Updates:
    delta = updates.delta.clone()
    # first.weight; not by much of the whole.
    delta[:, :30] *= 1.1
    return replace(updates, delta=delta)


def with_another_bias(updates: Updates) -> Updates:
    delta = updates.delta.clone()
    delta[:, -32:] = 0
    return replace(updates, delta=delta)


def with_nothing_finite(updates: Updates) -> Updates:
    return replace(updates, delta=updates.delta * torch.nan)


def with_another_loss(updates: Updates) -> Updates:
    return replace(updates, loss=updates.loss * 1.03)


def with_other_buffers(updates: Updates) -> Updates:
    return replace(updates, buffers=updates.buffers * 1.1)


def with_other_counters(updates: Updates) -> Updates:
    return replace(updates, counters=updates.counters + 1)


@pytest.mark.parametrize("work", [WORK["stored order"], ADAM])
@pytest.mark.parametrize(
    ("alter", "how"),
    [
        (with_other_weights, "changes 'first.weight' by other numbers: the difference has the norm "),
        (with_another_bias, "changes 'last.bias' by other numbers: the difference has the norm "),
        (with_nothing_finite, "by other numbers: the difference has the norm nan"),
        (with_another_loss, "has the loss "),
        (with_other_buffers, "leaves other numbers in the module's buffers"),
        (with_other_counters, "leaves other numbers in the module's buffers"),
    ],
)
def test_other_numbers_are_a_difference(alter: Callable[[Updates], Updates], how: str, work: dict[str, Any]) -> None:
    case = Case(WithStatistics, (6,), work)
    found = case.trained(case.compared(Altered(case.trainer("one_by_one"), alter))).difference(nullcontext)
    assert found is not None
    assert how in found.how
    assert found.position == case.clients.positions[0]


def test_only_single_local_steps_of_one_client_are_made_again() -> None:
    case = Case(WithStatistics, (6,), WORK["epochs with short last batches"])
    trainer = Altered(case.trainer("one_by_one"), lambda updates: updates)
    compared = case.trained(case.compared(trainer))
    steps = case.clients.batches.steps
    assert trainer.trained == [steps.sum()] * 2
    assert compared.difference(nullcontext) is None
    assert steps[0] > STEPS
    assert trainer.trained == [steps.sum()] * 2 + [1] * STEPS
    assert compared.difference(nullcontext) is None
    assert case.trained(compared, 1).difference(nullcontext) is None
    assert trainer.trained == [steps.sum()] * 2 + [1] * STEPS + [steps.sum()]


def with_half(updates: Updates) -> Updates:
    return replace(updates, delta=updates.delta * 0.5)


class Gated(WithStatistics):
    """A parameter that is 0 and does not move."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(3))


def test_what_does_not_move_is_not_named() -> None:
    case = Case(Gated, (6,), WORK["stored order"])
    found = case.trained(case.compared(Altered(case.trainer("one_by_one"), with_half))).difference(nullcontext)
    assert found is not None
    assert "'gate'" not in found.how


def test_the_step_counts_and_not_where_it_begins() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    far = case.weights.params + 0.5 * torch.randn(case.weights.params.shape, generator=torch.Generator().manual_seed(0))

    def longer(updates: Updates) -> Updates:
        moved = far - case.weights.params
        return replace(updates, delta=moved + 1.5 * (updates.delta - moved))

    case.clients = case.clients.with_each(lambda client: replace(client, begin=far))
    assert case.trained(case.compared(case.trainer("recorded"))).difference(nullcontext) is None
    found = case.trained(case.compared(Altered(case.trainer("one_by_one"), longer))).difference(nullcontext)
    assert found is not None


def test_a_large_model_is_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared_trainer, "LARGEST", 100)
    case = Case(WithStatistics, (6,), WORK["stored order"])
    assert case.trained(case.compared(Altered(case.trainer("one_by_one"), with_half))).difference(nullcontext) is None


class OnBlank(nn.Module):
    """Zero biases, and images whose background is 0: where relu has its kink much is exactly 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)
        for layer in (self.first, self.second, self.last):
            nn.init.zeros_(layer.get_parameter("bias"))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(torch.relu(self.second(torch.relu(self.first(x)))).mean((2, 3)))
        return outputs


@pytest.mark.parametrize("trainer", ["recorded", "interpreted"])
def test_a_kink_that_rounding_decides_is_no_difference(trainer: str) -> None:
    needs_kernel()
    case = Case(OnBlank, (1, 12, 12), WORK["stored order"])
    case.clients.x[:, :, 5:] = 0
    made = case.trainer(trainer, winograd=True)
    assert case.trained(case.compared(made)).difference(nullcontext) is None


def test_nor_is_what_rounding_would_pass_at_zero_biases() -> None:
    case = Case(OnBlank, (1, 12, 12), WORK["stored order"])
    case.clients.x[:, :, 5:] = 0
    at = case.model.params.offsets[case.model.params.names.index("second.bias")]

    def passed(updates: Updates) -> Updates:
        delta = updates.delta.clone()
        delta[:, at : at + 8] *= 1.5
        return replace(updates, delta=delta)

    assert case.trained(case.compared(Altered(case.trainer("one_by_one"), passed))).difference(nullcontext) is None


class Kink(nn.Module):
    """A relu of a single number that is all but 0."""

    def __init__(self, sign: float) -> None:
        super().__init__()
        self.sign, self.kink, self.last = sign, nn.Parameter(torch.tensor([1e-9 * sign])), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        passed = torch.relu(self.sign * self.kink)
        outputs: Tensor = self.last(x) + torch.cat([passed, passed.new_zeros(3)])
        return outputs


def without_the_first(number: int) -> Callable[[Updates], Updates]:
    def alter(updates: Updates) -> Updates:
        delta = updates.delta.clone()
        delta[:, : 32 * number] = 0
        return replace(updates, delta=delta)

    return alter


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_kink_at_the_weights_is_no_difference_on_either_side(sign: float) -> None:
    case = Case(lambda: Kink(sign), (6,), WORK["stored order"])
    assert case.model.params.names[0] == "kink"
    trainer = Altered(case.trainer("one_by_one"), without_the_first(1))
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None


def test_a_wrong_step_is_found_where_squared_errors_are_small() -> None:
    case = Case(lambda: nn.Linear(6, 1), (6,), ADAM, classes=None)
    case.clients.y.mul_(1e-4)
    case.weights.params.mul_(1e-4)

    def turned(updates: Updates) -> Updates:
        return replace(updates, delta=-updates.delta)

    for alter, is_found in ((turned, True), (lambda updates: updates, False)):
        found = case.trained(case.compared(Altered(case.trainer("one_by_one"), alter))).difference(nullcontext)
        assert (found is not None) == is_found


class Coins(nn.Module):
    """Numbers that count or not by their last digits, as a relu of what is rounding alone does."""

    def __init__(self) -> None:
        super().__init__()
        begin = torch.tensor([3_000_000.25 / 2**22])
        self.coins = nn.ParameterList(nn.Parameter(begin.clone()) for _ in range(3))
        self.last = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        counted = [coin * ((coin.detach() * 2**22).round() % 2 == 0) for coin in self.coins]
        passed = torch.cat(counted).sum(0, keepdim=True)
        outputs: Tensor = self.last(x) + torch.cat([passed, passed.new_zeros(3)])
        return outputs


def test_nor_is_what_last_digits_decide() -> None:
    case = Case(Coins, (6,), WORK["stored order"])
    assert case.model.params.names[2] == "coins.2"
    trainer = Altered(case.trainer("one_by_one"), without_the_first(3))
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None


class Flipped(nn.Module):
    """An output and a buffer that a last digit makes much larger."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(1))
        self.coin, self.last = nn.Parameter(torch.tensor([3_000_000.25 / 2**22])), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        coin = (self.coin.detach() * 2**22).round() % 2
        self.seen.fill_(1).add_(coin)
        outputs: Tensor = self.last(x) + 0 * self.coin + coin * x.new_tensor([50.0, 0, 0, 0])
        return outputs


@pytest.mark.parametrize("alter", [with_another_loss, with_other_buffers])
def test_nor_is_a_loss_or_a_buffer_that_last_digits_decide(alter: Callable[[Updates], Updates]) -> None:
    case = Case(Flipped, (6,), WORK["stored order"])
    trainer = Altered(case.trainer("one_by_one"), alter)
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None


def test_weights_are_moved_in_opposite_pairs() -> None:
    case = Case(lambda: nn.Linear(6, 4), (6,), WORK["stored order"])
    compared = case.trained(case.compared(case.trainer("recorded")))
    call = compared._call
    assert call is not None
    moves = [compared._moved(call, way).begin - call.begin for way in range(compared_trainer.WAYS)]
    for one, other in zip(moves[::2], moves[1::2], strict=True):
        assert one.norm() > 0
        torch.testing.assert_close(one, -other, rtol=0, atol=2e-7)
    assert not torch.allclose(moves[0], moves[2], rtol=0, atol=2e-7)


class Certain(nn.Module):
    """Outputs of label 0 alone, by two numbers, one of which has nearly no part in it."""

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin, self.gains = margin, nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        first = self.margin + (self.gains * x.new_tensor([12.0, 0.02])).sum()
        return torch.cat([first.expand(len(x), 1), x.new_zeros(len(x), 3)], 1)


@pytest.mark.parametrize("margin", [0.0, 12.0])
def test_what_rounding_leaves_of_a_small_loss_is_no_difference(margin: float) -> None:
    case = Case(lambda: Certain(margin), (6,), ADAM)
    case.clients.y[:] = 0

    def turned(updates: Updates) -> Updates:
        delta = updates.delta.clone()
        delta[:, 1] *= -1
        return replace(updates, delta=delta)

    found = case.trained(case.compared(Altered(case.trainer("one_by_one"), turned))).difference(nullcontext)
    assert (found is None) == bool(margin)


def test_the_client_is_another_one_each_time() -> None:
    factory, x_shape = MODELS["mlp"]
    case = Case(factory, x_shape, WORK["stored order"])
    compared = case.compared(Altered(case.trainer("one_by_one"), with_another_bias))
    found = [case.trained(compared, calls).difference(nullcontext) for calls in (2, 14)]
    assert [each and each.position for each in found] == [2, 0]


def test_augmented_examples_are_those_of_the_step() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    visits = case.clients.visited_inputs()
    augmented = visits + torch.arange(len(visits), dtype=visits.dtype)[:, None]
    case.clients = replace(case.clients, augmented=augmented)
    trainer = Altered(case.trainer("one_by_one"), lambda updates: updates)
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None
    first, last = trainer.inputs[2], trainer.inputs[-1]
    assert torch.equal(first, augmented[:4])
    assert torch.equal(last, augmented[16:20])


def test_a_single_step_has_no_windows_of_several() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    case.clients = case.clients.with_each(lambda client: replace(client, windows=((1, 2),)))
    trainer = Altered(case.trainer("one_by_one"), lambda updates: updates)
    assert case.trained(case.compared(trainer)).difference(nullcontext) is None
    assert trainer.windows[0] == (((1, 2),),) * 2
    assert trainer.windows[2:] == [((),)] * STEPS


def test_a_step_in_which_autograd_makes_no_finite_numbers_says_nothing() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    case.weights.params[0] = torch.nan
    compared = case.compared(Altered(case.trainer("one_by_one"), with_other_weights))
    assert case.trained(compared).difference(nullcontext) is None


def test_an_error_of_user_code_names_the_client() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    compared = case.trained(case.compared(case.trainer("one_by_one")))

    def fails() -> Trainer:
        raise KeyError("my own mistake")

    compared._by_autograd = fails
    with pytest.raises(ClientFailure) as caught:
        compared.difference(nullcontext)
    assert caught.value.position == case.clients.positions[0]


def test_vectors_that_training_goes_on_with_are_those_of_its_beginning() -> None:
    case = Case(WithStatistics, (6,), WORK["stored order"])
    offset = 0.1 * torch.randn(case.weights.params.shape, generator=torch.Generator().manual_seed(0))
    clients = case.clients.with_each(lambda client: replace(client, offset=offset))
    compared = case.compared(case.trainer("recorded"))
    for _ in range(2):
        list(compared.train(case.weights, clients, LR))
    call = compared._call
    assert call is not None
    expected = offset.clone()
    offset.zero_()
    assert torch.equal(call.client.offset, expected)  # type: ignore[arg-type]
    assert compared.difference(nullcontext) is None
