"""A tanh network with four parameter groups, five unequal clients, and cohorts of different sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import nn

Array = np.ndarray[Any, np.dtype[np.float64]]
Params = dict[str, Array]

ROUNDS = 6
COHORTS = [["0", "1", "2"], ["3", "1"], ["4", "2", "0", "1"], ["2", "3"], ["0", "4", "3"], ["1", "4"]]
SIZES = [3, 8, 5, 2, 11]


def clients() -> dict[str, tuple[Array, Array]]:
    rng = np.random.default_rng(11)
    return {str(i): (rng.normal(size=(n, 3)), rng.normal(size=n) + 0.3 * i) for i, n in enumerate(SIZES)}


def start() -> Params:
    rng = np.random.default_rng(12)
    shapes: dict[str, tuple[int, ...]] = {"0.weight": (4, 3), "0.bias": (4,), "2.weight": (1, 4), "2.bias": (1,)}
    return {name: 0.5 * rng.normal(size=shape) for name, shape in shapes.items()}


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))


def gradient(p: Params, x: Array, y: Array) -> Params:
    """Of the mean squared error of w2 tanh(w1 x + b1) + b2."""
    hidden = np.tanh(x @ p["0.weight"].T + p["0.bias"])
    error = 2 * (hidden @ p["2.weight"][0] + p["2.bias"][0] - y)[:, None] / len(y)
    back = error * p["2.weight"] * (1 - hidden**2)
    return {
        "0.weight": back.T @ x,
        "0.bias": back.sum(0),
        "2.weight": error.T @ hidden,
        "2.bias": error.sum(0),
    }
