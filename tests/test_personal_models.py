"""Personal models against a float64 re-statement of docs/algorithms.md, section 3, on the tanh network; and identities.

The re-statement has all weights as one vector, and the Hessian as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim import seeds
from tests.support.executors import EXECUTORS, bits
from tests.support.interrupted import Stops, same_records
from tests.support.tanh_federation import SIZES, network, start

Make = Callable[..., raysim.Experiment]
SEED, LR, DECAY, BATCH, EPOCHS = 5, 0.05, 0.9, 3, 2
COHORTS = [["0", "1", "2"], ["3", "1"], ["4", "2", "0", "1"], ["2", "3"]]
NAMES = list(start())
LENGTHS = [value.size for value in start().values()]


def examples(seed: int, sizes: list[int]) -> dict[str, tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {str(i): (rng.normal(size=(n, 3)), rng.normal(size=n) + 0.3 * i) for i, n in enumerate(sizes)}


TRAIN = examples(11, SIZES)
TEST = examples(13, [4, 2, 3, 0, 6])
DATA = raysim.FederatedDataset.from_clients(train=TRAIN, test=TEST | {"stranger": TEST["0"]})


def flat(named: Any) -> Tensor:
    return torch.cat([torch.as_tensor(np.asarray(named[name]), dtype=torch.float64).flatten() for name in NAMES])


def loss(w: Tensor, x: Any, y: Any) -> Tensor:
    w1, b1, w2, b2 = w.split(LENGTHS)
    hidden = torch.tanh(torch.as_tensor(x) @ w1.view(4, 3).T + b1)
    return (hidden @ w2 + b2 - torch.as_tensor(y)).square().mean()


def grad(w: Tensor, x: Any, y: Any) -> Tensor:
    at = w.clone().requires_grad_()
    return torch.autograd.grad(loss(at, x, y), at)[0]


def hessian(w: Tensor, x: Any, y: Any) -> Tensor:
    return torch.autograd.functional.hessian(lambda at: loss(at, x, y), w)


def mask(names: list[str]) -> Tensor:
    return torch.cat([torch.full((size,), float(name in names)) for name, size in zip(NAMES, LENGTHS, strict=True)])


class Page:
    """docs/algorithms.md, section 3, line by line; weights are the clients' examples."""

    def __init__(self, kind: dict[str, Any], momentum: float = 0.0) -> None:
        self.kind, self.momentum, self.t = kind, momentum, 0
        self.x = self.x0 = flat(start())
        self.own = dict.fromkeys(TRAIN, self.x0)
        given = kind.get("local", [])
        patterns = [given] if isinstance(given, str) else given
        self.local = mask([name for name in NAMES if any(name.startswith(p.rstrip("*")) for p in patterns)])

    def batches(self, client: str, epochs: int) -> list[Any]:
        n = len(TRAIN[client][1])
        keys = [seeds.key(SEED, "batches", self.t, int(client), epoch) for epoch in range(epochs)]
        # A batch of all examples is not shuffled.
        orders = [seeds.permutation(key, n) if n > BATCH else np.arange(n) for key in keys]
        return [order[k : k + BATCH] for order in orders for k in range(0, n, BATCH)]

    def train(
        self, client: str, w: Tensor, gradient: Any, lr: float, epochs: int = EPOCHS, steps: int | None = None
    ) -> Tensor:
        """Local SGD from w; `gradient(w, x, y)`."""
        x, y = TRAIN[client]
        v = torch.zeros_like(w)
        for rows in self.batches(client, epochs)[:steps]:
            v = self.momentum * v + gradient(w, x[rows], y[rows])
            w = w - lr * v
        return w

    @property
    def lr(self) -> float:
        return LR * DECAY**self.t

    def client(self, client: str) -> Tensor:
        """Train a client, with its own vector; return what it sends."""
        x, kind, x0 = self.x, self.kind, self.x0
        match kind["name"]:
            case "ditto":
                lam, steps = kind["lam"], kind.get("local_steps")
                epochs = 9 if steps else kind.get("epochs", EPOCHS)
                lr = kind.get("lr", self.lr)
                pulled = lambda v, *batch: grad(v, *batch) + lam * (v - x)  # noqa: E731
                self.own[client] = self.train(client, self.own[client], pulled, lr, epochs, steps)
                return self.train(client, x, grad, self.lr) - x
            case "apfl":
                return self.mixed(client)
            case "split":
                begun = self.reconstructed(client)
                rest = self.local if not kind.get("local_epochs") else 0 * self.local
                trained = rest + (1 - self.local)
                ended = self.train(client, begun, lambda w, *batch: trained * grad(w, *batch), self.lr)
                self.own[client] = ended if kind.get("keep", True) else x0
                return (1 - self.local) * (ended - x)
            case _:
                return self.train(client, x, self.meta, self.lr) - x

    def mixed(self, client: str) -> Tensor:
        alpha, (x, y), w, own = self.kind["alpha"], TRAIN[client], self.x, self.own[client]
        of_w, of_own = torch.zeros_like(w), torch.zeros_like(w)
        for rows in self.batches(client, EPOCHS):
            m = alpha * own + (1 - alpha) * w
            of_own = self.momentum * of_own + alpha * grad(m, x[rows], y[rows])
            of_w = self.momentum * of_w + grad(w, x[rows], y[rows])
            own, w = own - self.lr * of_own, w - self.lr * of_w
        self.own[client] = own
        return w - self.x

    def reconstructed(self, client: str) -> Tensor:
        """Where the client's work begins: with own local groups, trained alone first."""
        kind = self.kind
        w = self.local * self.own[client] + (1 - self.local) * self.x
        if epochs := kind.get("local_epochs"):
            lr = kind.get("lr", self.lr)
            w = self.train(client, w, lambda w, *batch: self.local * grad(w, *batch), lr, epochs)
        return w

    def meta(self, w: Tensor, x: Any, y: Any) -> Tensor:
        alpha, delta = self.kind["alpha"], self.kind.get("delta", 1e-3)
        u = grad(w - alpha * grad(w, x, y), x, y)
        match self.kind.get("hessian", "exact"):
            case "exact":
                return u - alpha * hessian(w, x, y) @ u
            case "difference":
                ahead, behind = grad(w + delta * u, x, y), grad(w - delta * u, x, y)
                return u - alpha * (ahead - behind) / (2 * delta)
            case _:
                return u

    def round(self, cohort: list[str]) -> None:
        sizes = {client: len(TRAIN[client][1]) for client in cohort}
        made = {client: self.client(client) for client in cohort}
        mean = torch.stack([made[c] * sizes[c] for c in cohort]).sum(0) / sum(sizes.values())
        self.x = self.x + mean

    def scored(self, client: str) -> Tensor:
        """The personal model after round t, whose batches are those of local epochs."""
        match self.kind["name"]:
            case "ditto":
                return self.own[client]
            case "apfl":
                return self.kind["alpha"] * self.own[client] + (1 - self.kind["alpha"]) * self.x
            case "split" if self.kind.get("keep", True):
                return self.local * self.own[client] + (1 - self.local) * self.x
            case "split":
                return self.reconstructed(client)
            case _:
                return self.x - self.kind["alpha"] * grad(self.x, *TRAIN[client])


