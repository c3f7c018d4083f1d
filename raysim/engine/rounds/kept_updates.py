"""What is done with a round's updates after they were added up: rules that need them all, and samplers that learn.

The updates stay where they were made, cut into shards of coordinates; the driver sees inner products and results only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.cohort.sampler import Positions
from raysim.engine.job import Executor, Job, Kind, Shard, UpdateQuery
from raysim.server.aggregators.rule import ByCoordinate, Rule
from raysim.server.step import reweighed
from raysim.server.sums import Sums


def aggregate(
    executor: Executor, rule: Rule, sums: Sums, kept: Sequence[Shard], index: int, cohort: Positions
) -> tuple[Sums, Tensor | None]:
    """The sums as the rule weighs them, or the vector that stands in the mean's place, float64 (P,).

    Updates lie in order of chunks; the rule sees them in the order of the cohort, in which ties are broken.
    """
    if isinstance(rule.result, ByCoordinate):
        dropped = rule.result.dropped(len(sums.facts))
        return sums, _answer(executor, "trim", UpdateQuery(index, torch.zeros(0), dropped), kept)
    inner = _answer(executor, "gram", UpdateQuery(index, torch.zeros(0)), kept)
    weights = torch.tensor([fact.weight for fact in sums.facts], dtype=torch.float64)
    place = {position: number for number, position in reversed(list(enumerate(cohort.tolist())))}
    order = torch.tensor(sorted(range(len(weights)), key=lambda row: place[sums.facts[row].position]))
    chosen = torch.empty_like(weights)
    chosen[order] = rule.result.coefficients(inner[order][:, order], weights[order])
    return reweighed(sums, chosen, _answer(executor, "combine", UpdateQuery(index, chosen), kept)), None


def distances(executor: Executor, step: Tensor, sums: Sums, kept: Sequence[Shard], index: int) -> tuple[Positions, Any]:
    """|x_new - y_i| of the round's clients, with their positions: y_i = x + h_i, step = x_new - x."""
    squares = _answer(executor, "distances", UpdateQuery(index, step), kept)
    return np.array([fact.position for fact in sums.facts], dtype=np.int64), squares.sqrt().numpy()


def _answer(executor: Executor, kind: Kind, query: UpdateQuery, kept: Sequence[Shard]) -> Tensor:
    costs = [float(shard.stop - shard.start) for shard in kept]
    value: Tensor = executor.result(executor.submit(Job(kind, query, tuple(kept), costs))).value
    return value
