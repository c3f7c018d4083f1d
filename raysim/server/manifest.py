"""Records the place of client states: round, chunk and row of the newest, for every client that took part.

State: int64 vectors of equal length, in order of position: `position`, `round`, `chunk`, `row`; empty at the start. A
round is committed by entering all its places at once; a chunk's rows that are not named here do not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from raysim.server.state import Tensors

COLUMNS = ("position", "round", "chunk", "row")


class StatePlace(NamedTuple):
    """Row `row` of the file of chunk `chunk` in round `round`."""

    round: int
    chunk: int
    row: int


def empty() -> Tensors:
    """No client took part."""
    return {name: torch.zeros(0, dtype=torch.int64) for name in COLUMNS}


def with_round(
    manifest: Tensors, round_index: int, chunks: Sequence[Sequence[int]], left_out: Iterable[int]
) -> Tensors:
    """The manifest with a round in it: row j of chunk c is its j-th client's, except for the clients left out."""
    without = set(left_out)
    entries = [
        (position, round_index, number, row)
        for number, chunk in enumerate(chunks)
        for row, position in enumerate(chunk)
        if position not in without
    ]
    new = np.array(entries, dtype=np.int64).reshape(-1, len(COLUMNS))
    old = np.stack([manifest[name].numpy() for name in COLUMNS], axis=1)
    kept = old[~np.isin(old[:, 0], new[:, 0])]
    joined = np.concatenate([kept, new])
    joined = joined[np.argsort(joined[:, 0], kind="stable")]
    return {name: torch.from_numpy(joined[:, i].copy()) for i, name in enumerate(COLUMNS)}


def places(manifest: Tensors, positions: Iterable[int]) -> dict[int, StatePlace]:
    """Where the newest states of these clients lie; those that never took part are left out."""
    rows = np.fromiter(positions, dtype=np.int64)
    known = manifest["position"].numpy()
    at = np.searchsorted(known, rows)
    is_known = at < len(known)
    is_known[is_known] = known[at[is_known]] == rows[is_known]
    columns = (manifest[name].numpy()[at[is_known]].tolist() for name in COLUMNS[1:])
    return dict(zip(rows[is_known].tolist(), map(StatePlace, *columns), strict=True))


def files(manifest: Tensors) -> set[tuple[int, int]]:
    """(round, chunk) of everything that is named."""
    if not manifest:
        return set()
    return set(zip(manifest["round"].tolist(), manifest["chunk"].tolist(), strict=True))
