"""Every trainer makes the same updates: those of the definition, local SGD written down with torch.optim."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from raysim import FederatedDataset
from raysim.client import local_training
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.section import ClientSection
from raysim.client.trainers.construction import make
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.data import DatasetWriter, Field
from raysim.data.on_device import Examples
from raysim.models import lstm_char, lstm_word, transformer_word
from raysim.models.model import create
from raysim.models.task import task_for
from tests.support.local_updates import LR, assert_same, train
from tests.support.trainer_models import MODELS, SIZES, WORK, dataset

GENERAL = ("one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap")
TRAINERS = (*GENERAL, "compiled")
TRANSFORMER = transformer_word.TransformerWord(embedding=6, width=8, heads=2, hidden=5, layers=2)

TEXT_MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "lstm_char": (partial(lstm_char.make, lstm_char.LstmChar(embedding=3, hidden=5), (6,), 4), (6,)),
    "lstm_char with one bias": (
        partial(lstm_char.make, lstm_char.LstmChar(embedding=3, hidden=5, initial="keras"), (6,), 4),
        (6,),
    ),
    "lstm_word": (partial(lstm_word.make, lstm_word.LstmWord(embedding=3, hidden=5, layers=2), (6,), 4), (6,)),
    "lstm_word without projection": (
        partial(lstm_word.make, lstm_word.LstmWord(embedding=3, hidden=5, layers=2, projection=False), (6,), 4),
        (6,),
    ),
    "transformer_word": (
        partial(transformer_word.make, TRANSFORMER.model_copy(update={"dropout": 0.0}), (6,), 4),
        (6,),
    ),
}


def texts(x_shape: tuple[int, ...], classes: int) -> FederatedDataset:
    """Words below `classes`, with a target at every place."""
    draw = np.random.default_rng(0)
    return FederatedDataset.from_clients(
        train={
            f"client of {n}": (draw.integers(0, classes, (n, *x_shape)), draw.integers(0, classes, (n, *x_shape)))
            for n in SIZES
        }
    )


def by_definition(
    factory: Callable[[], nn.Module], data: FederatedDataset, work: dict[str, Any], position: int
) -> dict[str, torch.Tensor]:
    """y <- y - lr (clipped gradient + decay y, with momentum), batch after batch, by torch.optim.SGD."""
    section = ClientSection.model_validate(work)
    model, weights = create(factory, 0, torch.float64)
    with torch.random.fork_rng():
        module = factory().double()
    module.load_state_dict(weights.to_named(model))
    own = section.optimizer
    assert isinstance(own, ClientSgd)
    optimizer = torch.optim.SGD(module.parameters(), LR, momentum=own.momentum, weight_decay=own.weight_decay)
    (member,) = local_training.members(Examples(data), (position,), section, 0, 3, weights.params)
    order, bounds = torch.from_numpy(member.batches.order), member.batches.bounds
    loss_sum = hits = 0.0
    for start, stop in pairwise(bounds):
        x, y = member.x[order[start:stop]], member.y[order[start:stop]]
        outputs = module(x)
        if data.num_classes is None:
            loss = functional.mse_loss(outputs.view(y.shape), y)
        else:
            if data.y.by_place:
                assert data.y.padding is not None
                loss = functional.cross_entropy(outputs.flatten(0, -2), y.flatten(), ignore_index=data.y.padding)
            else:
                loss = mean_loss(outputs, y, data.y.padding)
            hits += float((outputs.argmax(-1) == y).double().mean()) * (stop - start)
        optimizer.zero_grad()
        loss.backward()
        if section.max_grad_norm is not None:
            gradients = [p.grad for p in module.parameters() if p.grad is not None]
            norm = torch.cat([g.flatten() for g in gradients]).norm().item()
            for gradient in gradients:
                gradient.mul_(min(1.0, section.max_grad_norm / norm))
        optimizer.step()
        loss_sum += loss.item() * (stop - start)
    trained = model.params.flatten({n: p.detach() for n, p in module.named_parameters()}, torch.float64)
    return {
        "delta": trained - weights.params,
        "loss": torch.tensor(loss_sum, dtype=torch.float64),
        "correct": torch.tensor(hits if data.num_classes else torch.nan, dtype=torch.float64),
        "seen": torch.tensor(bounds[-1]),
    }


def mean_loss(outputs: torch.Tensor, y: torch.Tensor, padding: int | None) -> torch.Tensor:
    """Cross entropy by torch: the mean over examples of each one's mean over its places, padding left out."""
    if padding is None:
        return functional.cross_entropy(outputs.flatten(0, -2), y.flatten())
    sums = [
        functional.cross_entropy(own, targets, ignore_index=padding, reduction="sum")
        / max(1, int((targets != padding).sum()))
        for own, targets in zip(outputs, y, strict=True)
    ]
    return torch.stack(sums).mean()


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_follows_the_definition_of_local_training(trainer: str, work: dict[str, Any]) -> None:
    factory, shape = MODELS["mlp"]
    data = dataset(shape, classes=4)
    got = train(trainer, factory, data, work)
    for row in range(len(SIZES)):
        own = {name: values[row] for name, values in got.items()}
        assert_same(own, by_definition(factory, data, work, row))


