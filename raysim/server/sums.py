"""What workers send back: additive statistics, a commutative monoid.

`empty` is the identity and `add` the operation; tests hold its laws (exactly associative where the numbers are exactly
representable, and in the fixed order of `raysim/fold.py` everywhere else). No client's update travels: every figure of
a round is a function of these sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.server.limits import UNTOUCHED, Judged


class Fact(NamedTuple):
    """What is known of one update h_i: the client's position, w_i, and |h_i|^2 per parameter group."""

    position: int
    weight: float
    squared_norms: tuple[float, ...]


@dataclass(frozen=True)
class Sums:
    """Sums over clients that were not rejected. Vectors are flat in the model's layout, on the CPU.

    A client drawn c times counts c times in all of them. Of an update delta_i = y_i - x, h_i = scale_i delta_i is what
    enters the mean (clipped, zeroed); figures that say "update" are of delta_i itself.

    weight: sum of w_i, w_i = n_i ("examples") or 1 ("uniform").
    normaliser: sum of w_i a_i or of w_i tau_i under fednova, whose h_i is divided by a_i; else of w_i.
    delta: float64 (P,), sum of w_i h_i.
    buffers: float64 (B,), sum of w_i times the client's floating buffers after local training.
    counters: int64 (C,), the maximum of the clients' integer buffers.
    squared_norms: float64 (G,), sum of w_i |h_i|^2 per parameter group.
    units: (P,) in the model's dtype, sum of delta_i / |delta_i| of the `moving` clients whose update is not zero; (0,)
        where the cosine is not asked for.
    clients: how many. norm, squared_norm: sums of |delta_i| and |delta_i|^2. examples: sum of n_i.
    within_clip, within_zeroing: clients at or below the levels. zeroed: clients whose update was zeroed.
    labels: int64 (L,), the clients' label counts; (0,) where they are not asked for.
    seen: examples met in local training. loss, correct: their summed loss and hits (NaN where nothing is counted).
    steps: local steps of all clients.
    changes: float64 (P,), sum of what the clients' own states changed by, a client drawn twice counting once; (0,)
        where no correction asks for it.
    rejected: positions of the clients whose update was not finite, in order of chunk; they are in no other sum.
    facts: one per update that is kept for a rule that needs them all, in order of chunk.
    """

    weight: float
    normaliser: float
    delta: Tensor
    buffers: Tensor
    counters: Tensor
    squared_norms: Tensor
    units: Tensor
    moving: int
    clients: int
    norm: float
    squared_norm: float
    examples: int
    within_clip: int
    within_zeroing: int
    zeroed: int
    labels: Tensor
    seen: int
    loss: float
    correct: float
    steps: int
    changes: Tensor
    rejected: tuple[int, ...]
    facts: tuple[Fact, ...] = ()


def empty(
    num_params: int,
    num_buffers: int,
    num_counters: int,
    num_groups: int,
    unit_dtype: torch.dtype | None = None,
    num_labels: int = 0,
    changes: bool = False,
) -> Sums:
    """The identity of `add`, for vectors of these lengths; the last three as for `Accumulator`."""
    device = torch.device("cpu")
    accumulator = Accumulator(
        num_params, num_buffers, num_counters, num_groups, device, unit_dtype, num_labels, changes
    )
    return accumulator.total()


def add(left: Sums, right: Sums) -> Sums:
    """left + right, field by field; counters take the maximum. Neither argument is changed."""
    values = {f.name: getattr(left, f.name) + getattr(right, f.name) for f in fields(Sums) if f.name != "counters"}
    return Sums(**values, counters=torch.maximum(left.counters, right.counters))


