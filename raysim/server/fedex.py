"""FedEx: learns in tandem with the model which of k configurations of local training clients are to have.

theta, the shares of the configurations, is 1/k at first. In round t = 0, 1, ... client i draws j_i ~ theta and trains
by it. e_i is the error of its trained model y_i on its own examples in `split`: 1 - accuracy, in regression the loss.
w_i is the share of these examples among those of the round's clients. Then

    G_j = sum over j_i = j of w_i (e_i - b) / theta_j
    log theta <- log theta - sqrt(2 ln k / (t + 1)) G, normalised

b is sum w_i e_i of the last round that has one, and 0 before it. A client without examples in `split` has no part in
this. A trained model that is not finite has e_i = 1, in regression infinity: its theta_j becomes 0, and b is of the
other clients. Where no client is left, or no theta_j above 0 would be, theta and b stay.

State: log theta, float64 (k,), and b.

Source: Khodak et al. (2021), "Federated hyperparameter tuning: challenges, baselines, and connections to
weight-sharing", algorithm 2, with the step "auto" of their code and the newest error as the baseline; Wang et al.
(2021), section 4.2.1; docs/algorithms.md section 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import Name
from raysim.server.state import Tensors

LOG_THETA, BASELINE = "log_theta", "baseline"
"""Names in the state."""

Key = Annotated[str, Field(min_length=1, max_length=300)]


class FedEx(Section):
    """FedEx: clients train by one of several configurations, whose shares follow the clients' errors."""

    split: Name = Field(
        "validation", description="Split in which a client's own examples score the model that it trained."
    )
    configs: tuple[Annotated[dict[Key, Any], Field(max_length=100)], ...] = Field(
        min_length=2,
        max_length=1_000,
        description="Changes of [client], by keys relative to it: a table of values for each configuration.",
        examples=[[{"optimizer.lr": 0.01}, {"optimizer.lr": 0.1}]],
    )


def init(count: int) -> Tensors:
    """Return the state before the first round of so many configurations."""
    equal = torch.full((count,), -math.log(count), dtype=torch.float64)
    return {LOG_THETA: equal, BASELINE: torch.zeros((), dtype=torch.float64)}


def draw_configs(state: Tensors, seed: int, round_index: int, positions: Sequence[int] | Int64s) -> Int64s:
    """Return j_i of the clients at these positions in a round.

    >>> draw_configs({"log_theta": torch.tensor([-math.inf, 0.0, -math.inf])}, 0, 0, [3, 4]).tolist()
    [1, 1]
    """
    theta = state[LOG_THETA].exp().numpy()
    keys = seeds.keys(seed, "fedex", round_index, np.asarray(positions, dtype=np.int64))
    # The shares add up to 1 except for rounding.
    last = np.flatnonzero(theta)[-1]
    places: Int64s = np.minimum(np.searchsorted(theta.cumsum(), seeds.uniforms(keys), side="right"), last)
    return places


def step(state: Tensors, round_index: int, scored: Tensor) -> tuple[Tensors, dict[str, float | None]]:
    """Return the state after a round, and its figures.

    scored: float64 (k, 2), by configuration the sums of n_i and of n_i e_i over clients with n_i examples in the split;
    (0,) of a round without clients.
    """
    log_theta, baseline = state[LOG_THETA], state[BASELINE]
    theta = log_theta.exp()
    metrics: dict[str, float | None] = {f"fedex/theta/{j}": share for j, share in enumerate(theta.tolist())}
    total = float(scored[:, 0].sum()) if len(scored) else 0.0
    if not total:
        nothing = [f"fedex/{of}/{j}" for of in ("weight", "error") for j in range(len(theta))]
        return state, metrics | dict.fromkeys(nothing)
    weights, errors = (scored / total).unbind(1)
    metrics |= {f"fedex/weight/{j}": weight for j, weight in enumerate(weights.tolist())}
    metrics |= {f"fedex/error/{j}": error if math.isfinite(error) else None for j, error in enumerate(errors.tolist())}
    # Where no client drew a configuration, its theta may be 0.
    gradient = torch.where(weights > 0, (errors - baseline * weights) / theta, 0.0)
    moved = log_theta - math.sqrt(2 * math.log(len(theta)) / (round_index + 1)) * gradient
    if not moved.isfinite().any():
        return state, metrics
    return {LOG_THETA: moved - moved.logsumexp(0), BASELINE: errors[errors.isfinite()].sum()}, metrics