@pytest.mark.parametrize(
    ("trainer", "name"),
    [
        *product(["compiled"], ["linear", "mlp_tanh"]),
        *product(GENERAL, ["linear", "mlp_tanh", "cnn_mcmahan", "norms", "written", "no channels"]),
    ],
)
def test_a_trainer_follows_the_definition_for_every_family(trainer: str, name: str) -> None:
    factory, shape = MODELS[name]
    data = dataset(shape, classes=4)
    got = train(trainer, factory, data, {"batch_size": 4})
    for row in range(len(SIZES)):
        own = {key: values[row] for key, values in got.items()}
        assert_same(own, by_definition(factory, data, {"batch_size": 4}, row))


@pytest.mark.parametrize("work", [{"batch_size": 4, "epochs": 2}, WORK["all at once"]], ids=["plain", "all at once"])
@pytest.mark.parametrize(
    ("trainer", "name"),
    # vmap refuses an LSTM: torch has no batching rule for it.
    [(trainer, name) for trainer in GENERAL for name in TEXT_MODELS if trainer != "vmap" or name == "transformer_word"],
)
def test_a_trainer_follows_the_definition_for_models_of_texts(trainer: str, name: str, work: dict[str, Any]) -> None:
    factory, shape = TEXT_MODELS[name]
    data = texts(shape, classes=4)
    got = train(trainer, factory, data, work)
    for row in range(len(SIZES)):
        own = {key: values[row] for key, values in got.items()}
        assert_same(own, by_definition(factory, data, work, row))


def padded(places: int, path: Path) -> FederatedDataset:
    """Texts of 0 to 6 words, padded to so many places: 0 is padding, 1 to 3 are words."""
    draw = np.random.default_rng(0)
    field = Field((places,), "int64")
    with DatasetWriter(path, field, replace(field, padding=0), 4) as to:
        for n in SIZES:
            real = np.arange(6) < draw.integers(0, 7, (n, 1))
            x, y = (np.pad(draw.integers(1, 4, (n, 6)) * real, ((0, 0), (0, places - 6))) for _ in range(2))
            to.write("train", f"client of {n}", x, y)
    return FederatedDataset.open(path)


@pytest.mark.parametrize(
    ("trainer", "name"),
    [(trainer, name) for trainer in GENERAL for name in TEXT_MODELS if trainer != "vmap" or name == "transformer_word"],
)
def test_padding_changes_nothing(trainer: str, name: str, tmp_path: Path) -> None:
    """Texts padded to nine places train as texts padded to six: by the mean over their words, in every trainer."""
    factory, work = TEXT_MODELS[name][0], {"batch_size": 4}
    short, long = (padded(places, tmp_path / str(places)) for places in (6, 9))
    got = train(trainer, factory, long, work)
    for row in range(len(SIZES)):
        wanted = by_definition(factory, short, work, row)
        del wanted["correct"]
        assert_same({key: values[row] for key, values in got.items()}, wanted)


def of_places(path: Path) -> FederatedDataset:
    """Texts of 1 to 6 words, whose places weigh alike; padding is not a class."""
    draw = np.random.default_rng(0)
    field = Field((6,), "int64")
    with DatasetWriter(path, field, replace(field, padding=-1, by_place=True), 4) as to:
        for n in SIZES:
            x, y = draw.integers(0, 4, (2, n, 6))
            to.write("train", f"client of {n}", x, np.where(np.arange(6) < draw.integers(1, 7, (n, 1)), y, -1))
    return FederatedDataset.open(path)


@pytest.mark.parametrize("work", [{"batch_size": 4, "epochs": 2}, WORK["all at once"]], ids=["plain", "all at once"])
@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused"])
def test_places_of_a_batch_may_weigh_alike(trainer: str, work: dict[str, Any], tmp_path: Path) -> None:
    """The loss of a batch is torch's own mean over all targets but those that are ignored."""
    factory, data = TEXT_MODELS["transformer_word"][0], of_places(tmp_path / "data")
    got = train(trainer, factory, data, work)
    for row in range(len(SIZES)):
        wanted = by_definition(factory, data, work, row)
        del wanted["loss"], wanted["correct"]
        assert_same({key: values[row] for key, values in got.items()}, wanted)


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused"])
def test_a_clients_loss_is_over_the_places_that_it_has_seen(trainer: str, tmp_path: Path) -> None:
    factory, data = TEXT_MODELS["transformer_word"][0], of_places(tmp_path / "data")
    got = train(trainer, factory, data, {"batch_size": "full" if trainer == "one_by_one" else 20})
    for row, n in enumerate(SIZES):
        wanted = by_definition(factory, data, {"batch_size": "full"}, row)["loss"]
        torch.testing.assert_close(got["loss"][row], wanted)
        assert wanted > n


