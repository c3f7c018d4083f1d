"""Corrected runs against a float64 NumPy re-statement of docs/algorithms.md 3, and the identities it lists.

The network, the clients and the cohorts are those of test_trajectories.py; here all weights are one vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim import checkpoint
from raysim.engine.client_store import ClientStore
from raysim.engine.resolve import resolve
from raysim.server import manifest
from tests.test_trajectories import COHORTS, ROUNDS, Array, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]
LR, DECAY, BATCH = 0.05, 0.9, 3
N = 5
SHAPES = {name: value.shape for name, value in start().items()}


def flat(named: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(named[name]).ravel() for name in SHAPES])


def grad(w: Array, x: Array, y: Array) -> Array:
    named, at = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        named[name], at = w[at : at + size].reshape(shape), at + size
    return flat(gradient(named, x, y))


class ClientStep:
    """Local optimizers, as torch.optim prints them; `wd` is added to the gradient unless it is adamw's."""

    def __init__(self, name: str = "sgd", momentum: float = 0.0, weight_decay: float = 0.0, **_: Any) -> None:
        self.name, self.rho, self.wd = name, momentum, weight_decay
        self.m: Any = 0.0
        self.v: Any = 0.0
        self.k = 0

    def __call__(self, y: Array, g: Array, lr: float, clip: float | None) -> Array:
        if clip is not None:
            g = g * min(1.0, clip / np.linalg.norm(g))
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
                    g = g * min(1.0, self.clip / np.linalg.norm(g))
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


SGD: dict[str, Any] = {"name": "sgd"}
OPTIMIZERS: list[dict[str, Any]] = [
    SGD,
    {"name": "sgd", "momentum": 0.7, "weight_decay": 0.1},
    {"name": "adam", "weight_decay": 0.1},
    {"name": "adamw", "weight_decay": 0.1},
    {"name": "adagrad", "weight_decay": 0.1},
]
ANY: list[dict[str, Any]] = [
    {"name": "prox", "mu": 0.4},
    {"name": "scaffold"},
    {"name": "feddyn", "mu": 0.4},
    {"name": "adabest", "mu": 0.3, "beta": 0.7},
    {"name": "feddane", "mu": 0.4},
]
# v starts at 0: with the default eps the first round of the last would take a thousand times the gradient.
BASES: list[dict[str, Any]] = [{"base": "sgd"}, {"base": "momentum"}, {"base": "adam", "beta2": 0.8, "eps": 0.5}]
OWN_STEP: list[dict[str, Any]] = [
    {"name": "scaffold_m"},
    {"name": "scaffold_m", "exact": True},
    *({"name": name, **base} for name in ("mime", "mimelite") for base in BASES),
]
FORMS = ("one_by_one", "fused", "stacked", "vmap")


def run(
    experiment: Make,
    correction: dict[str, Any] | None,
    optimizer: dict[str, Any] = SGD,
    form: str = "one_by_one",
    dtype: str = "float64",
    weighting: str = "uniform",
    eta: float = 1.0,
    clip: float | None = None,
    work: dict[str, Any] | None = None,
    model: Any = network,
    first: Any = None,
    **server: Any,
) -> Any:
    client: dict[str, Any] = {"optimizer": {**optimizer, "lr": LR}, "lr_decay": DECAY, "batch_size": BATCH}
    client |= {"shuffle": False, **(work or {"epochs": 2})}
    client |= {} if correction is None else {"correction": correction}
    client |= {} if clip is None else {"max_grad_norm": clip}
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client=client,
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={"weighting": weighting, "optimizer": {"name": "sgd", "lr": eta}, **server},
        engine={"workers": 0, "dtype": dtype, "chunk_size": 2, "form": form},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    return raysim.rounds(exp, dataset=data, model=model, params=start() if model is network else first)


def follow(steps: Any, page: Page, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    for done in steps:
        page.round(COHORTS[done.index])
        got = flat({name: value.double().numpy() for name, value in done.params.items()})
        np.testing.assert_allclose(got, page.x, rtol, atol, err_msg=f"round {done.index}")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: " ".join(map(str, o.values())))
@pytest.mark.parametrize("correction", ANY, ids=lambda o: o["name"])
def test_a_corrected_run_is_what_the_page_says(
    correction: dict[str, Any], optimizer: dict[str, Any], form: str, experiment: Make
) -> None:
    follow(run(experiment, correction, optimizer, form), Page(correction, optimizer))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("correction", OWN_STEP, ids=lambda o: " ".join(map(str, o.values())))