def of_kind(experiment: Make, kind: dict[str, Any] | None, momentum: float = 0.0, **sections: Any) -> Any:
    client: dict[str, Any] = {"optimizer": {"lr": LR, "momentum": momentum}, "lr_decay": DECAY}
    client |= {"batch_size": BATCH, "epochs": EPOCHS} | sections.pop("client", {})
    client |= {} if kind is None else {"personalisation": kind}
    engine = {"workers": 0, "dtype": "float64", "chunk_size": 2, "trainer": "one_by_one"} | sections.pop("engine", {})
    base: dict[str, Any] = {
        "seed": SEED,
        "rounds": len(COHORTS),
        "model": None,
        "client": client,
        "cohort": {"sampler": {"name": "replay", "cohorts": COHORTS}},
        "server": {"optimizer": {"name": "sgd", "lr": 1.0}},
        "evaluation": {"every": 1},
        "engine": engine,
    }
    return experiment(**{**base, **sections})


def run(exp: raysim.Experiment) -> list[Any]:
    return list(raysim.rounds(exp, dataset=DATA, model=network, params=start()))


KINDS: list[dict[str, Any]] = [
    {"name": "ditto", "lam": 0.7},
    {"name": "ditto", "lam": 0.3, "epochs": 3, "lr": 0.08},
    {"name": "ditto", "lam": 30.0, "local_steps": 2},
    {"name": "apfl", "alpha": 0.4},
    {"name": "split", "local": ["2.*"]},
    {"name": "split", "local": ["0.*"], "local_epochs": 1},
    {"name": "split", "local": ["0.bias", "2.*"], "local_epochs": 3, "lr": 0.08},
    {"name": "split", "local": "2.*", "local_epochs": 3, "keep": False},
    {"name": "maml", "alpha": 0.2},
    {"name": "maml", "alpha": 0.2, "hessian": "difference"},
    {"name": "maml", "alpha": 0.2, "hessian": "difference", "delta": 0.5},
    {"name": "maml", "alpha": 0.2, "hessian": "none"},
]


