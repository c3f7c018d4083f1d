"""Computes what rules ask of a shard of kept updates, and cuts updates into shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from raysim.engine.job import Kind, Part, Shard, UpdateQuery
from raysim.server.aggregators import own_rule, updates
from raysim.server.aggregators.rule import Rule
from raysim.server.aggregators.updates import Bounds


def carry_out(kind: Kind, query: UpdateQuery, shard: Shard, rule: Rule | None, worker: str) -> Tensor:
    """Return the shard's part of what the kind of job computes; `worker`: the name of this process in errors."""
    rows = _rows(shard)
    if kind == "gram":
        return updates.gram(rows)
    if kind == "combine":
        return updates.combine(rows, query.vector)
    if kind == "distances":
        return updates.squared_distances(rows, query.vector[shard.start : shard.stop])
    assert kind == "coordinatewise", kind
    assert rule is not None
    return own_rule.result_of(rule, rows[query.order], query.vector, f"in round {query.round} on {worker}")


def _rows(shard: Shard) -> Tensor:
    """Return the rows (M, P_s) in the order of units, which is the order of the sums' facts."""
    parts = [part for part in shard.parts if isinstance(part, Mapping)]
    assert len(parts) == len(shard.parts)
    by_unit = {unit: rows for part in parts for unit, rows in part.items()}
    return torch.cat([by_unit[unit] for unit in sorted(by_unit)])


def cut_into_shards(rows: Mapping[int, Sequence[Tensor]], bounds: Sequence[Bounds]) -> list[Part]:
    """Cut updates by unit into one part per shard, each in separate memory."""
    stacked = {unit: torch.stack(list(updates)).cpu() for unit, updates in rows.items() if updates}
    return [{unit: matrix[:, a:b].contiguous() for unit, matrix in stacked.items()} for a, b in bounds]