@pytest.mark.parametrize("work", [{"batch_size": 7, "epochs": 2}, WORK["all at once"]], ids=["plain", "all at once"])
@pytest.mark.parametrize("pieces", [2, 3, 50])
def test_a_batch_in_pieces_has_the_gradient_of_the_whole(pieces: int, work: dict[str, Any], tmp_path: Path) -> None:
    for factory, data in (
        (MODELS["norms"][0], dataset(MODELS["norms"][1], classes=4)),
        (TEXT_MODELS["transformer_word"][0], of_places(tmp_path / f"{pieces}")),
    ):
        whole = train("one_by_one", factory, data, work)
        assert_same(train("one_by_one", factory, data, {**work, "accumulate": pieces}), whole)


def test_each_piece_of_a_batch_has_masks_of_its_own() -> None:
    factory = partial(transformer_word.make, TRANSFORMER.model_copy(update={"dropout": 0.5}), (6,), 4)
    rows = np.tile(np.arange(6) % 4, (2, 1))
    data = FederatedDataset.from_clients(train={"same row twice": (rows, rows)})
    made = []
    for pieces in (1, 2):
        keys = {"batch_size": 2, "accumulate": pieces}
        made.append(train("one_by_one", factory, data, keys, positions=(0,))["loss"].item())
    one = FederatedDataset.from_clients(train={"same row twice": (rows[:1], rows[:1])})
    alone = train("one_by_one", factory, one, {"batch_size": 1}, positions=(0,))["loss"].item()
    # The first row's masks are those of the whole batch, and the second row's are not the first's again.
    assert made[1] != pytest.approx(2 * alone)
    assert made[1] != pytest.approx(made[0])


@pytest.mark.parametrize("trainer", ["recorded", "interpreted", "fused", "stacked"])
def test_masks_within_a_residual_are_the_same_in_every_form(trainer: str) -> None:
    factory = partial(transformer_word.make, TRANSFORMER, (6,), 4)
    data, work = texts((6,), classes=4), {"batch_size": 4, "epochs": 2}
    assert_same(train(trainer, factory, data, work), train("one_by_one", factory, data, work))


@pytest.mark.parametrize("work", [{"batch_size": 4, "epochs": 2}, WORK["all at once"]], ids=["plain", "all at once"])
@pytest.mark.parametrize("trainer", ["recorded", "interpreted", "fused", "stacked"])
def test_masks_of_dropout_are_the_same_in_every_form(trainer: str, work: dict[str, Any]) -> None:
    factory, shape = MODELS["cnn"]
    data = dataset(shape, classes=4)
    assert_same(train(trainer, factory, data, work), train("one_by_one", factory, data, work))