# Momentum leaves the shortcut of plain SGD, which passes with a pull alone take.
@pytest.mark.parametrize(("kind", "momentum"), [(KINDS[0], 0.6), *((kind, 0.0) for kind in KINDS), (KINDS[3], 0.6)])
def test_a_run_is_the_page(kind: dict[str, Any], momentum: float, experiment: Make) -> None:
    page = Page(kind, momentum)
    for done in run(of_kind(experiment, kind, momentum)):
        page.round(COHORTS[done.index])
        torch.testing.assert_close(flat(done.params), page.x, rtol=1e-9, atol=1e-12)
        rows = {row["client"]: row for row in done.clients.to_pylist() if row["split"] == "personal/test"}
        # "3" has no test examples, and the stranger does not train.
        assert list(rows) == ["0", "1", "2", "4"]
        losses = {client: float(loss(page.scored(client), *TEST[client])) for client in rows}
        of_x = {client: float(loss(page.x, *TEST[client])) for client in rows}
        assert {client: row["loss"] for client, row in rows.items()} == pytest.approx(losses, rel=1e-9)
        assert {client: row["global_loss"] for client, row in rows.items()} == pytest.approx(of_x, rel=1e-9)
        of: dict[str, Any] = {"": (losses, rows), "/global": (of_x, rows)}
        if kind["name"] != "maml" and kind.get("keep", True):
            took_part = {client for cohort in COHORTS[: done.index + 1] for client in cohort}
            assert {client for client, row in rows.items() if row["seen"]} == took_part & rows.keys()
            of |= {"/seen": (losses, took_part & rows.keys()), "/new": (losses, rows.keys() - took_part)}
        for name, (values, whose) in of.items():
            found = done.metrics.get(f"eval_personal/test{name}/loss")
            sizes = {client: len(TEST[client][1]) for client in whose}
            mean = sum(values[c] * n for c, n in sizes.items()) / sum(sizes.values()) if sizes else None
            assert found == (None if mean is None else pytest.approx(mean, rel=1e-9))
        page.t += 1


# Every way of training


def mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 2))


LABELLED = raysim.FederatedDataset.from_clients(
    train={client: (x, (y > 0.5).astype(np.int64)) for client, (x, y) in TRAIN.items()},
    test={client: (x, (y > 0.5).astype(np.int64)) for client, (x, y) in TEST.items()},
)


