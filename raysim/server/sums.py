"""What workers send back: additive statistics, a commutative monoid.

`empty` is the identity and `add` the operation; tests hold its laws (exactly associative where the numbers are exactly
representable, and in the fixed order of `raysim/fold.py` everywhere else). No client's update travels: every figure of
a round is a function of these sums.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sums:
    """Sums over clients that were not rejected. Vectors are flat in the model's layout, on the CPU.

    weight: sum of w_i, w_i = n_i ("examples") or 1 ("uniform").
    delta: float64 (P,), sum of w_i (y_i - x).
    buffers: float64 (B,), sum of w_i times the client's floating buffers after local training.
    counters: int64 (C,), the maximum of the clients' integer buffers.
    squared_norms: float64 (G,), sum of w_i |delta_i|^2 per parameter group.
    clients: how many. norm: sum of |delta_i|. examples: sum of n_i.
    seen: examples met in local training. loss, correct: their summed loss and hits (NaN where nothing is counted).
    rejected: positions of the clients whose update was not finite, in order of chunk; they are in no other sum.
    """

    weight: float
    delta: Tensor
    buffers: Tensor
    counters: Tensor
    squared_norms: Tensor
    clients: int
    norm: float
    examples: int
    seen: int
    loss: float
    correct: float
    rejected: tuple[int, ...]


def empty(num_params: int, num_buffers: int, num_counters: int, num_groups: int) -> Sums:
    """The identity of `add`, for vectors of these lengths."""
    return Accumulator(num_params, num_buffers, num_counters, num_groups, torch.device("cpu")).total()


def add(left: Sums, right: Sums) -> Sums:
    """left + right, field by field; counters take the maximum. Neither argument is changed."""
    values = {f.name: getattr(left, f.name) + getattr(right, f.name) for f in fields(Sums) if f.name != "counters"}
    return Sums(**values, counters=torch.maximum(left.counters, right.counters))


class Accumulator:
    """Adds up the clients of a chunk, in order and in float64, on the device where they were trained."""

    def __init__(
        self, num_params: int, num_buffers: int, num_counters: int, num_groups: int, device: torch.device
    ) -> None:
        self._delta = torch.zeros(num_params, dtype=torch.float64, device=device)
        self._buffers = torch.zeros(num_buffers, dtype=torch.float64, device=device)
        self._counters = torch.full((num_counters,), torch.iinfo(torch.int64).min, device=device)
        self._squared_norms = torch.zeros(num_groups, dtype=torch.float64, device=device)
        self._weight = self._norm = self._loss = self._correct = 0.0
        self._clients = self._examples = self._seen = 0
        self._rejected: list[int] = []

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
        seen: int,
        loss: float,
        correct: float,
    ) -> None:
        """Add one client; `squared_norms` is |delta_i|^2 per group, `loss` and `correct` are sums over `seen`."""
        self._delta.add_(delta, alpha=weight)
        # Most models have neither: an empty addition costs as much as a small one.
        if buffers.numel():
            self._buffers.add_(buffers, alpha=weight)
        if counters.numel():
            torch.maximum(self._counters, counters, out=self._counters)
        self._squared_norms.add_(squared_norms, alpha=weight)
        self._weight += weight
        self._norm += math.sqrt(squared_norms.sum())
        self._loss += loss
        self._correct += correct
        self._clients += 1
        self._examples += examples
        self._seen += seen

    def total(self) -> Sums:
        """The sums so far."""
        return Sums(
            weight=self._weight,
            delta=self._delta.cpu(),
            buffers=self._buffers.cpu(),
            counters=self._counters.cpu(),
            squared_norms=self._squared_norms.cpu(),
            clients=self._clients,
            norm=self._norm,
            examples=self._examples,
            seen=self._seen,
            loss=self._loss,
            correct=self._correct,
            rejected=tuple(self._rejected),
        )