class Accumulator:
    """Adds up the clients of a chunk, in order and in float64, on the device where they were trained.

    `unit_dtype`: what unit updates are summed in; None: they are not. `num_labels`: classes to count, or 0. `changes`:
    whether changes of the clients' states are summed.
    """

    def __init__(
        self,
        num_params: int,
        num_buffers: int,
        num_counters: int,
        num_groups: int,
        device: torch.device,
        unit_dtype: torch.dtype | None = None,
        num_labels: int = 0,
        changes: bool = False,
    ) -> None:
        self._delta = torch.zeros(num_params, dtype=torch.float64, device=device)
        self._buffers = torch.zeros(num_buffers, dtype=torch.float64, device=device)
        self._counters = torch.full((num_counters,), torch.iinfo(torch.int64).min, device=device)
        self._squared_norms = torch.zeros(num_groups, dtype=torch.float64, device=device)
        self._units = torch.zeros(num_params if unit_dtype else 0, dtype=unit_dtype, device=device)
        self._changes = torch.zeros(num_params if changes else 0, dtype=torch.float64, device=device)
        self._labels = torch.zeros(num_labels, dtype=torch.int64, device=device)
        self._weight = self._norm = self._squared_norm = self._loss = self._correct = 0.0
        self._clients = self._moving = self._examples = self._seen = self._steps = 0
        self._within_clip = self._within_zeroing = self._zeroed = 0
        self._normaliser = 0.0
        self._rejected: list[int] = []
        self._facts: list[Fact] = []

    def reject(self, position: int) -> None:
        """Count a client whose update is not finite."""
        self._rejected.append(position)

    def include(
        self,
        *,
        weight: float,
        examples: int,
        delta: Tensor,
        buffers: Tensor,
        counters: Tensor,
        squared_norms: Tensor,
        squared_norm: float,
        seen: int,
        loss: float,
        correct: float,
        judged: Judged = UNTOUCHED,
        labels: Tensor | None = None,
        count: int = 1,
        normaliser: float = 1.0,
        steps: int = 0,
        change: Tensor | None = None,
    ) -> None:
        """Add one client, `count` times.

        Args:
            weight: w_i of one draw.
            squared_norms, squared_norm: |delta_i|^2 per group, and over all of them.
            loss, correct: sums over the `seen` examples.
            judged: what clipping and zeroing make of the update.
            labels: the client's label counts.
            normaliser: what fednova's tau_eff averages.
            steps: local steps taken.
            change: what the client's own state changed by, where that is summed.
        """
        norm = math.sqrt(squared_norm)
        weight *= count
        self._delta.add_(delta, alpha=weight * judged.scale)
        # Most models have neither: an empty addition costs as much as a small one.
        if buffers.numel():
            self._buffers.add_(buffers, alpha=weight)
        if counters.numel():
            torch.maximum(self._counters, counters, out=self._counters)
        self._squared_norms.add_(squared_norms, alpha=weight * judged.scale**2)
        if norm:
            if len(self._units):
                self._units.add_(delta, alpha=count / norm)
            self._moving += count
        if labels is not None:
            self._labels.add_(labels, alpha=count)
        self._weight += weight
        self._normaliser += weight * normaliser
        self._norm += count * norm
        self._squared_norm += count * squared_norm
        self._within_clip += count * judged.within_clip
        self._within_zeroing += count * judged.within_zeroing
        self._zeroed += count * (judged.scale == 0)
        self._loss += count * loss
        self._correct += count * correct
        self._clients += count
        self._examples += count * examples
        self._seen += count * seen
        self._steps += count * steps
        if change is not None:
            self._changes.add_(change)

    def keep(self, position: int, weight: float, squared_norms: Tensor, scale: float, count: int) -> None:
        """Note the facts of an update that is kept, once per draw."""
        facts = Fact(position, weight, tuple((squared_norms * scale**2).tolist()))
        self._facts += [facts] * count

    def total(self) -> Sums:
        """The sums so far."""
        return Sums(
            weight=self._weight,
            normaliser=self._normaliser,
            delta=self._delta.cpu(),
            buffers=self._buffers.cpu(),
            counters=self._counters.cpu(),
            squared_norms=self._squared_norms.cpu(),
            units=self._units.cpu(),
            moving=self._moving,
            clients=self._clients,
            norm=self._norm,
            squared_norm=self._squared_norm,
            examples=self._examples,
            within_clip=self._within_clip,
            within_zeroing=self._within_zeroing,
            zeroed=self._zeroed,
            labels=self._labels.cpu(),
            seen=self._seen,
            loss=self._loss,
            correct=self._correct,
            steps=self._steps,
            changes=self._changes.cpu(),
            rejected=tuple(self._rejected),
            facts=tuple(self._facts),
        )
