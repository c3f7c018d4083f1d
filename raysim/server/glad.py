"""FedGLAD: scales the server step by the clients' agreement relative to that of earlier rounds.

Per unit u of the scope: f_u = min(max(GSI_u^t / B_u^t, 1 - gamma t), 1 + gamma t), t = number of finished rounds, so
f = 1 at t = 0. The baseline B_u^0 = GSI_u^0, B_u^{t+1} = beta B_u^t + (1 - beta) GSI_u^t, is used before it is updated
and is never bounded. gamma = 0 is off, gamma = "inf" unbounded. `optimizer.Descent` defines where f acts.

State: B per unit, in `ServerState.glad`; empty until the first round that was measured. A round with fewer than two
clients measures no agreement: its factor is 1 and its baseline stays.

Source: Yang et al. (2023), algorithm 1; docs/algorithms.md section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor

from raysim.config.section import Section
from raysim.config.values import NonNegative
from raysim.server.agreement import gsi

State = Mapping[str, Tensor]
Scope = Literal["group", "layer", "universal"]


class Glad(Section):
    """FedGLAD."""

    beta: float = Field(0.9, ge=0, le=1, description="Decay of a baseline.")
    gamma: NonNegative | Literal["inf"] = Field(
        0.02, description='Rate per round at which the bounds of the factors open; "inf": no bounds, 0: off.'
    )
    scope: Scope = Field(
        "group",
        description='One factor per named tensor ("group"), per module ("layer"), or for the model ("universal").',
    )


class Factors(NamedTuple):
    """`groups`: f per parameter group. Per unit of the scope: `baselines`, B before its update, and `ratios`, GSI / B
    before its bounds; None where not defined. `bounded`: share of the units whose ratio met a bound."""

    groups: tuple[float, ...]
    baselines: tuple[float | None, ...]
    ratios: tuple[float | None, ...]
    bounded: float
    state: State


def unit_names(scope: Scope, names: Sequence[str]) -> list[str]:
    """The unit of each group: "fc1.weight" and "fc1.bias" share the layer "fc1"; the whole model has no name.

    >>> unit_names("layer", ["fc1.weight", "fc1.bias", "fc2.weight"])
    ['fc1', 'fc1', 'fc2']
    """
    return {
        "group": list(names),
        "layer": [name.rpartition(".")[0] for name in names],
        "universal": [""] * len(names),
    }[scope]


def units(scope: Scope, names: Sequence[str]) -> list[int]:
    """The unit of each group, numbered in order of appearance."""
    keys = unit_names(scope, names)
    number = {key: index for index, key in enumerate(dict.fromkeys(keys))}
    return [number[key] for key in keys]


def bounded(ratio: float, gamma: float | str, t: int) -> float:
    """min(max(ratio, 1 - gamma t), 1 + gamma t).

    >>> bounded(3.0, 0.5, t=0), bounded(3.0, 0.5, t=2), bounded(3.0, "inf", t=0)
    (1.0, 2.0, 3.0)
    """
    if isinstance(gamma, str):
        return ratio
    return min(max(ratio, 1 - gamma * t), 1 + gamma * t)


def unmeasured(unit_of: Sequence[int], state: State) -> Factors:
    """The factors of a round with fewer than two clients, which measures no agreement."""
    count = max(unit_of) + 1
    baselines = tuple(state["baselines"].tolist()) if state else (None,) * count
    return Factors((1.0,) * len(unit_of), baselines, (None,) * count, 0.0, state)


def factors(
    section: Glad,
    unit_of: Sequence[int],
    mean_squared_norms: Sequence[float],
    squared_norms_of_mean: Sequence[float],
    state: State,
    t: int,
) -> Factors:
    """The factors of a round with at least two clients, and the baselines of the next.

    Args:
        section: beta, gamma and scope.
        unit_of: from `units`, one per group.
        mean_squared_norms, squared_norms_of_mean: sum_i p_i |g_i,P|^2 and |sum_i p_i g_i,P|^2 per group.
        state: the baselines.
        t: number of finished rounds.
    """
    count = max(unit_of) + 1
    spread, mean = [0.0] * count, [0.0] * count
    for unit, squares, square in zip(unit_of, mean_squared_norms, squared_norms_of_mean, strict=True):
        spread[unit] += squares
        mean[unit] += square
    now = [gsi(s, m) for s, m in zip(spread, mean, strict=True)]
    before = state["baselines"].tolist() if state else now
    ratios = [measured / baseline for measured, baseline in zip(now, before, strict=True)]
    chosen = [bounded(ratio, section.gamma, t) for ratio in ratios]
    after = [section.beta * b + (1 - section.beta) * g for b, g in zip(before, now, strict=True)] if state else now
    return Factors(
        groups=tuple(chosen[unit] for unit in unit_of),
        baselines=tuple(before),
        ratios=tuple(ratios),
        bounded=sum(f != ratio for f, ratio in zip(chosen, ratios, strict=True)) / count,
        state={"baselines": torch.tensor(after, dtype=torch.float64)},
    )
