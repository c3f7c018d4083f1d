"""Operators of a recorded step on rows of those places alone that count: which these are, and LSTMs over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysim.client.trainers.kernel.lstm import CompiledLstm
from raysim.client.trainers.packing import pack
from raysim.client.trainers.recording.stand_in import OwnOperator


@dataclass(frozen=True)
class CountedPlaces(OwnOperator):
    """From the factors of all places, 0 where one does not count: which do, among all places, text by text and place by
    place, int64 (N,) each; how many texts reach each place; and which row is before each, see `Packing`.

    packs: for LSTMs, which need all places up to the last one of a text that counts.
    """

    packs: bool

    _schema = torch._C.parse_schema("raysim::counted_places(Tensor factors) -> (Tensor, Tensor, int[], Tensor)")

    def __call__(self, factors: Tensor) -> tuple[Tensor, Tensor, Sequence[int], Tensor]:
        """See there."""
        counts = factors != 0
        if self.packs:
            packing = pack(counts)
            places, reaching, before = packing.places, packing.reaching, packing.before
        else:
            places, reaching = counts.flatten().nonzero().select(1, 0), []
            before = places
        texts, length = len(counts), counts[0].numel()
        by_place = places % length * texts + places // length
        return places, by_place, reaching, before


@dataclass(frozen=True)
class PackedForward(OwnOperator):
    """`CompiledLstm.forward_packed`, by `by`: outputs and the states before them, gates, cells and their tanh."""

    by: CompiledLstm

    _schema = torch._C.parse_schema(
        "raysim::packed_lstm(Tensor added, Tensor u, int[] reaching, Tensor before) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor)"
    )

    def __call__(self, added: Tensor, u: Tensor, reaching: Sequence[int], before: Tensor) -> tuple[Tensor, ...]:
        """See there."""
        if not reaching:
            nothing = added.new_empty(0, u.shape[1])
            return nothing, nothing, added, nothing, nothing
        states, *kept = self.by.forward_packed(added, u, reaching)
        return states[reaching[0] :], states[before], *kept


@dataclass(frozen=True)
class PackedBackward(OwnOperator):
    """`CompiledLstm.backward_packed`, by `by`."""

    by: CompiledLstm

    _schema = torch._C.parse_schema(
        "raysim::packed_lstm_backward(Tensor dy, Tensor gates, Tensor cells, Tensor squashed, Tensor u, int[] reaching)"
        " -> Tensor"
    )

    def __call__(
        self, dy: Tensor, gates: Tensor, cells: Tensor, squashed: Tensor, u: Tensor, reaching: Sequence[int]
    ) -> Tensor:
        """See there."""
        if not reaching:
            return gates
        return self.by.backward_packed(dy, (gates, cells, squashed), u, reaching)
