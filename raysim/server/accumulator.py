"""Adds up the clients of a chunk: from updates and their facts to `Sums`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Bools, Float64s, Int64s
from raysim.models import vectors
from raysim.models.model import Model
from raysim.server.sums import Sums, UpdateFacts
from raysim.server.weighted_rows import add_rows, sum_of_rows

FLOATS = ("weight", "normaliser", "norm", "squared_norm", "fourth_power", "loss", "correct", "weighted_steps")
"""Fields of `Sums` that are added client after client, in float64."""

COUNTS = ("clients", "moving", "within_clip", "within_zeroing", "zeroed", "held", "seen", "steps")
"""Fields of `Sums` that are whole numbers."""

RAISED = 2.0**64
"""By which an update is multiplied, exactly, whose norm is so small that 1 / norm is no number of float32."""


@dataclass(frozen=True, slots=True)
class Contributions:
    """What enters the sums of k clients beside their vectors, (k,) each; a client is drawn `count` times.

    included: whether the client is in the sums at all; if not, its other entries may be anything. weight: w_i of one
    draw. held: the client's examples, n_i. squared_norm: |delta_i|^2. seen: examples met in training. loss, correct:
    sums over these. judged_scale, within_clip, within_zeroing: what clipping and zeroing make of the update
    (clipping.py). update_divisor: fednova's a_i, by which it is then divided. mean_divisor: what fednova's tau_eff
    averages, or what a fair objective divides the mean by. count: see above. steps: local steps taken. labels: (k, L),
    label counts.
    """

    included: Bools
    weight: Float64s
    held: Int64s
    squared_norm: Float64s
    seen: Int64s
    loss: Float64s
    correct: Float64s
    judged_scale: Float64s
    within_clip: Bools
    within_zeroing: Bools
    update_divisor: Float64s
    mean_divisor: Float64s
    count: Int64s
    steps: Int64s
    labels: Tensor | None = None

    @classmethod
    def plain(
        cls,
        weight: Float64s,
        held: Int64s,
        *,
        loss: Float64s | None = None,
        correct: Float64s | None = None,
        squared_norm: Float64s | None = None,
        count: Int64s | None = None,
        included: Bools | None = None,
    ) -> Contributions:
        """Return contributions of clients that met each example once, in no local step: nothing is clipped or divided.

        What is left out is 0; of `count`, 1; of `included`, all.
        """
        none, one, yes = np.zeros(len(held)), np.ones(len(held)), np.ones(len(held), np.bool_)
        return cls(
            included=yes if included is None else included,
            weight=weight,
            held=held,
            squared_norm=none if squared_norm is None else squared_norm,
            seen=held,
            loss=none if loss is None else loss,
            correct=none if correct is None else correct,
            judged_scale=one,
            within_clip=yes,
            within_zeroing=yes,
            update_divisor=one,
            mean_divisor=one,
            count=np.ones(len(held), np.int64) if count is None else count,
            steps=np.zeros(len(held), np.int64),
        )

    @property
    def scale(self) -> Float64s:
        """What each update is multiplied with before it is added up."""
        return self.judged_scale / self.update_divisor

    @property
    def rows(self) -> Int64s:
        """Which clients are included."""
        return np.flatnonzero(self.included)

    def select(self, rows: Int64s) -> Contributions:
        """Return these clients'."""
        every: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        chosen: dict[str, Any] = {name: None if column is None else column[rows] for name, column in every.items()}
        return Contributions(**chosen)


class Divided(NamedTuple):
    """Updates of clients that were measured together, divided number by number by their a_i.

    deltas: (k, P). squared_norms: float64 (k, G), of these. shares: 1 / a_i, (k, P) or (k, 1); None: not summed.
    """

    deltas: Tensor
    squared_norms: Tensor
    shares: Tensor | None

    def select(self, rows: Tensor) -> Divided:
        """Return these rows."""
        return Divided(*(None if value is None else value.index_select(0, rows) for value in self))  # type: ignore[arg-type]


class Compressed(NamedTuple):
    """What clients that were measured together send in place of h_i.

    vectors: Q(a_i), (k, P). squared_norms: float64 (k, G), of these. facts: float64 (k, 3), |a_i|^2, |Q(a_i) - a_i|^2
    and |e_i|.
    """

    vectors: Tensor
    squared_norms: Tensor
    facts: Tensor

    def select(self, rows: Tensor) -> Compressed:
        """Return these rows."""
        return Compressed(*(value.index_select(0, rows) for value in self))


