"""Adds up the clients of a chunk: from updates and their facts to `Sums`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.models import vectors
from raysim.models.model import Model
from raysim.server.clipping import UNTOUCHED, Judged
from raysim.server.sums import Fact, Sums
from raysim.server.weighted_rows import add_rows, sum_of_rows


@dataclass(frozen=True, slots=True)
class Contribution:
    """What enters the sums of one client, drawn `count` times, beside its vectors.

    weight: w_i of one draw. held: the client's examples, n_i. squared_norm: |delta_i|^2. loss, correct: sums over the
    `seen` examples. judged: what clipping and zeroing make of the update. divisor: fednova's a_i, by which it is then
    divided. labels: the client's label counts. normaliser: what fednova's tau_eff averages. steps: local steps taken.
    """

    weight: float
    held: int
    squared_norm: float
    seen: int
    loss: float
    correct: float
    judged: Judged = UNTOUCHED
    divisor: float = 1.0
    labels: Tensor | None = None
    count: int = 1
    normaliser: float = 1.0
    steps: int = 0


class Divided(NamedTuple):
    """Updates of clients that were trained together, divided number by number by their a_i.

    deltas: (k, P). squared_norms: float64 (k, G), of these. shares: 1 / a_i, (k, P) or (k, 1); None: not summed.
    """

    deltas: Tensor
    squared_norms: Tensor
    shares: Tensor | None

    def select(self, rows: Tensor) -> Divided:
        """Return these rows."""
        return Divided(*(None if value is None else value.index_select(0, rows) for value in self))  # type: ignore[arg-type]


class Compressed(NamedTuple):
    """What clients that were trained together send in place of h_i.

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

    Sums are of float64, but for those of unit updates and of changes, which are of `dtype`, the model's.
    """

    def __init__(self, sizes: Sizes, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        # Made by the first update, which is written where zeros would be.
        self._delta: Tensor | None = None
        self._num_params, self._device = sizes.params, device
        self._buffers = vectors.zeros(sizes.buffers, torch.float64, device)
        self._counters = torch.full((sizes.counters,), torch.iinfo(torch.int64).min, device=device)
        self._squared_norms = vectors.zeros(sizes.groups, torch.float64, device)
        self._units, self._changes = (
            vectors.zeros(sizes.params if is_kept else 0, dtype, device) for is_kept in (sizes.units, sizes.changes)
        )
        self._shares = vectors.zeros(sizes.shares, torch.float64, device)
        self._encoded = vectors.zeros(sizes.encoded, torch.float64, device)
        self._compression = vectors.zeros(3, torch.float64, device)
        self._labels = vectors.zeros(sizes.labels, torch.int64, device)
        self._scored = vectors.zeros(2 * sizes.configs, torch.float64, device)
        if sizes.configs:
            self._scored = self._scored.view(sizes.configs, 2)
        self._weight = self._norm = self._squared_norm = self._fourth_power = self._loss = self._correct = 0.0
        self._clients = self._moving = self._held = self._seen = self._steps = 0
        self._within_clip = self._within_zeroing = self._zeroed = 0
        self._normaliser = self._weighted_steps = 0.0
        self._rejected: list[int] = []
        self._facts: list[Fact] = []

    def reject(self, position: int) -> None:
        """Count a client whose update is not finite."""
        self._rejected.append(position)

    def send(self, message: Tensor, count: int | None) -> None:
        """Add a client's encoded update, once per draw; None: a rejected client sends it, with a weight of 1."""
        self._encoded.add_(message.to(self._device), alpha=count or 1)
        if count is None:
            self._weight += 1
            self._normaliser += 1

    def include(
        self,
        clients: Sequence[Contribution | None],
        deltas: Tensor,
        squared_norms: Tensor | None = None,
        buffers: Tensor | None = None,
        counters: Tensor | None = None,
        divided: Divided | None = None,
        compressed: Compressed | None = None,
    ) -> None:
        """Add clients that were trained together, a row of every argument each.

        Args:
            clients: None if the row is left out.
            deltas: (k, P).
            squared_norms: |delta_i|^2 per group, float64 (k, G).
            buffers, counters: (k, B) and (k, C), after local training.
            divided: what enters the mean, if not the updates themselves.
            compressed: what is sent in place of the updates, whose scales and divisors it has.
        """
        rows = [row for row, client in enumerate(clients) if client is not None]
        included = [client for client in clients if client is not None]
        if not included:
            return
        if len(included) < len(clients):
            # Not a coefficient of 0: a row that is left out may hold NaN.
            where = torch.tensor(rows, device=deltas.device)
            deltas = deltas.index_select(0, where)
            squared_norms, buffers, counters = (
                None if value is None else value.index_select(0, where) for value in (squared_norms, buffers, counters)
            )
            divided = None if divided is None else divided.select(where)
            compressed = None if compressed is None else compressed.select(where)
        weights = [client.weight * client.count for client in included]
        scales = [client.judged.scale / client.divisor for client in included]
        factors = [w * s for w, s in zip(weights, scales, strict=True)]
        entering = deltas
        if divided is not None:
            entering, squared_norms = divided.deltas, divided.squared_norms
            if divided.shares is not None:
                add_rows(self._shares, weights, divided.shares)
        if compressed is not None:
            entering, squared_norms, factors = compressed.vectors, compressed.squared_norms, weights
            scales = [1.0] * len(included)
            add_rows(self._compression, [client.count for client in included], compressed.facts)
        if self._delta is None:
            self._delta = sum_of_rows(factors, entering)
        else:
            add_rows(self._delta, factors, entering)
        if squared_norms is not None:
            add_rows(self._squared_norms, [w * s**2 for w, s in zip(weights, scales, strict=True)], squared_norms)
        # Most models have neither: an empty addition costs as much as a small one.
        if buffers is not None and buffers.numel():
            add_rows(self._buffers, weights, buffers)
        if counters is not None and counters.numel():
            torch.maximum(self._counters, counters.amax(0), out=self._counters)
        norms = [math.sqrt(client.squared_norm) for client in included]
        if len(self._units):
            counts = [client.count for client in included]
            add_rows(self._units, [c / n if n else 0.0 for c, n in zip(counts, norms, strict=True)], deltas)
        for client, weight, norm in zip(included, weights, norms, strict=True):
            self._count(client, weight, norm)

    def _sum_of_updates(self) -> Tensor:
        return vectors.zeros(self._num_params, torch.float64, self._device) if self._delta is None else self._delta

    def _count(self, client: Contribution, weight: float, norm: float) -> None:
        count, judged = client.count, client.judged
        if client.labels is not None:
            self._labels.add_(client.labels, alpha=count)
        self._weight += weight
        self._normaliser += weight * client.normaliser
        self._norm += count * norm
        self._squared_norm += count * client.squared_norm
        self._fourth_power += count * client.squared_norm * client.squared_norm
        self._moving += count * (norm > 0)
        self._within_clip += count * judged.within_clip
        self._within_zeroing += count * judged.within_zeroing
        self._zeroed += count * (judged.scale == 0)
        self._loss += count * client.loss
        self._correct += count * client.correct
        self._clients += count
        self._held += count * client.held
        self._seen += count * client.seen
        self._steps += count * client.steps
        self._weighted_steps += weight * client.steps

    def change(self, change: Tensor) -> None:
        """Add the change of a client's state."""
        self._changes.add_(change)

    def score(self, config: int, examples: int, error: float, count: int) -> None:
        """Add the error of a client's trained model on so many examples of its own, once per draw."""
        self._scored[config] += count * examples * self._scored.new_tensor([1.0, error])

    def note(self, position: int, client: Contribution, squared_norms: Tensor | None) -> None:
        """Note the facts of an update, once per draw; `squared_norms` are |h_i|^2 per group where it is kept."""
        of_groups = () if squared_norms is None else tuple(squared_norms.tolist())
        loss, norm = client.loss / client.seen, math.sqrt(client.squared_norm)
        self._facts += [Fact(position, client.weight, loss, norm, client.steps, of_groups)] * client.count

    def total(self) -> Sums:
        """Return the sums so far, on their device: copying them would wait for the chunk."""
        return Sums(
            weight=self._weight,
            normaliser=self._normaliser,
            delta=self._sum_of_updates(),
            buffers=self._buffers,
            counters=self._counters,
            squared_norms=self._squared_norms,
            units=self._units,
            moving=self._moving,
            clients=self._clients,
            norm=self._norm,
            squared_norm=self._squared_norm,
            fourth_power=self._fourth_power,
            held=self._held,
            within_clip=self._within_clip,
            within_zeroing=self._within_zeroing,
            zeroed=self._zeroed,
            labels=self._labels,
            seen=self._seen,
            loss=self._loss,
            correct=self._correct,
            steps=self._steps,
            changes=self._changes,
            rejected=tuple(self._rejected),
            facts=tuple(self._facts),
            weighted_steps=self._weighted_steps,
            shares=self._shares,
            encoded=self._encoded,
            compression=self._compression,
            scored=self._scored,
        )


def empty(sizes: Sizes) -> Sums:
    """The sums of nobody."""
    return Accumulator(sizes, torch.device("cpu")).total()