def scores(exp: raysim.Experiment) -> dict[str, float | None]:
    """All figures of the last round that do not tell its cost."""
    *_, done = raysim.rounds(exp, dataset=LABELLED, model=mlp)
    names = ("loss", "pseudo_gradient_norm", "params_norm", "mean_update_norm")
    figures = {name: value for name, value in done.metrics.items() if name in names or name.startswith("eval")}
    numbers = torch.cat([value.flatten() for value in done.params.values()]).tolist()
    return figures | {f"number {place}": value for place, value in enumerate(numbers)}


@pytest.mark.parametrize("trainer", ["recorded", "fused", "stacked", "vmap", "compiled"])
@pytest.mark.parametrize(
    "kind",
    [
        {"name": "ditto", "lam": 0.3, "epochs": 1},
        {"name": "split", "local": ["2.*"], "local_epochs": 1},
        {"name": "maml", "alpha": 0.1, "hessian": "difference"},
    ],
    ids=lambda kind: str(kind["name"]),
)
def test_every_trainer_trains_them(kind: dict[str, Any], trainer: str, experiment: Make) -> None:
    if kind["name"] == "maml" and trainer != "recorded":
        with pytest.raises(raysim.ModelError, match="gradients of a batch at several points: take 'one_by_one'"):
            scores(of_kind(experiment, kind, engine={"trainer": trainer}))
        return
    # Weight decay and clipping must not touch groups that are held.
    client = {"optimizer": {"lr": LR, "weight_decay": 0.1}, "max_grad_norm": 0.5}
    expected = scores(of_kind(experiment, kind, client=client, rounds=3))
    got = scores(of_kind(experiment, kind, client=client, rounds=3, engine={"trainer": trainer}))
    assert got == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("optimizer", ["adamw", "adagrad"])
def test_an_optimizer_does_not_move_held_groups(optimizer: str, experiment: Make) -> None:
    kind = {"name": "split", "local": ["2.*"], "local_epochs": 1, "lr": 0.0}
    client = {"optimizer": {"name": optimizer, "lr": LR, "weight_decay": 0.3}}
    every = of_kind(experiment, kind, client=client)
    # With lr 0 local epochs move nothing, and the client's work holds the local groups.
    for done in run(every):
        for name in ("2.weight", "2.bias"):
            assert torch.equal(done.params[name], torch.as_tensor(start()[name]))
        assert done.metrics["eval_personal/test/loss"] == done.metrics["eval_personal/test/global/loss"]


# What they become


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        assert {name: value.tolist() for name, value in a.params.items()} == {
            name: value.tolist() for name, value in b.params.items()
        }
        assert a.metrics["loss"] == b.metrics["loss"]


@pytest.mark.parametrize(
    "kind", [{"name": "ditto", "lam": 0.5}, {"name": "apfl", "alpha": 0.7}, {"name": "maml", "alpha": 0.0}], ids=str
)
def test_the_model_of_all_is_fedavg_s(kind: dict[str, Any], experiment: Make) -> None:
    # The trainer of several points steps by the optimizer, and so does FedAvg with momentum: the same bits.
    same(run(of_kind(experiment, kind, 0.5)), run(of_kind(experiment, None, 0.5)))


@pytest.mark.parametrize("kind", [{"name": "apfl", "alpha": 0.0}, {"name": "maml", "alpha": 0.0}], ids=str)
def test_no_share_of_one_s_own_is_the_model_of_all(kind: dict[str, Any], experiment: Make) -> None:
    for done in run(of_kind(experiment, kind)):
        assert done.metrics["eval_personal/test/loss"] == done.metrics["eval_personal/test/global/loss"]


def alone(client: str, rounds: int) -> Tensor:
    page = Page({"name": "maml"})
    w = page.x0
    for page.t in range(rounds):
        w = page.train(client, w, grad, page.lr)
    return w


