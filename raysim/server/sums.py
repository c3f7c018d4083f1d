"""Defines the sums that workers send: additive statistics, a monoid.

`add` is associative, and what an `Accumulator` holds before its first client is its identity. It is commutative but for
the rows that it lists (`rejected`, `facts`), left before right: `raysim/cohort/tree.py` adds in a fixed tree, which
fixes their order and the rounding of all other fields. The laws hold to the bit where numbers need no rounding. No
client's update travels: every figure of a round is a function of these sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.models.vectors import empty, fresh


class UpdateFacts(NamedTuple):
    """What is known of one update: the client's position and w_i; its mean loss over all local batches, |delta_i|, its
    local steps; and, of an update that is kept, |h_i|^2 per parameter group."""

    position: int
    weight: float
    loss: float
    norm: float
    steps: int
    squared_norms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Sums:
    """Sums over clients that were not rejected. Vectors are flat in the model's layout, on the device where the clients
    were trained until a worker hands them over, then on the CPU.

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
    clients: how many. norm, squared_norm, fourth_power: sums of |delta_i|, |delta_i|^2, |delta_i|^4. held: sum of n_i.
    within_clip, within_zeroing: clients at or below the levels. zeroed: clients whose update was zeroed.
    labels: int64 (L,), the clients' label counts; (0,) where they are not asked for.
    seen: examples met in local training, in E epochs E times. loss, correct: their summed loss and hits (NaN where
        nothing is counted).
    steps: local steps of all clients.
    changes: (P,) in the model's dtype, sum of what the clients' own states changed by, each client once; (0,)
        where no correction asks for it.
    rejected: positions of the clients whose update was not finite, in order of chunk; they are in no other sum.
    facts: one per draw, in order of chunk, where updates are kept or the sampler learns; otherwise none.
    weighted_steps: sum of w_i tau_i.
    compression: float64 (3,), sums of |a_i|^2, |Q(a_i) - a_i|^2 and |e_i| of compressed updates.
    encoded: float64, sum of the clients' messages (encoding.py); (0,) where updates are sent as they are.
    shares: float64 (P,) or (1,), the sum of w_i / a_i where the mean is divided by that of 1 / a_i; else (0,).
    scored: float64 (k, 2), by configuration of FedEx the sums of n_i and n_i e_i over its clients' n_i examples in the
        split; else (0,).
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
    fourth_power: float
    held: int
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
    facts: tuple[UpdateFacts, ...] = ()
    weighted_steps: float = 0.0
    compression: Tensor = field(default_factory=lambda: torch.zeros(3, dtype=torch.float64))
    encoded: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    shares: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    scored: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))


def on_cpu(sums: Sums) -> Sums:
    """The same in memory of the host."""
    if sums.delta.device.type == "cpu":
        return sums
    host = torch.device("cpu")
    vectors: dict[str, Any] = {
        f.name: empty(v.shape, v.dtype, host).copy_(v)
        for f in fields(Sums)
        if isinstance(v := getattr(sums, f.name), Tensor)
    }
    return replace(sums, **vectors)


def add(left: Sums, right: Sums) -> Sums:
    """left + right, field by field; counters take the maximum. Neither argument is changed.

    Where they lie on different devices, or their device has no memory for one more, they are added on the CPU, to the
    same bits.
    """
    if left.delta.device != right.delta.device:
        return _added(on_cpu(left), on_cpu(right))
    try:
        return _added(left, right)
    except torch.OutOfMemoryError:
        return _added(on_cpu(left), on_cpu(right))


def add_to(left: Sums, right: Sums) -> Sums:
    """The bits of `add(left, right)`, in the vectors of `left`, which nobody may read any more.

    This takes no memory, and of millions of numbers two thirds of the time. Where they lie on different devices, both
    stay as they are.
    """
    if left.delta.device != right.delta.device:
        return add(left, right)
    # Vectors may have been made in this mode, which alone may write to them then.
    with torch.inference_mode():
        return _combined(left, right, Tensor.add_, partial(torch.maximum, out=left.counters))


def _added(left: Sums, right: Sums) -> Sums:
    return _combined(left, right, lambda a, b: torch.add(a, b, out=fresh(a)), torch.maximum)


def _combined(left: Sums, right: Sums, plus: Callable[..., Tensor], largest: Callable[..., Tensor]) -> Sums:
    def combined(name: str) -> Any:
        a, b = getattr(left, name), getattr(right, name)
        return plus(a, b) if isinstance(a, Tensor) else a + b

    values = {f.name: combined(f.name) for f in fields(Sums) if f.name != "counters"}
    return Sums(**values, counters=largest(left.counters, right.counters))