@dataclass(frozen=True)
class Sizes:
    """How many numbers the vectors of sums have; 0: what they would add up is not asked for.

    params, buffers, counters: P, B and C, of the model. groups: G, its parameter groups.
    labels: classes that are counted.
    shares: of a client's 1 / a_i.
    encoded: of a message.
    configs: configurations of FedEx.
    units, changes: whether unit updates, and changes of the clients' states, are added up; both are (P,).
    """

    params: int
    buffers: int = 0
    counters: int = 0
    groups: int = 0
    labels: int = 0
    shares: int = 0
    encoded: int = 0
    configs: int = 0
    units: bool = False
    changes: bool = False

    @classmethod
    def of(cls, model: Model) -> Sizes:
        """Return the sizes of a model's sums, without what only some runs add up."""
        return cls(model.params.size, model.buffers.size, model.counters.size, len(model.params.names))


class Accumulator:
    """Adds up the clients of a chunk, in order, on the device where they were trained.

    Sums are of float64, except for those of unit updates and of changes, which are of `dtype`, the model's.
    """

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        # Made by the first update, which is written where zeros would be.
        self._delta: Tensor | None = None
        self._units: Tensor | None = None
        self._num_params, self._device, self._dtype = sizes.params, device, dtype
        self._num_units = sizes.params if sizes.units else 0
        self._buffers = vectors.zeros(sizes.buffers, torch.float64, device)
        self._counters = torch.full((sizes.counters,), torch.iinfo(torch.int64).min, device=device)
        self._squared_norms = vectors.zeros(sizes.groups, torch.float64, device)
        self._changes = vectors.zeros(sizes.params if sizes.changes else 0, dtype, device)
        self._shares = vectors.zeros(sizes.shares, torch.float64, device)
        self._encoded = vectors.zeros(sizes.encoded, torch.float64, device)
        self._compression = vectors.zeros(3, torch.float64, device)
        self._labels = vectors.zeros(sizes.labels, torch.int64, device)
        self._scored = vectors.zeros(2 * sizes.configs, torch.float64, device)
        if sizes.configs:
            self._scored = self._scored.view(sizes.configs, 2)
        self._floats, self._counts = np.zeros(len(FLOATS)), np.zeros(len(COUNTS), np.int64)
        self._rejected: list[int] = []
        self._facts: list[UpdateFacts] = []

    def reject(self, positions: Iterable[int]) -> None:
        """List clients whose update is not finite."""
        self._rejected += positions

    def send(self, message: Tensor, count: int | None) -> None:
        """Add a client's encoded update, once per draw; None: a rejected client sends it, with a weight of 1."""
        self._encoded.add_(message.to(self._device), alpha=count or 1)
        if count is None:
            self._floats[[FLOATS.index("weight"), FLOATS.index("normaliser")]] += 1

    def include(
        self,
        clients: Contributions,
        deltas: Tensor,
        squared_norms: Tensor | None = None,
        buffers: Tensor | None = None,
        counters: Tensor | None = None,
        divided: Divided | None = None,
        compressed: Compressed | None = None,
    ) -> None:
        """Add the included ones of clients that were measured together, a row of every argument each.

        Args:
            clients: what they contribute beside their vectors.
            deltas: (k, P).
            squared_norms: |delta_i|^2 per group, float64 (k, G).
            buffers, counters: (k, B) and (k, C), after local training.
            divided: what enters the mean, if not the updates themselves.
            compressed: what is sent in place of the updates, whose scales and divisors it has.
        """
        rows = clients.rows
        if not len(rows):
            return
        if len(rows) < len(clients.included):
            # Not a coefficient of 0: a row that is left out may hold NaN.
            clients, where = clients.select(rows), torch.from_numpy(rows).to(deltas.device)
            deltas = deltas.index_select(0, where)
            squared_norms, buffers, counters = (
                None if value is None else value.index_select(0, where) for value in (squared_norms, buffers, counters)
            )
            divided = None if divided is None else divided.select(where)
            compressed = None if compressed is None else compressed.select(where)
        weights, counts, entering = clients.weight * clients.count, clients.count.astype(np.float64), deltas
        scales = clients.scale
        if divided is not None:
            entering, squared_norms = divided.deltas, divided.squared_norms
            if divided.shares is not None:
                add_rows(self._shares, weights, divided.shares)
        if compressed is not None:
            entering, squared_norms, scales = compressed.vectors, compressed.squared_norms, np.ones(len(rows))
            add_rows(self._compression, counts, compressed.facts)
        self._delta = _with_rows(self._delta, weights * scales, entering, torch.float64)
        if squared_norms is not None:
            add_rows(self._squared_norms, weights * scales**2, squared_norms)
        # Most models have neither: an empty addition costs as much as a small one.
        if buffers is not None and buffers.numel():
            add_rows(self._buffers, weights, buffers)
        if counters is not None and counters.numel():
            torch.maximum(self._counters, counters.amax(0), out=self._counters)
        norms = np.sqrt(clients.squared_norm)
        if self._num_units:
            self._add_units(counts, norms, deltas)
        self._count(clients, weights, norms)

    def _add_units(self, counts: Float64s, norms: Float64s, deltas: Tensor) -> None:
        small = (norms > 0) & (norms < counts / torch.finfo(self._dtype).max)
        if small.any():
            # A rate that has decayed far: 1 / norm is no number of the dtype.
            raised = np.where(small, RAISED, 1.0)
            norms, deltas = norms * raised, deltas * torch.from_numpy(raised).to(deltas).unsqueeze(1)
        factors = np.divide(counts, norms, out=np.zeros(len(norms)), where=norms != 0)
        self._units = _with_rows(self._units, factors, deltas, self._dtype)

    def _count(self, clients: Contributions, weights: Float64s, norms: Float64s) -> None:
        count, squares = clients.count, clients.squared_norm
        if clients.labels is not None:
            self._labels += (clients.labels * torch.from_numpy(count).to(self._device).unsqueeze(1)).sum(0)
        with np.errstate(over="ignore", invalid="ignore"):
            floats = {
                "weight": weights,
                "normaliser": weights * clients.mean_divisor,
                "norm": count * norms,
                "squared_norm": count * squares,
                "fourth_power": count * squares * squares,
                "loss": count * clients.loss,
                "correct": count * clients.correct,
                "weighted_steps": weights * clients.steps,
            }
            added = np.stack([self._floats, *np.stack([floats[name] for name in FLOATS], axis=1)])
            # Client after client, unlike a sum, whose order is NumPy's.
            self._floats = np.add.accumulate(added, axis=0)[-1]
        counts = {
            "clients": count,
            "moving": count * (norms > 0),
            "within_clip": count * clients.within_clip,
            "within_zeroing": count * clients.within_zeroing,
            "zeroed": count * (clients.judged_scale == 0),
            "held": count * clients.held,
            "seen": count * clients.seen,
            "steps": count * clients.steps,
        }
        self._counts += np.stack([counts[name] for name in COUNTS]).sum(1)

    def change(self, change: Tensor) -> None:
        """Add the change of a client's state."""
        self._changes.add_(change)

    def score(self, config: int, examples: int, error: float, count: int) -> None:
        """Add the error of a client's trained model on so many examples of its own, once per draw."""
        self._scored[config] += count * examples * self._scored.new_tensor([1.0, error])

    def note(self, clients: Contributions, positions: Int64s, squared_norms: Tensor | None) -> None:
        """Note the facts of the included clients at these positions, once per draw.

        `squared_norms` (k, G) are |h_i|^2 per group, where updates are kept.
        """
        of_groups = [[]] * len(positions) if squared_norms is None else squared_norms.tolist()
        with np.errstate(over="ignore", invalid="ignore"):
            losses, norms = clients.loss / clients.seen, np.sqrt(clients.squared_norm)
        columns = positions, clients.weight, losses, norms, clients.steps
        of_clients = zip(*(column.tolist() for column in columns), map(tuple, of_groups), strict=True)
        facts = [UpdateFacts(*of_client) for of_client in of_clients]
        for row in clients.rows.tolist():
            self._facts += [facts[row]] * int(clients.count[row])

    def total(self) -> Sums:
        """Return the sums so far, on their device: copying them would wait for the chunk."""
        values = *self._floats.tolist(), *self._counts.tolist()
        numbers: dict[str, Any] = dict(zip(FLOATS + COUNTS, values, strict=True))
        return Sums(
            delta=vectors.zeros(self._num_params, torch.float64, self._device) if self._delta is None else self._delta,
            buffers=self._buffers,
            counters=self._counters,
            squared_norms=self._squared_norms,
            units=vectors.zeros(self._num_units, self._dtype, self._device) if self._units is None else self._units,
            labels=self._labels,
            changes=self._changes,
            rejected=tuple(self._rejected),
            facts=tuple(self._facts),
            shares=self._shares,
            encoded=self._encoded,
            compression=self._compression,
            scored=self._scored,
            **numbers,
        )


def _with_rows(total: Tensor | None, coefficients: Float64s, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the sum with weighted rows added to it, in its memory; None: there is nothing in it yet."""
    if total is None:
        return sum_of_rows(coefficients, rows, dtype)
    add_rows(total, coefficients, rows)
    return total


def empty(sizes: Sizes) -> Sums:
    """The sums of no clients."""
    return Accumulator(sizes, torch.device("cpu")).total()
