"""AdaFL: clients whose models lie far from the new one are drawn more often.

Attention a_i is proportional to n_i at first; a round's participants get a_i <- alpha a_i + (1 - alpha) s d_i / sum d,
d_i = |x_new - y_i| over the participants; then all are renormalised. s = 1, so participants gain on the others; with
`keep_total` s is the sum of the participants' a_i, so that they share anew what they had. Cohorts are drawn without
replacement, one client after another in proportion to attention: by the smallest of E_i / a_i, E_i exponential and
addressed by (seed, round, client), which is the same law (Efraimidis and Spirakis 2006) and nested across sizes.

State: the attention of every client, float64 (N,). Source: Chen et al. (2021), algorithm 1; docs/algorithms.md section
5; the code of Yang et al. (2023), behind their table 3, for `keep_total`. Departure: y_i is the client's model after
clipping, as the server sees it. Cost is O(N) a round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field

from raysim import seeds
from raysim.cohort.sampler import CohortAt, Participant, Positions, Sampler, State
from raysim.config.section import Section


class AdaFl(Section):
    """Attention to clients whose models are far from the global one."""

    name: Literal["adafl"] = "adafl"
    alpha: float = Field(0.9, ge=0, le=1, description="Decay of a client's attention.")
    keep_total: bool = Field(
        False,
        description=(
            "Participants share anew the attention that they had together, as in the code of Yang et al. (2023); "
            "otherwise they gain on the other clients."
        ),
    )


def next_attention(
    attention: npt.NDArray[Any],
    alpha: float,
    positions: Positions,
    distances: npt.NDArray[Any],
    keep_total: bool = False,
) -> npt.NDArray[Any]:
    """The attention after a round.

    >>> before, positions, distances = np.array([0.25, 0.25, 0.5]), np.array([0, 1]), np.array([3.0, 1.0])
    >>> next_attention(before, 0.0, positions, distances, keep_total=True).tolist()
    [0.375, 0.125, 0.5]
    >>> next_attention(before, 0.0, positions, distances).tolist()
    [0.5, 0.16666666666666666, 0.3333333333333333]
    """
    total = distances.sum()
    shares = distances / total if total > 0 else np.full(len(distances), 1 / max(1, len(distances)))
    after = attention.copy()
    shared = attention[positions].sum() if keep_total else 1.0
    after[positions] = alpha * attention[positions] + (1 - alpha) * shared * shares
    return np.asarray(after / after.sum())


def in_proportion(amounts: npt.NDArray[Any], seed: int, round_index: int, size: int) -> Positions:
    """Draw clients without replacement, one after another in proportion to their amounts; the order is that of drawing.

    The draws are addressed by (seed, round, client), so the clients are nested across sizes.
    """
    draws = seeds.keys(seed, "cohort", round_index, np.arange(len(amounts)))
    uniform = ((draws >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    waits = np.full(len(amounts), np.inf)
    np.divide(-np.log(uniform), amounts, out=waits, where=amounts > 0)
    return np.argsort(waits, kind="stable")[:size].astype(np.int64)


def make(section: AdaFl) -> Sampler:
    """The attention is the state.

    >>> from raysim.cohort.sampler import drawn_in
    >>> (cohort,) = drawn_in(1, make(AdaFl()), [0, 1, 1, 0, 1], size=3)  # at first attention is n_i / n
    >>> sorted(cohort)
    [1, 2, 4]
    """

    def init(at: CohortAt) -> State:
        return {"attention": torch.from_numpy(at.examples / at.examples.sum())}

    def sample(state: State, at: CohortAt) -> Positions:
        return in_proportion(state["attention"].numpy(), at.seed, at.round, at.size)

    def learn(state: State, participants: Sequence[Participant]) -> State:
        positions = np.array([one.position for one in participants], dtype=np.int64)
        distances = np.array([one.distance for one in participants])
        attention = next_attention(state["attention"].numpy(), section.alpha, positions, distances, section.keep_total)
        return {"attention": torch.from_numpy(attention)}

    return Sampler(init, sample, learn, needs_distances=True, name=section.name)
