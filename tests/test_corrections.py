"""Corrected runs against a float64 NumPy re-statement of docs/algorithms.md, section 3.

The network, the clients and the cohorts are those of tests/support/tanh_federation.py; here all weights are one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from tests.support.corrected_runs import ANY, BATCH, DECAY, LR, SGD, Make, N, flat, grad, run
from tests.support.executors import bits
from tests.support.tanh_federation import COHORTS, Array, clients, start


class ClientStep:
    """Local optimizers, as torch.optim prints them; `wd` is added to the gradient unless it is adamw's."""

    def __init__(self, name: str = "sgd", momentum: float = 0.0, weight_decay: float = 0.0, **_: Any) -> None:
        self.name, self.rho, self.wd = name, momentum, weight_decay
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.k = 0

    def __call__(self, y: Array, g: Array, lr: float, clip: float | None) -> Array:
        if clip is not None:
            g = g * min(1.0, clip / float(np.linalg.norm(g)))
        if self.name == "adamw":
            y = y - lr * self.wd * y
        else:
            g = g + self.wd * y
        self.k += 1
        if self.name == "sgd":
            self.v = self.rho * self.v + g
            return y - lr * self.v
        if self.name == "adagrad":
            self.v = self.v + g**2
            return y - lr * g / (np.sqrt(self.v) + 1e-10)
        self.m, self.v = 0.9 * self.m + 0.1 * g, 0.999 * self.v + 0.001 * g**2
        return y - lr * (self.m / (1 - 0.9**self.k)) / (np.sqrt(self.v / (1 - 0.999**self.k)) + 1e-8)


class Page:
    """docs/algorithms.md, section 3, line by line."""

    def __init__(
        self,
        correction: dict[str, Any],
        optimizer: dict[str, Any],
        weighting: str = "uniform",
        clip: float | None = None,
        eta: float = 1.0,
        work: dict[str, Any] | None = None,
        grad: Callable[[Array, Array, Array], Array] = grad,
        first: Array | None = None,
    ) -> None:
        self.grad = grad
        self.o, self.name = {"beta": 0.0, "mu": 0.0, **correction}, correction["name"]
        self.optimizer, self.weighting, self.clip, self.eta = optimizer, weighting, clip, eta
        self.work = work or {"epochs": 2}
        self.x = flat(start()) if first is None else first
        self.average = self.x.copy()
        self.h = np.zeros_like(self.x)
        self.own = {c: np.zeros_like(self.x) for c in clients()}
        self.last: dict[str, int] = {}
        self.m, self.v = np.zeros_like(self.x), np.zeros_like(self.x)
        self.t = 0

    def batches(self, n: int) -> list[slice]:
        one = [slice(a, min(a + BATCH, n)) for a in range(0, n, BATCH)]
        return (one * 20)[: self.work["local_steps"]] if "local_steps" in self.work else one * self.work["epochs"]

    def frozen(self, g: Array) -> Array:
        """U of mime."""
        if self.o["base"] == "sgd":
            return g
        m = 0.9 * self.m + 0.1 * g
        return m if self.o["base"] == "momentum" else m / (np.sqrt(self.v) + 0.5)

    def local(self, c: str, x: Array, y: Array, lr: float, mean: Array) -> tuple[Array, int, Array]:
        """(y_i - x, tau, mean raw gradient)."""
        w, step, raw, mu = self.x.copy(), ClientStep(**self.optimizer), [], self.o["mu"]
        full = self.grad(self.x, x, y)
        for batch in self.batches(len(y)):
            g = self.grad(w, x[batch], y[batch])
            raw.append(g)
            match self.name:
                case "prox":
                    g = g + mu * (w - self.x)
                case "scaffold" | "scaffold_m":
                    g = g - self.own[c] + self.h
                case "feddyn":
                    g = g - self.own[c] - mu * (self.x - w)
                case "adabest":
                    g = g - self.own[c]
                case "mime":
                    g = g - self.grad(self.x, x[batch], y[batch]) + mean
                case "feddane":
                    g = g + mean - full + mu * (w - self.x)
            if self.name in ("mime", "mimelite"):
                if self.clip is not None:
                    g = g * min(1.0, self.clip / float(np.linalg.norm(g)))
                w = w - lr * self.frozen(g)
            else:
                w = step(w, g, lr, self.clip)
        return w - self.x, len(raw), np.mean(raw, axis=0)

    def round(self, cohort: list[str]) -> None:
        data, lr, m = clients(), LR * DECAY**self.t, len(cohort)
        n = np.array([len(data[c][1]) for c in cohort], dtype=float)
        p = n / n.sum() if self.weighting == "examples" else np.full(m, 1 / m)
        mean = sum(pi * self.grad(self.x, *data[c]) for pi, c in zip(p, cohort, strict=True))
        made = {c: self.local(c, *data[c], lr, mean) for c in cohort}
        gbar = -sum(pi * made[c][0] for pi, c in zip(p, cohort, strict=True))
        x, before = self.x, self.h
        self.x = self.x - self.eta * gbar
        match self.name:
            case "scaffold":
                change = np.zeros_like(x)
                for c in cohort:
                    new = made[c][2]
                    change += (new - self.own[c]) / m
                    self.own[c] = new
                self.h = self.h + m / N * change
            case "scaffold_m":
                k = made[cohort[0]][1]
                for c in cohort:
                    self.own[c] = self.own[c] - before - made[c][0] / (k * lr)
                d = (N - m) / N if self.o.get("exact") else (N - 1) / N
                self.h = d * self.h + m / (k * lr * N) * gbar
            case "feddyn":
                for c in cohort:
                    self.own[c] = self.own[c] - self.o["mu"] * made[c][0]
                self.h = self.h + m / N * gbar
                self.average = self.x
                self.x = self.average - self.h
            case "adabest":
                for c in cohort:
                    gap = self.t + 1 - self.last.get(c, 0)
                    self.own[c] = self.own[c] / gap - self.o["mu"] * made[c][0]
                    self.last[c] = self.t + 1
                self.h = self.o["beta"] * (self.average - self.x)
                self.average = self.x
                self.x = self.average - self.h
            case "mime" | "mimelite":
                self.m = 0.9 * self.m + 0.1 * mean
                self.v = 0.8 * self.v + 0.2 * mean**2
        self.t += 1