def test_methods_with_a_step_of_their_own_are_what_the_page_says(
    correction: dict[str, Any], form: str, experiment: Make
) -> None:
    work = {"local_steps": 4} if correction["name"] == "scaffold_m" else {"epochs": 2}
    follow(run(experiment, correction, form=form, work=work), Page(correction, SGD, work=work))


@pytest.mark.parametrize("correction", [*ANY, *OWN_STEP[2:]], ids=lambda o: " ".join(map(str, o.values())))
def test_clipping_comes_after_the_correction(correction: dict[str, Any], experiment: Make) -> None:
    follow(run(experiment, correction, clip=0.5, form="stacked"), Page(correction, SGD, clip=0.5))


@pytest.mark.parametrize("correction", [*ANY, *OWN_STEP[2:]], ids=lambda o: " ".join(map(str, o.values())))
def test_in_float32_it_agrees_to_rounding(correction: dict[str, Any], experiment: Make) -> None:
    follow(run(experiment, correction, dtype="float32", form="fused"), Page(correction, SGD), 5e-5, 5e-6)


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
    for form in ("one_by_one", "fused", "stacked"):
        exp = experiment(
            rounds=2,
            model={"name": "cnn"},
            client={"optimizer": {"lr": LR}, "batch_size": 4, "correction": correction},
            cohort={"size": 3},
            engine={"workers": 0, "dtype": "float64", "form": form},
        )
        made.append(list(raysim.rounds(exp, dataset=data))[-1].params)
    for other in made[1:]:
        for name, value in made[0].items():
            torch.testing.assert_close(other[name], value, rtol=1e-9, atol=1e-12)


# Identities


def params_of(steps: Any) -> list[Array]:
    return [flat({n: v.double().numpy() for n, v in done.params.items()}) for done in steps]


@pytest.mark.parametrize(
    "correction",
    [{"name": "prox", "mu": 0.0}, {"name": "adabest", "mu": 0.0, "beta": 0.0}, {"name": "mimelite", "base": "sgd"}],
    ids=lambda o: o["name"],
)
def test_a_correction_of_nothing_is_fedavg(correction: dict[str, Any], experiment: Make) -> None:
    for got, wanted in zip(params_of(run(experiment, correction)), params_of(run(experiment, None)), strict=True):
        np.testing.assert_allclose(got, wanted, 1e-12, 1e-14)


@dataclass(frozen=True)
class Run:
    """After every round the model that is broadcast next and the server's half; after the last the clients' vectors."""

    models: list[Array]
    halves: list[dict[str, Array]]
    own: dict[str, Array]


def recorded(experiment: Make, folder: Path, correction: dict[str, Any]) -> Run:
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"lr": LR}, "batch_size": BATCH, "epochs": 2, "correction": correction},
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        engine={"workers": 0, "dtype": "float64"},
        checkpoint={"every": 1, "keep": ROUNDS},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    raysim.run(exp, dataset=data, model=network, params=start(), path=folder, progress=False)
    after = [checkpoint.read(file) for file in sorted((folder / "checkpoints").iterdir())]
    store, layout = ClientStore(folder / "client_state", None, str), resolve(exp, data, network).model.params

    def plain(vector: torch.Tensor) -> Array:
        return flat({name: value.numpy() for name, value in layout.views(vector).items()})

    last = after[-1]
    places = manifest.places(last.clients, range(N)).items()
    return Run(
        [plain(state.weights.params) for state in after],
        [{name: plain(value) for name, value in state.correction.items()} for state in after],
        {str(i): plain(store.read(i, place, last.weights.params)) for i, place in places},
    )


def test_scaffolds_c_is_the_mean_over_all_clients(experiment: Make, tmp_path: Path) -> None:
    done = recorded(experiment, tmp_path / "run", {"name": "scaffold"})
    np.testing.assert_allclose(done.halves[-1]["c"], sum(done.own.values()) / N, 1e-12, 1e-14)


def test_scaffold_m_with_the_exact_factor_is_scaffold(experiment: Make) -> None:
    work = {"local_steps": 4}
    one = params_of(run(experiment, {"name": "scaffold"}, work=work))
    for got, wanted in zip(
        params_of(run(experiment, {"name": "scaffold_m", "exact": True}, work=work)), one, strict=True
    ):
        np.testing.assert_allclose(got, wanted, 1e-11, 1e-13)


