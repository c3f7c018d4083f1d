"""Runs with a correction on the tanh network, all weights as one vector."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import raysim
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]
LR, DECAY, BATCH = 0.05, 0.9, 3
N = 5
SHAPES = {name: value.shape for name, value in start().items()}


def flat(named: dict[str, Array]) -> Array:
    return np.concatenate([np.asarray(named[name]).ravel() for name in SHAPES])


def grad(w: Array, x: Array, y: Array) -> Array:
    """Of the network's loss, all weights as one vector."""
    named, at = {}, 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        named[name], at = w[at : at + size].reshape(shape), at + size
    return flat(gradient(named, x, y))


SGD: dict[str, Any] = {"name": "sgd"}
ANY: list[dict[str, Any]] = [
    {"name": "prox", "mu": 0.4},
    {"name": "scaffold"},
    {"name": "feddyn", "mu": 0.4},
    {"name": "adabest", "mu": 0.3, "beta": 0.7},
    {"name": "feddane", "mu": 0.4},
]


def run(
    experiment: Make,
    correction: dict[str, Any] | None,
    optimizer: dict[str, Any] = SGD,
    trainer: str = "one_by_one",
    dtype: str = "float64",
    weighting: str = "uniform",
    eta: float = 1.0,
    clip: float | None = None,
    work: dict[str, Any] | None = None,
    model: Any = network,
    first: Any = None,
    everyone: bool = False,
    bound: float | None = None,
    section: dict[str, Any] | None = None,
    **server: Any,
) -> Any:
    client: dict[str, Any] = {"optimizer": {**optimizer, "lr": LR}, "lr_decay": DECAY, "batch_size": BATCH}
    client |= {"shuffle": False, **(work or {"epochs": 2})}
    client |= {} if correction is None else {"correction": correction}
    client |= {} if clip is None else {"max_grad_norm": clip}
    server |= {} if bound is None else {"clip": {"fixed": bound}}
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client=client,
        cohort={"size": N} if everyone else {"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={"weighting": weighting, "optimizer": {"name": "sgd", "lr": eta}, **server},
        **(section or {}),
        engine={"workers": 0, "dtype": dtype, "chunk_size": 2, "trainer": trainer},
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    return raysim.rounds(exp, dataset=data, model=model, params=start() if model is network else first)