@pytest.mark.parametrize("kind", [{"name": "ditto", "lam": 0.0}, {"name": "apfl", "alpha": 1.0}], ids=str)
def test_nothing_of_the_others_is_local_training_alone(kind: dict[str, Any], experiment: Make) -> None:
    everyone = {"sampler": {"name": "replay", "cohorts": [list(TRAIN)] * 3}}
    for done in run(of_kind(experiment, kind, rounds=3, cohort=everyone)):
        rows = {row["client"]: row["loss"] for row in done.clients.to_pylist() if row["split"] == "personal/test"}
        expected = {client: float(loss(alone(client, done.index + 1), *TEST[client])) for client in rows}
        assert rows == pytest.approx(expected, rel=1e-9)


def test_the_local_groups_of_one_client_are_those_of_fedavg(experiment: Make) -> None:
    cohort = {"sampler": {"name": "replay", "cohorts": [["4"]] * 3}}
    split = run(of_kind(experiment, {"name": "split", "local": ["0.*"]}, rounds=3, cohort=cohort))
    for one, other in zip(split, run(of_kind(experiment, None, rounds=3, cohort=cohort)), strict=True):
        rows = {row["client"]: row["loss"] for row in one.clients.to_pylist() if row["split"] == "personal/test"}
        expected = loss(flat(other.params), *TEST["4"])
        assert rows["4"] == pytest.approx(float(expected), rel=1e-12)


# What travels


@pytest.mark.parametrize(
    "server",
    [{"name": "adam", "lr": 0.1}, {"name": "lars", "lr": 0.1, "weight_decay": 0.5}, {"name": "lamb", "lr": 0.1}],
    ids=lambda server: str(server["name"]),
)
def test_groups_that_stay_are_in_no_norm_and_no_byte(server: dict[str, Any], experiment: Make) -> None:
    kind = {"name": "split", "local": ["0.*"]}
    exp = of_kind(
        experiment, kind, server={"optimizer": server}, adversary={"name": "noise", "std": 0.1, "clients": 0.5}
    )
    before = start()
    for done in run(exp):
        for name in ("0.weight", "0.bias"):
            assert done.params[name].tolist() == before[name].tolist()
        # 4 + 1 numbers of 8 bytes.
        assert done.metrics["bytes_up"] == done.metrics["bytes_down"] == 40 * len(COHORTS[done.index])
    (first, *_), page = run(of_kind(experiment, kind)), Page(kind)
    norms = [float(page.client(client).norm()) for client in COHORTS[0]]
    assert first.metrics["mean_update_norm"] == pytest.approx(np.mean(norms), rel=1e-9)


def test_a_transform_sees_what_is_sent(experiment: Make) -> None:
    names = []

    def apply(at: raysim.TransformAt) -> Tensor:
        names.append(at.layout.names)
        return at.layout.map(lambda name, tensor: tensor + 1, at.delta)

    exp = of_kind(experiment, {"name": "split", "local": ["2.*"]}, rounds=1)
    made = raysim.rounds(
        exp, dataset=DATA, model=network, params=start(), transform=lambda section: raysim.Transform(apply)
    )
    (done,) = made
    # Two calls try the transform before the first round.
    assert set(names[2:]) == {("0.weight", "0.bias")}
    assert done.params["2.weight"].tolist() == start()["2.weight"].tolist()


