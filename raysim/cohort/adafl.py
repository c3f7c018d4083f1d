"""AdaFL: clients whose models lie far from the new one are drawn more often.

Attention a_i is proportional to n_i at first; a round's participants get a_i <- alpha a_i + (1 - alpha) d_i / sum d,
d_i = |x_new - y_i| over the participants; then all are renormalised. Cohorts are drawn without replacement, one client
after another in proportion to attention: by the smallest of E_i / a_i, E_i exponential and addressed by (seed, round,
client), which is the same law (Efraimidis and Spirakis 2006) and nested across sizes.

State: the attention of every client, float64 (N,). Source: Chen et al. (2021), algorithm 1; docs/algorithms.md section
5. Departure: y_i is the client's model after clipping, as the server sees it. Cost is O(N) a round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from raysim import seeds
from raysim.cohort.sampler import Positions, Sampler, State
from raysim.config.section import Section
from raysim.seeds import Int64s


class AdaFl(Section):
    """Attention to clients whose models are far from the global one."""

    name: Literal["adafl"] = "adafl"
    alpha: float = Field(0.9, ge=0, le=1, description="Decay of a client's attention.")


def learned(
    attention: npt.NDArray[Any], alpha: float, positions: Positions, distances: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """The attention after a round."""
    total = distances.sum()
    shares = distances / total if total > 0 else np.full(len(distances), 1 / max(1, len(distances)))
    after = attention.copy()
    after[positions] = alpha * attention[positions] + (1 - alpha) * shares
    return np.asarray(after / after.sum())


def make(section: AdaFl, seed: int, sizes: Int64s, size_at: Callable[[int], int]) -> Sampler:
    """Close the functions over alpha and the clients' numbers of examples."""

    def init() -> State:
        return {"attention": torch.from_numpy(sizes / sizes.sum())}

    def sample(state: State, round_index: int) -> Positions:
        draws = seeds.keys(seed, "cohort", round_index, np.arange(len(sizes)))
        uniform = ((draws >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        attention = state["attention"].numpy()
        waits = np.full(len(sizes), np.inf)
        np.divide(-np.log(uniform), attention, out=waits, where=attention > 0)
        return np.argsort(waits, kind="stable")[: size_at(round_index)].astype(np.int64)

    def learn(state: State, positions: Positions, distances: npt.NDArray[Any]) -> State:
        return {"attention": torch.from_numpy(learned(state["attention"].numpy(), section.alpha, positions, distances))}

    return Sampler(init, sample, learn)