@pytest.mark.parametrize("y_shape", [(), (3,)], ids=["one output", "three outputs"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_regression_minimises_the_mean_squared_error(trainer: str, y_shape: tuple[int, ...]) -> None:
    factory = partial(nn.Linear, 6, 3 if y_shape else 1)
    data = dataset((6,), None, y_shape)
    got = train(trainer, factory, data, {"batch_size": 4, "epochs": 2})
    for row in range(len(SIZES)):
        own = {key: values[row] for key, values in got.items()}
        assert_same(own, by_definition(factory, data, {"batch_size": 4, "epochs": 2}, row))


@pytest.mark.parametrize("trainer", TRAINERS)
def test_an_example_with_targets_along_time_has_their_mean_loss(trainer: str) -> None:
    factory = partial(nn.Linear, 6, 4)
    data = dataset((5, 6), 4, (5,))
    got = train(trainer, factory, data, {"batch_size": 4})
    for row in range(len(SIZES)):
        own = {key: values[row] for key, values in got.items()}
        assert_same(own, by_definition(factory, data, {"batch_size": 4}, row))


def test_fused_takes_its_gradient_from_a_loss_of_the_users() -> None:
    def absolute(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs[:, 0] - targets).abs()

    data = dataset((6,), None)
    results = [
        train(trainer, partial(nn.Linear, 6, 1), data, {"batch_size": 4}, loss=absolute)
        for trainer in ("fused", "one_by_one")
    ]
    assert_same(*results)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_clients_come_back_in_the_order_given(trainer: str) -> None:
    factory, shape = MODELS["mlp"]
    data = dataset(shape, classes=4)
    straight = train(trainer, factory, data, {"batch_size": 4})
    mixed = train(trainer, factory, data, {"batch_size": 4}, positions=(3, 1, 4, 0, 2))
    assert_same(mixed, {name: values[[3, 1, 4, 0, 2]] for name, values in straight.items()})


@pytest.mark.parametrize(
    ("trainer", "name"),
    [("compiled", "mlp"), *product(["fused", "stacked"], ["mlp", "cnn", "cnn_mcmahan", "norms"])],
)
def test_in_float32_forms_agree_to_rounding(trainer: str, name: str) -> None:
    factory, shape = MODELS[name]
    data = dataset(shape, classes=4)
    got, wanted = (
        train(f, factory, data, {"batch_size": 4}, dtype=torch.float32)["delta"] for f in (trainer, "one_by_one")
    )
    # By norm: where rounding turns a relu or the maximum of a window, single weights go another way.
    assert float((got - wanted).norm()) < 1e-2 * float(wanted.norm())


class HoldsMore(nn.Module):
    """More layers than its forward calls: in front of those, between them, and behind."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(3, 5), nn.Linear(8, 6)
        self.between, self.out, self.behind = nn.Linear(4, 2, bias=False), nn.Linear(6, 4), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.inner(x)))


@pytest.mark.parametrize(
    "work",
    [
        {"optimizer": {"weight_decay": 0.3}},
        {"optimizer": {"momentum": 0.5, "weight_decay": 0.3}},
        {"optimizer": {"name": "adam", "weight_decay": 0.3}},
        {"optimizer": {"name": "adagrad", "weight_decay": 0.3}, "correction": {"name": "prox", "mu": 0.3}},
        {"optimizer": {"weight_decay": 0.3}, "max_grad_norm": 0.01},
    ],
    ids=["decay", "momentum", "adam", "pull", "clipping"],
)
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_layer_that_is_not_called_has_the_gradient_zero_at_every_step(trainer: str, work: dict[str, Any]) -> None:
    data, work = dataset((8,), classes=4), {"batch_size": 4, **work}
    got, wanted = (train(each, HoldsMore, data, work) for each in (trainer, "one_by_one"))
    assert_same(got, wanted)
    again = train(trainer, HoldsMore, data, work, positions=(4, 3, 2, 1, 0))
    assert_same(again, {name: values.flip(0) for name, values in wanted.items()})
    model, weights = create(HoldsMore, 0, torch.float64)
    moved = model.params.views(wanted["delta"])["before.weight"]
    if work["optimizer"] == {"weight_decay": 0.3} and "max_grad_norm" not in work:
        steps = torch.tensor([len(range(0, n, 4)) for n in SIZES], dtype=torch.float64)
        kept = (1 - LR * 0.3) ** steps
        first = model.params.views(weights.params)["before.weight"]
        torch.testing.assert_close(moved, (kept - 1).view(-1, 1, 1) * first)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_can_be_used_again(trainer: str) -> None:
    factory, shape = MODELS[{"vmap": "cnn_mcmahan", "compiled": "mlp"}.get(trainer, "cnn")]
    data, section = dataset(shape, classes=4), ClientSection(batch_size=4)
    model, weights = create(factory, 0, torch.float64)
    choice = TrainerChoice.of_size(trainer, 5, short_batches="resized")  # type: ignore[arg-type]
    made = make(choice, model, weights, task_for(4, None), section, "float32")
    broadcast_before = weights.params.clone()

    def deltas(positions: tuple[int, ...]) -> torch.Tensor:
        members = local_training.members(Examples(data), positions, section, 0, 0, weights.params)
        trained = local_training.train(made, weights, members, LR, model.params)
        return torch.cat([t.updates.delta.clone() for t in trained])

    first = deltas((0, 1, 2))
    deltas((3,))
    deltas((4, 3, 2, 1, 0))
    assert torch.equal(deltas((0, 1, 2)), first)
    assert torch.equal(weights.params, broadcast_before)


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_diverging_client_is_marked_and_its_neighbours_are_not(trainer: str) -> None:
    draw = np.random.default_rng(0)
    train_data = {str(i): (draw.standard_normal((6, 3)), draw.integers(0, 2, 6)) for i in range(3)}
    train_data["1"][0][:] = np.inf
    data, section = FederatedDataset.from_clients(train=train_data), ClientSection(batch_size=4)
    model, weights = create(partial(nn.Linear, 3, 2), 0, torch.float32)
    choice = TrainerChoice.of_size(trainer, 5, short_batches="resized")  # type: ignore[arg-type]
    made = make(choice, model, weights, task_for(2, None), section, "float32")
    members = local_training.members(Examples(data), (0, 1, 2), section, 0, 0, weights.params)
    finite = [f for t in local_training.train(made, weights, members, LR, model.params) for f in t.finite]
    assert finite == [True, False, True]