# Refusals


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"personalisation": {"name": "split", "local": ["3.*", "2.*"]}}, r"'3.\*' matches no group: .* are 0.weight,"),
        ({"personalisation": {"name": "split", "local": ["*"]}}, r"matches every group, so nothing would be sent"),
        ({"personalisation": {"name": "split", "local": "2.*", "lr": 0.1}}, "lr is the learning rate of the local ep"),
        (
            {"personalisation": {"name": "ditto", "lam": 1.0, "epochs": 1, "local_steps": 2}},
            "either epochs or local_steps measures the work on a client's own model",
        ),
        ({"personalisation": {"name": "ditto", "lam": 1.0, "split": "other"}}, "no split 'other'"),
        ({"personalisation": {"name": "apfl", "alpha": 1.5}}, r"client.personalisation.alpha"),
        *(
            (
                {"personalisation": kind, "correction": {"name": "prox", "mu": 0.1}},
                f"{kind['name']}' is defined without corrections, but got client.correction.name = 'prox'",
            )
            for kind in (KINDS[0], KINDS[3], KINDS[4], KINDS[8])
        ),
    ],
)
def test_what_is_not_defined_is_refused(client: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises((raysim.ExperimentError, raysim.DataError), match=message):
        run(of_kind(experiment, None, client=client))


class Once(torch.autograd.Function):
    """The identity, which can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class OnceLinear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = Once.apply(super().forward(x))  # type: ignore[no-untyped-call]
        return made


def test_a_module_that_is_differentiated_once_takes_a_difference(experiment: Make) -> None:
    for hessian in ("difference", "exact"):
        exp = of_kind(experiment, {"name": "maml", "alpha": 0.1, "hessian": hessian}, rounds=1)
        if hessian == "exact":
            # torch leaves the function out, without a word.
            with pytest.raises(raysim.ModelError, match=r"differentiates twice, and that fails here: .*'difference'"):
                raysim.rounds(exp, dataset=DATA, model=lambda: OnceLinear(3, 1))
        else:
            assert list(raysim.rounds(exp, dataset=DATA, model=lambda: OnceLinear(3, 1)))


@pytest.mark.parametrize("kind", [KINDS[0], KINDS[7], KINDS[8]], ids=str)
def test_clients_with_a_vector_are_not_drawn_twice(kind: dict[str, Any], experiment: Make) -> None:
    twice = {"size": 3, "sampler": {"name": "md"}}
    if kind is KINDS[0]:
        with pytest.raises(raysim.ExperimentError, match="'ditto' changes a client's state once a round"):
            of_kind(experiment, kind, cohort=twice)
    else:
        of_kind(experiment, kind, cohort=twice)


# The same bits


@pytest.mark.parametrize("kind", [KINDS[1], KINDS[3], KINDS[6], KINDS[7]], ids=str)
def test_an_interrupted_run_goes_on_to_the_same_bits(kind: dict[str, Any], experiment: Make, tmp_path: Path) -> None:
    exp = of_kind(experiment, kind, checkpoint={"every": 2})
    parts: dict[str, Any] = {"dataset": LABELLED, "model": mlp}
    first = {name: 0.5 * value.detach() for name, value in mlp().named_parameters()}
    whole = raysim.run(exp, path=tmp_path / "whole", params=first, **parts)
    # After the first round is recorded; scoring repeats local epochs where clients keep nothing.
    with pytest.raises(KeyboardInterrupt):
        raysim.run(exp, path=tmp_path / "cut", params=first, loss=Stops(60 if kind.get("keep", True) else 150), **parts)
    # x_0 is not passed again: it is in the checkpoint.
    same_records(raysim.resume(tmp_path / "cut", executor="local", **parts), whole)


def test_personal_models_do_not_depend_on_who_is_in_a_chunk(experiment: Make) -> None:
    for kind in KINDS[1], KINDS[3], KINDS[6]:
        one, other = (run(of_kind(experiment, kind, rounds=1, engine={"chunk_size": size}))[0] for size in (1, 3))
        rows = ([row["loss"] for row in done.clients.to_pylist() if row["seen"]] for done in (one, other))
        assert next(rows) == pytest.approx(next(rows), rel=1e-14)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("kind", [KINDS[0], KINDS[5]], ids=str)
def test_the_bits_do_not_depend_on_the_number_of_workers(kind: dict[str, Any], experiment: Make) -> None:
    here, there = (
        raysim.rounds(of_kind(experiment, kind, engine=EXECUTORS[name]), dataset=LABELLED, model=mlp)
        for name in ("in-process", "2 workers")
    )
    for one, other in zip(here, there, strict=True):
        assert bits(one) == bits(other)
