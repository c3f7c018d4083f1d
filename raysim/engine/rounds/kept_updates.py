"""Applies rules that need every update of a round, and gives the updates' facts to samplers that learn.

The updates stay on the workers that computed them, in shards of coordinates. The driver receives only inner products
and results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysim.cohort.sampler import Participant, Positions
from raysim.engine.job import Executor, Job, Kind, Shard, UpdateQuery
from raysim.engine.plan.plan import Plan
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server.aggregators import own_rule
from raysim.server.aggregators.rule import Coordinatewise, Rule
from raysim.server.step import reweigh
from raysim.server.sums import Sums


def aggregate(
    plan: Plan, executor: Executor, rule: Rule, sums: Sums, kept: Sequence[Shard], index: int, cohort: Positions
) -> tuple[Sums, Tensor | None]:
    """Return the sums with the rule's weights, or the vector that replaces the mean, float64 (P,).

    Updates are stored in the order of chunks; the rule receives them in the order of the cohort, which breaks ties.

    Raises:
        ExperimentError: the server cannot step by the rule's result.
    """
    weights = torch.tensor([fact.weight for fact in sums.facts], dtype=torch.float64)
    place = {position: number for number, position in reversed(list(enumerate(cohort.tolist())))}
    order = torch.tensor(sorted(range(len(weights)), key=lambda row: place[sums.facts[row].position]))
    what = f"aggregator= ({rule.name}), in round {index}, must return"
    if isinstance(rule, Coordinatewise):
        vector = _answer(executor, "coordinatewise", UpdateQuery(index, weights[order], order), kept)
        vector = _without_gaps(plan.model.params, vector)
        if not bool(vector.isfinite().all()):
            raise ExperimentError(f"{what} finite numbers, but {int((~vector.isfinite()).sum())} of them are not.")
        return sums, vector
    inner = _answer(executor, "gram", UpdateQuery(index, torch.zeros(0)), kept)
    chosen = torch.empty_like(weights)
    chosen[order] = own_rule.result_of(rule, inner[order][:, order], weights[order], f"in round {index}")
    if not bool(chosen.isfinite().all()) or float(chosen.sum()) <= 0:
        raise ExperimentError(f"{what} finite coefficients whose sum is > 0, but returned {chosen[order].tolist()}.")
    return reweigh(sums, chosen, _answer(executor, "combine", UpdateQuery(index, chosen), kept)), None


def participants(
    plan: Plan, executor: Executor, step: Tensor, sums: Sums, kept: Sequence[Shard], index: int
) -> list[Participant]:
    """Return the round's clients, once each, in order of chunks: y_i = x + h_i, step = x_new - x."""
    split, distances = plan.dataset.train, [math.nan] * len(sums.facts)
    if plan.experiment.cohort.rule.needs_distances:
        distances = _answer(executor, "distances", UpdateQuery(index, step), kept).sqrt().tolist()
    by_position = {fact.position: (fact, distance) for fact, distance in zip(sums.facts, distances, strict=True)}
    examples = split.sizes(np.array(list(by_position), dtype=np.int64)).tolist()
    return [
        Participant(p, split.id_of(p), n, fact.loss, fact.norm, fact.steps, distance)
        for n, (p, (fact, distance)) in zip(examples, by_position.items(), strict=True)
    ]


def _without_gaps(layout: Layout, vector: Tensor) -> Tensor:
    """Return the vector with zeros in the gaps between its tensors, where a rule may return any value."""
    total = torch.zeros_like(vector)
    for own_piece, piece in zip(layout.pieces(total), layout.pieces(vector), strict=True):
        own_piece.copy_(piece)
    return total


def _answer(executor: Executor, kind: Kind, query: UpdateQuery, kept: Sequence[Shard]) -> Tensor:
    costs = [float(shard.stop - shard.start) for shard in kept]
    value = executor.result(executor.submit(Job(kind, query, tuple(kept), costs))).value
    assert isinstance(value, Tensor)
    return value
