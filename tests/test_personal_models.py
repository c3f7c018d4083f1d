"""Personal models against a float64 re-statement of docs/algorithms.md, section 3, on the tanh network; and identities.

The re-statement has all weights as one vector, and the Hessian as a matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim import seeds
from tests.support.tanh_federation import COHORTS, SIZES, network, start

Make = Callable[..., raysim.Experiment]
SEED, LR, DECAY, BATCH, EPOCHS = 5, 0.05, 0.9, 3, 2
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


def said(kind: dict[str, Any]) -> str:
    return ",".join(str(value) for value in kind.values())


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize("kind", KINDS, ids=said)
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
        sizes = np.array([len(TEST[client][1]) for client in rows])
        for name, values in (("eval_personal/test", losses), ("eval_personal/test/global", of_x)):
            mean = (np.array(list(values.values())) * sizes).sum() / sizes.sum()
            assert done.metrics[f"{name}/loss"] == pytest.approx(mean, rel=1e-9)
        page.t += 1
