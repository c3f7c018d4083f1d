"""Packs texts of several lengths: one row for each place up to the last of its text that counts, and none behind it.

Rows are by place, and of a place by text, the longest first. So the texts that reach a place are the first ones of the
place before, which is what an LSTM needs to go through them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Packing:
    """Where the rows of packed texts are from.

    places: int64 (N,), of each row the place among those of all texts, text by text. reaching: how many texts reach
    each place, N together. before: int64 (N,), the row of the state before each place, where a row for each text that
    counts comes before all.
    """

    places: Tensor
    reaching: Sequence[int]
    before: Tensor


def pack(counts: Tensor) -> Packing:
    """Pack the places up to the last that counts; bool (texts, places).

    >>> packing = pack(torch.tensor([[True, False, False], [False, True, True]]))
    >>> packing.places.tolist(), list(packing.reaching), packing.before.tolist()
    ([3, 0, 4, 5], [2, 1, 1], [0, 1, 2, 4])
    """
    length = counts.shape[1]
    place = torch.arange(length)
    lengths = torch.where(counts, place + 1, 0).amax(1)
    lengths, order = lengths.sort(descending=True, stable=True)
    reached = lengths > place.unsqueeze(1)
    reaching = [number for number in reached.sum(1).tolist() if number]
    places = (order * length + place.unsqueeze(1))[reached]
    sizes = torch.tensor(reaching, dtype=torch.int64)
    rows_before = torch.cat([sizes[:1], sizes[:-1]])
    before = torch.arange(len(places)) + (sizes[:1] - rows_before).repeat_interleave(sizes)
    return Packing(places, reaching, before)
