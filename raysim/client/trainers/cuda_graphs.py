"""A pass forward and back that is recorded once per shape and played back: on a card, one launch in place of twenty.

A recording repeats the same kernels on the same memory. So every recording has layers of its own, whose caches and
activations nobody else touches; inputs of its own, filled before it is played; and an output that is copied out before
it is played again.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from raysim import card

log = logging.getLogger("raysim")

WORTH_IT = 4
"""Passes of a shape before it is recorded: recording one takes as long as several."""

MOST = 64
"""Recordings that are kept, each with its activations; the one that was not played for longest makes room."""


FORGOTTEN_AT = 4096
"""Shapes that are counted."""


class Pass(Protocol):
    """A network's pass over the clients at work."""

    def run(self, h: Tensor, targets: Tensor, scales: Tensor, keys: Tensor) -> Tensor:
        """Parameters take the scaled sum of their client's gradients; returns the outputs by row.

        Args:
            h: examples, (A, batch, ...).
            targets: (A * batch, ...).
            scales: (A * batch,), what each row's gradient is multiplied with: 1 / b_i, or -lr / b_i of a step.
            keys: int64 (dropout layers, K).
        """
        ...


class Played(NamedTuple):
    """`play` does once more what was recorded, on the memory that it was recorded with; `output` is where that lies."""

    play: Callable[[], None]
    output: Tensor


Recorder = Callable[[Callable[[], Tensor], Sequence[Tensor]], Played]
"""(work, tensors that the work writes to) -> what plays it; those tensors are left as they were."""


def on_card(work: Callable[[], Tensor], written: Sequence[Tensor]) -> Played:
    """A CUDA graph."""
    before = [tensor.clone() for tensor in written]
    try:
        return Played(*card.record_graph(work))
    finally:
        for tensor, value in zip(written, before, strict=True):
            tensor.copy_(value)


class Recordings:
    """Runs passes, and plays those that come often.

    Args:
        make: a pass over the weights, with layers of its own.
        written: what passes write to.
        record: `on_card`, or what stands in for it.
    """

    def __init__(self, make: Callable[[], Pass], written: Sequence[Tensor], record: Recorder) -> None:
        self._make, self._written, self._record = make, written, record
        self._usual = make()
        self._met: Counter[Hashable] = Counter()
        self._kept: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._broken = False

    def run(self, h: Tensor, targets: Tensor, scales: Tensor, keys: Tensor) -> Tensor:
        """See `Pass.run`; the output is nobody else's."""
        shape = (h.shape, targets.shape, keys.shape)
        if shape not in self._kept:
            if len(self._met) > FORGOTTEN_AT:
                self._met.clear()
            self._met[shape] += 1
            if self._met[shape] <= WORTH_IT or self._broken:
                return self._usual.run(h, targets, scales, keys)
            try:
                own = self._make()
                self._kept[shape] = _Recording(own, self._written, self._record, h, targets, scales, keys)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                self._broken = True
                log.warning("local steps cannot be recorded here, so they are launched one by one: %s", error)
                return self._usual.run(h, targets, scales, keys)
            if len(self._kept) > MOST:
                left, _ = self._kept.popitem(last=False)
                self._met[left] = 0
        self._kept.move_to_end(shape)
        return self._kept[shape].run(h, targets, scales, keys)


class _Recording:
    """One shape's."""

    def __init__(
        self,
        own: Pass,
        written: Sequence[Tensor],
        record: Recorder,
        h: Tensor,
        targets: Tensor,
        scales: Tensor,
        keys: Tensor,
    ) -> None:
        # Kept alive: what the layers hold is what the recording reads.
        self._own = own
        self._inputs = h.clone(), targets.clone(), scales.clone(), keys.clone()
        self._played = record(lambda: own.run(*self._inputs), written)

    def run(self, h: Tensor, targets: Tensor, scales: Tensor, keys: Tensor) -> Tensor:
        for own, given in zip(self._inputs, (h, targets, scales, keys), strict=True):
            own.copy_(given)
        self._played.play()
        return self._played.output.clone()