def test_adabests_h_is_a_power_series_of_the_pseudo_gradients(experiment: Make, tmp_path: Path) -> None:
    beta = 0.7
    done = recorded(experiment, tmp_path / "run", {"name": "adabest", "mu": 0.3, "beta": beta})
    received = [flat(start()), *done.models]
    gbar = [x - half["average"] for x, half in zip(received, done.halves, strict=False)]
    for t, half in enumerate(done.halves, start=1):
        series = sum(beta ** (t - s + 1) * gbar[s - 1] for s in range(1, t + 1))
        np.testing.assert_allclose(half["h"], series, 1e-10, 1e-12)


@pytest.mark.parametrize("correction", ANY[2:4], ids=lambda o: o["name"])
def test_the_average_moves_by_h_and_the_pseudo_gradient(
    correction: dict[str, Any], experiment: Make, tmp_path: Path
) -> None:
    done = recorded(experiment, tmp_path / "run", correction)
    for x, (before, now) in zip(done.models, pairwise(done.halves), strict=False):
        gbar = x - now["average"]
        np.testing.assert_allclose(before["average"] - now["average"], before["h"] + gbar, 1e-10, 1e-13)


def test_feddyns_h_is_the_gradient_where_local_training_converged(experiment: Make, tmp_path: Path) -> None:
    """0 = grad f_i(y) - h_i - mu (x - y) at the local optimum y, so h_i + mu (x - y), the new h_i, is grad f_i(y)."""
    exp = experiment(
        rounds=2,
        model=None,
        client={"batch_size": "full", "local_steps": 500, "correction": {"name": "feddyn", "mu": 2.0}},
        cohort={"sampler": {"name": "replay", "cohorts": [["0"], ["0"]]}},
        engine={"workers": 0, "dtype": "float64"},
    )
    x, y = np.array([[1.0, 0.5], [0.2, -1.0], [0.3, 0.3]]), np.array([1.0, 0.0, 2.0])
    data = raysim.FederatedDataset.from_clients(train={"0": (x, y), "1": (x, y)})
    raysim.run(exp, dataset=data, model=lambda: nn.Linear(2, 1, bias=False), path=tmp_path / "run", progress=False)
    state = checkpoint.read(next((tmp_path / "run" / "checkpoints").iterdir()))
    place = manifest.places(state.clients, [0])[0]
    h = ClientStore(tmp_path / "run" / "client_state", None, str).read(0, place, state.weights.params).numpy()[:2]
    # One client in the cohort: its model is the average.
    end = state.correction["average"].numpy()[:2]
    np.testing.assert_allclose(h, 2 * (x @ end - y) @ x / 3, 1e-8, 1e-10)


@pytest.mark.parametrize("gamma", [0.0, 0.3])
@pytest.mark.parametrize("correction", ANY[2:4], ids=lambda o: o["name"])
def test_fedglads_factor_feeds_the_average_and_h(
    correction: dict[str, Any], gamma: float, experiment: Make, tmp_path: Path
) -> None:
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"lr": LR}, "correction": correction},
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={"glad": {"scope": "universal", "gamma": gamma, "beta": 0.5}},
        engine={"workers": 0, "dtype": "float64"},
        checkpoint={"every": 1, "keep": ROUNDS},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    result = raysim.run(exp, dataset=data, model=network, params=start(), path=tmp_path / "run", progress=False)
    after = [checkpoint.read(file) for file in sorted((tmp_path / "run" / "checkpoints").iterdir())]
    rows = result.rounds.to_pylist()
    factors = [row["glad_factor/0.weight"] for row in rows]
    assert (gamma == 0) == all(f == 1 for f in factors)
    for before, now, row, f in zip(after[:-1], after[1:], rows[1:], factors[1:], strict=True):
        # |x - thetabar| = f |gbar|, and all that is remembered follows from thetabar.
        moved = before.weights.params - now.correction["average"]
        np.testing.assert_allclose(float(moved.norm()), f * row["pseudo_gradient_norm"], 1e-9)
        if correction["name"] == "feddyn":
            h = before.correction["h"] + row["clients"] / N * moved
        else:
            h = correction["beta"] * (before.correction["average"] - now.correction["average"])
        np.testing.assert_allclose(now.correction["h"].numpy(), h.numpy(), 1e-9, 1e-12)
