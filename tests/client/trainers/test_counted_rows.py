"""Recorded steps of texts with padding make the outputs of those places alone that count, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.section import ClientSection
from raysim.client.trainers.class_scores import MANY
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel import operators
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.trainer_choice import TrainerChoice, TrainerName
from raysim.data.on_device import Examples
from raysim.models.model import create
from raysim.models.task import Task, task_for
from tests.support.kernel import needs_kernel

WORDS, PLACES, PADDING = MANY + 13, 6, 7
LENGTHS = (6, 3, 1, 5, 0, 6, 0, 0, 2, 4)
"""Places of each text that count."""
PLAIN = {"batch_size": 4}
COUNTED = KernelsUsed(classes=True, counted=True)


@pytest.fixture(autouse=True)
def _needs_a_compiler() -> None:
    needs_kernel()


class Tied(nn.Module):
    """Scores words by their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.hidden = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.scores = nn.Linear(8, WORDS, bias=False)
        self.scores.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        made: Tensor = self.scores(self.hidden(self.words(x)).tanh())
        return made


class Unturned(nn.Module):
    """Has its last weights as a script writes them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(WORDS, 8), nn.Parameter(torch.ones(8, WORDS))
        nn.init.normal_(self.scores)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        made: Tensor = self.words(x).tanh().flatten(0, 1) @ self.scores
        return made.view(*x.shape, WORDS)


class Recurrent(nn.Module):
    """Goes through the places."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.states = nn.Embedding(WORDS, 8), nn.GRU(8, 5, batch_first=True)
        self.scores = nn.Linear(5, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        made: Tensor = self.scores(self.states(self.words(x))[0])
        return made


class Last(nn.Module):
    """Does something with the scores of its last layer. by: what."""

    def __init__(self, by: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.words, self.scores, self.by = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS), by

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        return self.by(self.scores(self.words(x).tanh()))


def _by_place_first(scores: Tensor) -> Tensor:
    return scores.transpose(0, 1).contiguous().transpose(0, 1)


def _less_the_mean(scores: Tensor) -> Tensor:
    return scores - scores.mean(-1, keepdim=True)


class Attentive(nn.Module):
    """Attention, and behind it what takes each place by itself: norms, a gate, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Parameter(torch.randn(PLACES, 8))
        self.mix, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.scale = nn.LayerNorm(8), nn.Parameter(torch.ones(8))
        self.gate, self.wide, self.narrow = nn.Linear(8, 12), nn.Linear(8, 12), nn.Linear(12, 8, bias=False)
        self.scores = nn.Linear(8, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        h = self.words(x) + self.places
        query, key, value = self.mix(self.norm(h)).chunk(3, -1)
        h = h + self.out(functional.scaled_dot_product_attention(query, key, value, is_causal=True))
        rooted = h * (h.square().mean(-1, keepdim=True) + 1e-3).rsqrt() * self.scale
        h = h + self.narrow(functional.silu(self.gate(rooted)) * self.wide(rooted))
        made: Tensor = self.scores(h)
        return made


class Joined(nn.Module):
    """Halves that are changed each by itself and put together again, under a dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.both = nn.Embedding(WORDS, 8), nn.Linear(8, 8)
        self.dropout, self.scores = nn.Dropout(0.3), nn.Linear(8, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        one, other = self.both(self.words(x)).split(4, -1)
        made: Tensor = self.scores(self.dropout(torch.cat([one.sigmoid() * other, one.exp() - other], -1)))
        return made


class Written(nn.Module):
    """Writes to a tensor of which something was made by place before."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.scores = nn.Embedding(WORDS, 8), nn.Linear(8, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        h = self.words(x)
        half = 0.5 * h
        h.add_(1.0)
        made: Tensor = self.scores(half.tanh() + h)
        return made


def dense() -> nn.Module:
    """Two layers behind the words."""
    return nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 9), nn.ReLU(), nn.LayerNorm(9), nn.Linear(9, WORDS))


FOUND: dict[str, Callable[[], nn.Module]] = {
    "dense": dense,
    "without bias": lambda: nn.Sequential(nn.Embedding(WORDS, 8), nn.Tanh(), nn.Linear(8, WORDS, bias=False)),
    "in place": lambda: nn.Sequential(nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.ReLU(True), nn.Linear(8, WORDS)),
    "tied": Tied,
    "unturned": Unturned,
    "recurrent": Recurrent,
    "attentive": Attentive,
    "joined": Joined,
    "written": Written,
    "halved": lambda: Last(lambda scores: 0.5 * scores),
    "less the mean": lambda: Last(_less_the_mean),
    "by place first": lambda: Last(_by_place_first),
    "some of more": lambda: Last(lambda scores: torch.cat([scores, scores], -1)[..., 3 : WORDS + 3]),
    "capped": lambda: Last(lambda scores: 3 * (scores / 3).tanh()),
}
NOT_FOUND: dict[str, Callable[[], nn.Module]] = {
    "turned": lambda: Last(lambda scores: scores.roll(1, 0).roll(-1, 0)),
    "less the mean of a text": lambda: Last(lambda scores: scores - scores.mean(1, keepdim=True)),
}


class Lstm(nn.Module):
    """Goes through the places by torch's LSTM. by: what is done with it, given the layer and its inputs."""

    def __init__(self, by: Callable[[Any, Tensor], Tensor], units: int = 12, **kind: Any) -> None:
        super().__init__()
        self.words, self.states, self.by = nn.Embedding(WORDS, 8), nn.LSTM(8, 12, **kind), by
        self.first = nn.Parameter(torch.zeros(1, 12))
        self.register_buffer("counter", torch.zeros(1, 1, 12))
        self.scores = nn.Linear(units, WORDS)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of each place."""
        made: Tensor = self.scores(self.by(self, self.words(x)))
        return made


def _outputs(layer: Any, h: Tensor) -> Tensor:
    made: Tensor = layer.states(h)[0]
    return made


def _by_places(layer: Any, h: Tensor) -> Tensor:
    made: Tensor = layer.states(h.transpose(0, 1))[0].transpose(0, 1)
    return made


def _and_inputs(layer: Any, h: Tensor) -> Tensor:
    return torch.cat([functional.dropout(layer.states(h)[0], 0.0).tanh(), h], -1)


def _from_a_parameter(layer: Any, h: Tensor) -> Tensor:
    first = layer.first.expand(1, len(h), -1).contiguous()
    made: Tensor = layer.states(h, (first, first))[0]
    return made


def _from_a_buffer(layer: Any, h: Tensor) -> Tensor:
    first = layer.counter.expand(1, len(h), -1).contiguous()
    made: Tensor = layer.states(h, (first, first))[0]
    return made


def _and_the_last_state(layer: Any, h: Tensor) -> Tensor:
    made, (last, _) = layer.states(h)
    return made + last.transpose(0, 1)


def _and_the_place_behind(layer: Any, h: Tensor) -> Tensor:
    made: Tensor = layer.states(h)[0]
    return made + 0.5 * made.roll(-1, 1)


PACKED: dict[str, Callable[[], nn.Module]] = {
    "one layer": lambda: Lstm(_outputs, batch_first=True),
    "without biases": lambda: Lstm(_outputs, batch_first=True, bias=False),
    "by places": lambda: Lstm(_by_places),
    "and inputs": lambda: Lstm(_and_inputs, units=20, batch_first=True),
    # A layer that begins with the last place goes through all of them, and so does what it reads.
    "bidirectional": lambda: Lstm(_outputs, units=24, batch_first=True, bidirectional=True),
    "bidirectional, two layers": lambda: Lstm(_outputs, units=24, batch_first=True, bidirectional=True, num_layers=2),
    "two layers": lambda: Lstm(_outputs, batch_first=True, num_layers=2),
}
NOT_PACKED: dict[str, Callable[[], nn.Module]] = {
    "through texts": lambda: Lstm(_outputs),
    "from a parameter": lambda: Lstm(_from_a_parameter, batch_first=True),
    "from a buffer": lambda: Lstm(_from_a_buffer, batch_first=True),
    "and the last state": lambda: Lstm(_and_the_last_state, batch_first=True),
    "and the place behind": lambda: Lstm(_and_the_place_behind, batch_first=True),
}


def words() -> Tensor:
    """Texts with padding, and the word behind each."""
    draws = torch.Generator().manual_seed(2)
    words = torch.randint(PADDING + 1, WORDS, (len(LENGTHS), PLACES + 1), generator=draws)
    for row, length in enumerate(LENGTHS):
        words[row, length + 1 :] = PADDING
        # One between others does not count either, as where a script masks words.
        words[row, 2] = PADDING if row % 3 == 0 else words[row, 2]
    return words


def texts() -> FederatedDataset:
    given = words().numpy()
    return FederatedDataset.from_clients(train={"it": (given[:, :-1], given[:, 1:])})


def rows_in_c(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each gradient at outputs from now on."""
    rows: list[int] = []
    in_one_pass = operators.class_gradient

    def watched(outputs: Tensor, *others: Tensor) -> Tensor:
        rows.append(len(outputs))
        return in_one_pass(outputs, *others)

    monkeypatch.setattr(operators, "class_gradient", watched)
    return rows


def compared(
    module: Callable[[], nn.Module],
    task: Task,
    given: dict[str, Any],
    rows: list[int],
    kernels: KernelsUsed = COUNTED,
    dtype: torch.dtype = torch.float64,
    rounding: float = 1e-12,
) -> list[int]:
    """Train by autograd and by recorded steps, and compare; return the rows of the steps' gradients."""
    section = ClientSection.model_validate(given)
    model, weights = create(module, 0, dtype)
    members = local_training.members(Examples(texts()), (0,), section, 0, 0, weights.params)

    def trained(trainer: TrainerName, kernels: KernelsUsed) -> Any:
        choice = TrainerChoice.of_size(trainer, 1, short_batches="recorded", kernels=kernels)
        made = make(choice, model, weights, task, section, "float32")
        for _ in range(2):
            # The second time, all steps are recorded.
            rows.clear()
            (one,) = local_training.train(made, weights, members, 0.5, model.params)
        return one.updates

    wanted = trained("one_by_one", KernelsUsed())
    found = trained("recorded", kernels)
    assert (found.delta - wanted.delta).abs().max() < rounding
    assert found.delta.abs().max() > 1e-3
    assert found.loss.tolist() == pytest.approx(wanted.loss.tolist(), rel=rounding)
    assert found.correct.tolist() == wanted.correct.tolist()
    return rows


@pytest.mark.parametrize("by_place", [False, True])
@pytest.mark.parametrize("module", FOUND.values(), ids=FOUND)
def test_outputs_of_those_places_alone_are_made(
    module: Callable[[], nn.Module], by_place: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_for(WORDS, None, padding=PADDING, uncounted=(9,), by_place=by_place)
    rows = compared(module, task, PLAIN, rows_in_c(monkeypatch))
    counted = (words()[:, 1:] != PADDING).sum(1)
    assert len(rows) == 3
    assert sum(rows) == counted.sum()


@pytest.mark.parametrize("module", PACKED.values(), ids=PACKED)
def test_lstms_go_through_those_texts_alone_that_reach_a_place(
    module: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_through = packed_in_c(monkeypatch)
    trained_in_single_precision(module, rows_in_c(monkeypatch))
    place = torch.arange(1, PLACES + 1)
    reached = torch.where(words()[:, 1:] != PADDING, place, 0).amax(1)
    layers = 2 if module is PACKED["two layers"] else 1
    assert sum(gone_through[-3 * layers :]) == layers * reached.sum()


@pytest.mark.parametrize("module", NOT_PACKED.values(), ids=NOT_PACKED)
def test_lstms_of_whose_states_more_is_read_go_through_all(
    module: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    gone_through = packed_in_c(monkeypatch)
    rows = trained_in_single_precision(module, rows_in_c(monkeypatch))
    assert not gone_through
    # The last layer takes those places alone that count.
    assert sum(rows) == (words()[:, 1:] != PADDING).sum()


class _GivenFirst(TorchDispatchMode):
    """Notes how many numbers an operator is given first: by its name, one call after another."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.given: dict[str, list[int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if args and isinstance(args[0], Tensor):
            self.given.setdefault(func.name(), []).append(args[0].numel())
        return func(*args, **(kwargs or {}))


def test_what_takes_each_place_by_itself_behind_attention_takes_those_that_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, weights = create(Attentive, 0, torch.float64)
    section = ClientSection.model_validate(PLAIN)
    members = local_training.members(Examples(texts()), (0,), section, 0, 0, weights.params)
    choice = TrainerChoice.of_size("recorded", 1, short_batches="recorded", kernels=COUNTED)
    trainer = make(choice, model, weights, task_for(WORDS, None, padding=PADDING), section, "float32")
    list(local_training.train(trainer, weights, members, 0.5, model.params))
    with _GivenFirst() as rows:
        list(local_training.train(trainer, weights, members, 0.5, model.params))
    counted = int((words()[:, 1:] != PADDING).sum())
    assert sum(rows.given["aten::silu"]) == sum(rows.given["aten::silu_backward"]) == 12 * counted
    assert sum(rows.given["aten::rsqrt"]) == counted
    # Attention sees all places.
    assert sum(rows.given["aten::native_layer_norm"]) == 8 * len(LENGTHS) * PLACES


def packed_in_c(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows of each packed pass from now on."""
    rows: list[int] = []
    in_c = CompiledLstm.forward_packed

    def watched(self: CompiledLstm, added: Tensor, *others: Any) -> tuple[Tensor, ...]:
        rows.append(len(added))
        return in_c(self, added, *others)

    monkeypatch.setattr(CompiledLstm, "forward_packed", watched)
    return rows


def trained_in_single_precision(module: Callable[[], nn.Module], rows: list[int]) -> list[int]:
    """As `compared`, where torch has its kernel for all places."""
    kernels = KernelsUsed(lstm=True, classes=True, counted=True)
    task = task_for(WORDS, None, padding=PADDING)
    return compared(module, task, PLAIN, rows, kernels, torch.float32, rounding=2e-5)


@pytest.mark.parametrize("module", [dense, Attentive, PACKED["two layers"]], ids=["dense", "attentive", "lstm"])
def test_texts_of_which_nothing_counts_change_nothing(module: Callable[[], nn.Module]) -> None:
    section = ClientSection.model_validate(PLAIN)
    model, weights = create(module, 0, torch.float32)
    given = words().numpy()
    nothing = torch.full((8, PLACES), PADDING).numpy()
    data = FederatedDataset.from_clients(
        train={"it": (given[:, :-1], given[:, 1:]), "other": (given[:8, :-1], nothing)}
    )
    members = local_training.members(Examples(data), (0, 1), section, 0, 0, weights.params)
    kernels = KernelsUsed(lstm=True, classes=True, counted=True)
    choice = TrainerChoice.of_size("recorded", 1, short_batches="recorded", kernels=kernels)
    trainer = make(choice, model, weights, task_for(WORDS, None, padding=PADDING), section, "float32")
    (made,) = local_training.train(trainer, weights, members, 0.5, model.params)
    assert made.updates.delta.any(1).tolist() == [True, False]
    assert made.updates.loss.tolist()[1] == made.updates.correct.tolist()[1] == 0.0


@pytest.mark.parametrize("module", NOT_FOUND.values(), ids=NOT_FOUND)
def test_where_more_is_done_with_outputs_all_are_made(
    module: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    task = task_for(WORDS, None, padding=PADDING)
    rows = compared(module, task, PLAIN, rows_in_c(monkeypatch))
    assert rows == [4 * PLACES, 4 * PLACES, 2 * PLACES]


@pytest.mark.parametrize(
    "given",
    [
        {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9}},
        {"optimizer": {"name": "adam", "lr": 0.01}},
        {"max_grad_norm": 0.1},
        {"correction": {"name": "prox", "mu": 0.1}},
        {"epochs": 2},
    ],
    ids=["momentum", "adam", "clipped", "proximal", "two epochs"],
)
def test_local_steps_of_every_kind_have_them(given: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = compared(dense, task_for(WORDS, None, padding=PADDING), {**PLAIN, **given}, rows_in_c(monkeypatch))
    assert max(rows) < 4 * PLACES


def test_where_that_is_not_used_all_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    task, kernels = task_for(WORDS, None, uncounted=(PADDING,)), KernelsUsed(classes=True)
    rows = compared(dense, task, PLAIN, rows_in_c(monkeypatch), kernels)
    assert rows == [4 * PLACES, 4 * PLACES, 2 * PLACES]


def test_a_label_that_is_no_word_is_an_error() -> None:
    given = words()
    given[5, 3] = WORDS
    data = FederatedDataset.from_clients(train={"it": (given[:, :-1].clamp(max=9).numpy(), given[:, 1:].numpy())})
    section = ClientSection.model_validate(PLAIN)
    model, weights = create(dense, 0, torch.float64)
    members = local_training.members(Examples(data), (0,), section, 0, 0, weights.params)
    choice = TrainerChoice.of_size("recorded", 1, short_batches="recorded", kernels=COUNTED)
    trainer = make(choice, model, weights, task_for(WORDS + 1, None, padding=PADDING), section, "float32")
    with pytest.raises(local_training.ClientFailure) as raised:
        list(local_training.train(trainer, weights, members, 0.5, model.params))
    assert isinstance(raised.value.__cause__, IndexError)
