"""Defines the broadcast: what every client of a cohort receives in one phase of a round."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from torch import Tensor

from raysim.arrays import Float64s, Int64s
from raysim.models.model import Weights
from raysim.server.clipping import UNLIMITED, Limits
from raysim.server.fairness.fairness import FairWeight
from raysim.server.manifest import StatePlace

T = TypeVar("T")


@dataclass(frozen=True)
class Broadcast:
    """What every client of the cohort receives in one phase of a round.

    round: number of finished rounds. phase: its index among the algorithm's phases. lr: the clients' learning rate in
    this round. limits: levels of clipping and zeroing. repeats: by position, the number of draws of clients drawn more
    than once. beside: vectors (P,) of a correction, or of a personalisation. places: by position, the place of the
    client's state. left_out: positions that an earlier phase of the round rejected. elsewhere: those without a part in
    this phase. fair_weights: by position, how clients enter the mean under a fair objective; otherwise empty. measures:
    the updates are only for a measurement, so client states are read and not written. configs: by position, the
    configuration that each client has drawn, if there are several.
    """

    round: int
    weights: Weights
    lr: float
    limits: Limits = UNLIMITED
    repeats: Mapping[int, int] = field(default_factory=dict)
    phase: int = 0
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    places: Mapping[int, StatePlace] = field(default_factory=dict)
    left_out: frozenset[int] = frozenset()
    elsewhere: frozenset[int] = frozenset()
    fair_weights: Mapping[int, FairWeight] = field(default_factory=dict)
    measures: bool = False
    configs: Mapping[int, int] = field(default_factory=dict)


def for_clients(broadcast: Broadcast, positions: Iterable[int]) -> Broadcast:
    """Return the broadcast with what it says of these clients alone, and not of the whole cohort."""
    clients = frozenset(positions)

    def own(mapping: Mapping[int, T]) -> Mapping[int, T]:
        return {position: mapping[position] for position in clients & mapping.keys()}

    return replace(
        broadcast,
        repeats=own(broadcast.repeats),
        places=own(broadcast.places),
        left_out=broadcast.left_out & clients,
        elsewhere=broadcast.elsewhere & clients,
        fair_weights=own(broadcast.fair_weights),
        configs=own(broadcast.configs),
    )


def weighed(broadcast: Broadcast, positions: Int64s, examples: Int64s | None) -> Float64s:
    """Return the clients' weights in the round's means: their examples, or 1, unless a fair objective gave others."""
    weights = np.ones(len(positions)) if examples is None else examples.astype(np.float64)
    if broadcast.fair_weights:
        for row, position in enumerate(positions.tolist()):
            if (fair := broadcast.fair_weights.get(position)) is not None:
                weights[row] = fair.weight
    return weights


def counts(broadcast: Broadcast, positions: Int64s) -> Int64s:
    """Return how often each client was drawn."""
    if not broadcast.repeats:
        return np.ones(len(positions), np.int64)
    return np.array([broadcast.repeats.get(position, 1) for position in positions.tolist()], np.int64)
