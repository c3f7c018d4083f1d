"""Whole runs against a float64 NumPy re-statement of docs/algorithms.md, written from that page and not from our code.

A tanh network with two layers, four parameter groups, unequal clients, cohorts of different sizes. Every server
optimizer, with every scope of FedGLAD, with and without clipping: params and figures of every round.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, Params, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]

LAYER = {"0.weight": "0", "0.bias": "0", "2.weight": "2", "2.bias": "2"}

OPTIMIZERS: list[dict[str, Any]] = [
    {"name": "sgd", "lr": 0.7},
    {"name": "momentum", "lr": 0.5, "beta1": 0.8},
    {"name": "momentum", "lr": 0.5, "beta1": 0.8, "dampened": True},
    {"name": "adagrad", "lr": 0.1, "eps": 1e-2, "v0": 1e-3},
    {"name": "adagrad", "lr": 0.1, "eps": 1e-2, "beta1": 0.6},
    {"name": "adam", "lr": 0.05},
    {"name": "adam", "lr": 0.05, "bias_correction": "epsilon_hat", "eps": 1e-2, "v0": 1e-4},
    {"name": "adam", "lr": 0.05, "bias_correction": "kingma", "beta2": 0.9},
    {"name": "yogi", "lr": 0.05},
    {"name": "yogi", "lr": 0.05, "bias_correction": "epsilon_hat", "v0": 1e-3},
    {"name": "yogi", "lr": 0.05, "bias_correction": "kingma", "beta2": 0.5},
    {"name": "lars", "lr": 0.2, "weight_decay": 0.03},
    {"name": "lamb", "lr": 0.2, "weight_decay": 0.03},
    {"name": "normalized", "lr": 0.1},
]
GLADS: list[dict[str, Any] | None] = [
    None,
    {"scope": "group", "gamma": 0.05},
    {"scope": "layer", "gamma": "inf", "beta": 0.7},
    {"scope": "universal", "gamma": 0.1, "beta": 0.5},
]
CLIPS: list[dict[str, Any] | None] = [None, {"initial": 0.1, "quantile": 0.6, "lr": 0.5}, {"fixed": 0.15}]


def local_delta(p: Params, x: Array, y: Array) -> Params:
    """Two epochs of SGD in batches of three, in the stored order."""
    w = {name: value.copy() for name, value in p.items()}
    for _ in range(2):
        for first in range(0, len(y), 3):
            g = gradient(w, x[first : first + 3], y[first : first + 3])
            w = {name: w[name] - 0.05 * g[name] for name in w}
    return {name: w[name] - p[name] for name in w}


def square(v: Params) -> float:
    return float(sum((a**2).sum() for a in v.values()))


class Server:
    """docs/algorithms.md, sections 1 and 2, in the words of the page."""

    def __init__(self, optimizer: dict[str, Any], glad: dict[str, Any] | None, clip: dict[str, Any] | None) -> None:
        defaults = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.0, "v0": 0.0}
        if optimizer["name"] == "adagrad":
            defaults["beta1"] = 0.0
        self.o = {**defaults, "bias_correction": "none", "dampened": False, **optimizer}
        self.glad = {"beta": 0.9, "gamma": 0.02, "scope": "group", **glad} if glad else None
        self.clip = clip
        self.rho = (clip.get("fixed") or clip["initial"]) if clip else np.inf
        self.x = start()
        self.m = {n: np.zeros_like(v) for n, v in self.x.items()}
        self.v = {n: np.full_like(v, self.o["v0"]) for n, v in self.x.items()}
        self.baseline: dict[str, float] = {}
        self.t = 0

    def round(self, cohort: list[str]) -> dict[str, float | None]:
        data = clients()
        deltas = [local_delta(self.x, *data[c]) for c in cohort]
        n = np.array([len(data[c][1]) for c in cohort], dtype=float)
        p = n / n.sum()
        norms = np.array([np.sqrt(square(d)) for d in deltas])
        figures: dict[str, float | None] = {"mean_update_norm": norms.mean(), "clip_level": self.rho}
        figures["mean_cosine_similarity"] = float(
            np.mean(
                [
                    sum((a[k] * b[k]).sum() for k in a) / np.sqrt(square(a) * square(b))
                    for a, b in itertools.combinations(deltas, 2)
                ]
            )
        )
        h = [{k: a * min(1.0, self.rho / norm) for k, a in d.items()} for d, norm in zip(deltas, norms, strict=True)]
        figures["clipped_fraction"] = float(np.mean(norms > self.rho))
        if self.clip and "fixed" not in self.clip:
            b = float(np.mean(norms <= self.rho))
            self.rho = self.rho * np.exp(-self.clip["lr"] * (b - self.clip["quantile"]))
        g = {k: -sum(pi * hi[k] for pi, hi in zip(p, h, strict=True)) for k in self.x}
        figures["pseudo_gradient_norm"] = np.sqrt(square(g))

        def index(groups: list[str]) -> float:
            of_mean = sum((g[k] ** 2).sum() for k in groups)
            return float(
                np.sqrt(
                    sum(pi * sum((hi[k] ** 2).sum() for k in groups) for pi, hi in zip(p, h, strict=True)) / of_mean
                )
            )

        figures["gsi"] = index(list(self.x))
        figures |= {f"gsi/{k}": index([k]) for k in self.x}
        f = self.factors(index, figures)
        if self.glad:
            figures |= {f"glad_factor/{k}": f[k] for k in self.x}
        self.step(g, f)
        figures["params_norm"] = np.sqrt(square(self.x))
        self.t += 1
        return figures

    def factors(self, index: Callable[[list[str]], float], figures: dict[str, float | None]) -> dict[str, float]:
        if not self.glad:
            return dict.fromkeys(self.x, 1.0)
        unit = {"group": {k: k for k in LAYER}, "layer": LAYER, "universal": dict.fromkeys(LAYER, "")}[
            self.glad["scope"]
        ]
        f = {}
        for u in dict.fromkeys(unit.values()):
            now = index([k for k in unit if unit[k] == u])
            before = self.baseline.setdefault(u, now)
            ratio, gamma = now / before, self.glad["gamma"]
            figures |= {f"gsi_baseline/{u}".rstrip("/"): before, f"gsi_unbounded/{u}".rstrip("/"): ratio}
            f[u] = ratio if gamma == "inf" else min(max(ratio, 1 - gamma * self.t), 1 + gamma * self.t)
            self.baseline[u] = self.glad["beta"] * before + (1 - self.glad["beta"]) * now if self.t else now
        return {k: f[unit[k]] for k in self.x}

    def step(self, g: Params, f: dict[str, float]) -> None:
        o, name, lr, k = self.o, self.o["name"], self.o["lr"], self.t + 1
        b1, b2, eps, wd = o["beta1"], o["beta2"], o["eps"], o["weight_decay"]
        c1, c2 = 1 - b1**k, 1 - b2**k
        whole = np.sqrt(square(g))
        for group, x in self.x.items():
            gp, fp = g[group], f[group]
            if name == "sgd":
                new = x - lr * fp * gp
            elif name == "normalized":
                new = x - lr * fp * gp / whole
            elif name == "momentum":
                self.m[group] = b1 * self.m[group] + (1 - b1 if o["dampened"] else 1) * fp * gp
                new = x - lr * self.m[group]
            elif name == "adagrad":
                self.v[group] = self.v[group] + gp**2
                self.m[group] = b1 * self.m[group] + (1 - b1) * fp * gp
                new = x - lr * self.m[group] / (np.sqrt(self.v[group]) + eps)
            elif name in ("adam", "yogi"):
                self.m[group] = b1 * self.m[group] + (1 - b1) * fp * gp
                if name == "adam":
                    self.v[group] = b2 * self.v[group] + (1 - b2) * gp**2
                else:
                    self.v[group] = self.v[group] - (1 - b2) * gp**2 * np.sign(self.v[group] - gp**2)
                m, v = self.m[group], self.v[group]
                if o["bias_correction"] == "none":
                    new = x - lr * m / (np.sqrt(v) + eps)
                elif o["bias_correction"] == "epsilon_hat":
                    new = x - lr * np.sqrt(c2) / c1 * m / (np.sqrt(v) + eps)
                else:
                    new = x - lr * (m / c1) / (np.sqrt(v / c2) + eps)
            elif name == "lars":
                self.m[group] = b1 * self.m[group] + (1 - b1) * (gp + wd * x)
                r = np.linalg.norm(x) / (np.linalg.norm(self.m[group]) + eps)
                new = x - lr * fp * r * self.m[group]
            else:
                self.m[group] = b1 * self.m[group] + (1 - b1) * gp
                self.v[group] = b2 * self.v[group] + (1 - b2) * gp**2
                u = (self.m[group] / c1) / (np.sqrt(self.v[group] / c2) + eps) + wd * x
                new = x - lr * fp * np.linalg.norm(x) / np.linalg.norm(u) * u
            self.x[group] = new


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("clip", CLIPS, ids=["no clip", "adaptive", "fixed"])
@pytest.mark.parametrize("glad", GLADS, ids=["no glad", "group", "layer", "universal"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: " ".join(str(v) for v in o.values()))
def test_a_run_is_what_the_page_says(
    optimizer: dict[str, Any], glad: dict[str, Any] | None, clip: dict[str, Any] | None, dtype: str, experiment: Make
) -> None:
    section = {"optimizer": optimizer, "glad": glad, "clip": clip}
    run = experiment(
        rounds=ROUNDS,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 0.05}, "batch_size": 3, "epochs": 2, "shuffle": False},
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={key: value for key, value in section.items() if value is not None},
        engine={"workers": 0, "dtype": dtype, "chunk_size": 2},
    )
    rtol, atol = (1e-9, 1e-12) if dtype == "float64" else (5e-5, 5e-6)
    data = raysim.FederatedDataset.from_clients(train=clients())
    page = Server(optimizer, glad, clip)
    for done in raysim.rounds(run, dataset=data, model=network, params=start()):
        figures = page.round(COHORTS[done.index])
        for name, value in done.params.items():
            assert value.dtype == getattr(torch, dtype)
            where = f"{name}, round {done.index}"
            np.testing.assert_allclose(value.double().numpy(), page.x[name], rtol, atol, err_msg=where)
        for name, figure in figures.items():
            if name.startswith("clip") and clip is None:
                assert name not in done.metrics
                continue
            # A large index is a nearly cancelled mean, which carries as many fewer digits.
            loss = max(1.0, figure) if name.startswith("gsi") and figure is not None else 1.0
            where = f"{name}, round {done.index}"
            np.testing.assert_allclose(done.metrics[name], figure, rtol * loss, atol, err_msg=where)  # type: ignore[arg-type]