OPTIMIZERS: list[dict[str, Any]] = [
    SGD,
    {"name": "sgd", "momentum": 0.7, "weight_decay": 0.1},
    {"name": "adam", "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "adagrad", "weight_decay": 0.1},
]
# v starts at 0: with the default eps the first round of the last would take a thousand times the gradient.
BASES: list[dict[str, Any]] = [{"base": "sgd"}, {"base": "momentum"}, {"base": "adam", "beta2": 0.8, "eps": 0.5}]
OWN_STEP: list[dict[str, Any]] = [
    {"name": "scaffold_m"},
    {"name": "scaffold_m", "exact": True},
    *({"name": name, **base} for name in ("mime", "mimelite") for base in BASES),
]
TRAINERS = ("one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled")


def follow(steps: Any, page: Page, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    for done in steps:
        page.round(COHORTS[done.index])
        got = flat({name: value.double().numpy() for name, value in done.params.items()})
        np.testing.assert_allclose(got, page.x, rtol, atol, err_msg=f"round {done.index}")


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: " ".join(map(str, o.values())))
@pytest.mark.parametrize("correction", ANY, ids=lambda o: o["name"])
def test_a_corrected_run_is_what_the_page_says(
    correction: dict[str, Any], optimizer: dict[str, Any], trainer: str, experiment: Make
) -> None:
    follow(run(experiment, correction, optimizer, trainer), Page(correction, optimizer))


@pytest.mark.parametrize("trainer", TRAINERS)
@pytest.mark.parametrize("correction", OWN_STEP, ids=lambda o: " ".join(map(str, o.values())))
def test_methods_with_a_step_of_their_own_are_what_the_page_says(
    correction: dict[str, Any], trainer: str, experiment: Make
) -> None:
    work = {"local_steps": 4} if correction["name"] == "scaffold_m" else {"epochs": 2}
    follow(run(experiment, correction, trainer=trainer, work=work), Page(correction, SGD, work=work))


@pytest.mark.parametrize("correction", [*ANY, *OWN_STEP[2:]], ids=lambda o: " ".join(map(str, o.values())))
def test_clipping_comes_after_the_correction(correction: dict[str, Any], experiment: Make) -> None:
    follow(run(experiment, correction, clip=0.5, trainer="stacked"), Page(correction, SGD, clip=0.5))


@pytest.mark.parametrize("correction", [*ANY, *OWN_STEP[2:]], ids=lambda o: " ".join(map(str, o.values())))
def test_in_float32_it_agrees_to_rounding(correction: dict[str, Any], experiment: Make) -> None:
    follow(run(experiment, correction, dtype="float32", trainer="fused"), Page(correction, SGD), 5e-5, 5e-6)


@pytest.mark.parametrize("correction", [ANY[1], OWN_STEP[0], OWN_STEP[3]], ids=lambda o: o["name"])
def test_the_servers_learning_rate_moves_the_model_alone(correction: dict[str, Any], experiment: Make) -> None:
    work = {"local_steps": 4}
    follow(run(experiment, correction, eta=0.6, work=work), Page(correction, SGD, eta=0.6, work=work))


@pytest.mark.parametrize("correction", [ANY[0], ANY[4], OWN_STEP[3]], ids=lambda o: o["name"])
def test_weights_by_examples_are_those_of_the_gradients_too(correction: dict[str, Any], experiment: Make) -> None:
    follow(run(experiment, correction, weighting="examples"), Page(correction, SGD, weighting="examples"))


# Modules with statistics of their batches


def normalised(kind: str) -> nn.Module:
    norm = nn.BatchNorm1d(4) if kind == "batch" else nn.GroupNorm(1, 4)
    return nn.Sequential(nn.Linear(3, 4), norm, nn.Tanh(), nn.Linear(4, 1))


def by_autograd(module: nn.Module) -> Callable[[Array, Array, Array], Array]:
    """The gradient of the mean squared error in training mode, whatever the running statistics are."""

    def made(w: Array, x: Array, y: Array) -> Array:
        nn.utils.vector_to_parameters(torch.from_numpy(w), module.parameters())
        error = module(torch.from_numpy(x)).flatten() - torch.from_numpy(y)
        made = torch.autograd.grad((error**2).mean(), list(module.parameters()))
        return torch.cat([g.flatten() for g in made]).numpy()

    return made


@pytest.mark.parametrize("kind", ["batch", "group"])
@pytest.mark.parametrize("correction", [*ANY, *OWN_STEP], ids=lambda o: " ".join(map(str, o.values())))
def test_normalisation_trains_on_batches_and_its_buffers_are_averaged(
    correction: dict[str, Any], kind: str, experiment: Make
) -> None:
    torch.manual_seed(1)
    module = normalised(kind).double()
    first = {name: p.detach().clone() for name, p in module.named_parameters()}
    work = {"local_steps": 4}
    page = Page(
        correction,
        SGD,
        work=work,
        grad=by_autograd(module),
        first=torch.cat([p.flatten() for p in first.values()]).numpy(),
    )
    page.average = page.x
    steps = run(experiment, correction, work=work, model=lambda: normalised(kind), first=first)
    for done in steps:
        page.round(COHORTS[done.index])
        got = torch.cat([done.params[name].flatten() for name in first]).numpy()
        np.testing.assert_allclose(got, page.x, 1e-8, 1e-11)
        if kind == "batch" and done.index == 0:
            # Of the batches met in local training only: neither full gradients nor those at x move the statistics.
            assert int(done.params["1.num_batches_tracked"]) == 4


@pytest.mark.parametrize("correction", OWN_STEP[2:5], ids=lambda o: " ".join(map(str, o.values())))
def test_the_gradient_at_x_has_the_masks_of_the_gradient_at_y(correction: dict[str, Any], experiment: Make) -> None:
    rng = np.random.default_rng(5)
    data = raysim.FederatedDataset.from_clients(
        train={str(i): (rng.normal(size=(n, 1, 8, 8)), rng.integers(0, 4, n)) for i, n in enumerate([5, 9, 4])}
    )
    made = []
    for trainer in ("one_by_one", "recorded", "fused", "stacked"):
        exp = experiment(
            rounds=2,
            model={"name": "cnn"},
            client={"optimizer": {"lr": LR}, "batch_size": 4, "correction": correction},
            cohort={"size": 3},
            engine={"workers": 0, "dtype": "float64", "trainer": trainer},
        )
        made.append(list(raysim.rounds(exp, dataset=data))[-1].params)
    for other in made[1:]:
        for name, value in made[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-12)


class Halving(nn.Module):
    """Halves x, in a new tensor or in its place."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.in_place, self.last = in_place, nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(x.mul_(0.5) if self.in_place else x * 0.5)


TWO_POINTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("one_by_one", {"correction": {"name": "mime"}}),
    ("vmap", {"correction": {"name": "mime"}}),
    ("one_by_one", {"personalisation": {"name": "apfl", "alpha": 0.5}}),
)


@pytest.mark.parametrize(("trainer", "keys"), TWO_POINTS)
def test_a_second_gradient_at_a_batch_sees_the_same_batch(
    trainer: str, keys: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    """A forward may write to its input."""
    client = {"optimizer": {"name": "sgd", "lr": 0.1}, "batch_size": 4, **keys}
    exp = experiment(client=client, rounds=2, engine={"workers": 0, "trainer": trainer}, model={"name": "own"})
    own = raysim.FederatedDataset.from_clients(*({f"c{i}": dataset.train.client(i) for i in range(20)},) * 2)
    apart, in_place = (
        [bits(each) for each in raysim.rounds(exp, dataset=own, model=partial(Halving, way))] for way in (False, True)
    )
    assert in_place == apart


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("optimizer", ["adagrad", "adam"])
@pytest.mark.parametrize("correction", ["prox", "feddane", "feddyn"])
def test_a_pull_leaves_weights_without_a_gradient_where_they_are(
    correction: str, optimizer: str, dtype: str, experiment: Make
) -> None:
    # The first pixel of every digit is 0. What rounding leaves of pull y - pull x there, Adagrad makes to whole steps.
    exp = experiment(
        data={"name": "digits", "clients": 4},
        model={"name": "linear"},
        client={
            "optimizer": {"name": optimizer, "lr": 0.02},
            "batch_size": 32,
            "local_steps": 3,
            "correction": {"name": correction, "mu": 0.1},
        },
        server={"weighting": "uniform"},
        cohort={"size": 4},
        engine={"workers": 0, "dtype": dtype},
    )
    first, *_, last = raysim.rounds(exp.changed(["rounds=3"]))
    (name,) = (name for name in first.params if name.endswith("weight"))
    begun = first.params[name][:, 0]
    assert begun.abs().max() > 0
    assert torch.equal(last.params[name][:, 0], begun)
    assert not torch.equal(last.params[name][:, 20], first.params[name][:, 20])
