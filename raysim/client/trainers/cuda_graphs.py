"""A pass that is recorded once per shape and played back: on a card, one launch in place of hundreds.

A recording repeats the same kernels on the same memory. So nobody else touches what its pass holds; it has inputs of
its own, filled before it is played; and results that are copied out before it is played again.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from raysim import card

log = logging.getLogger("raysim")

WORTH_IT = 1
"""Passes of a shape before it is recorded: what comes twice comes again, and recording takes little longer."""

FREE = 32
PLAYS_FOR_ONE = 4
"""Recordings that are made at once, and then one more for so many that were played: of clients whose sizes all differ,
most shapes come seldom, and recording them would take longer than playing them saves."""

MOST = 256
"""Recordings that are kept, each with what it computes; the one that was not played for longest makes room."""

MEMORY_SHARE = 1 / 8
"""Of the card's free memory, what recordings may take: beyond it, kernels are so large that launches do not count."""

FORGOTTEN_AT = 4096
"""Shapes that are counted."""

Results = tuple[Tensor | None, ...]

Pass = Callable[[Sequence[Tensor], float], Results]
"""(inputs, alpha) -> results; also writes to the weights. It does the same for inputs of one shape and one alpha."""


class Played(NamedTuple):
    """`play` does once more what was recorded, on the same memory; `results` lie where it writes them."""

    play: Callable[[], None]
    results: Results


Recorder = Callable[[Callable[[], Results], Sequence[Tensor]], Played]
"""(work, tensors that the work writes to) -> what plays it; those tensors are left as they were. It raises RuntimeError
where the work cannot be recorded, and torch.OutOfMemoryError where there is no memory for one more."""


class CardRecorder:
    """Records CUDA graphs, all of one memory: what one of them has computed may be overwritten by the next."""

    def __init__(self, device: torch.device) -> None:
        self._memory = card.GraphMemory(device)
        self._left_bytes = MEMORY_SHARE * card.memory(device).free
        self._is_warm = False

    def __call__(self, work: Callable[[], Results], written: Sequence[Tensor]) -> Played:
        """See `Recorder`."""
        if self._left_bytes <= 0:
            raise torch.OutOfMemoryError("recordings have taken their share")
        if not self._is_warm:
            before = [tensor.clone() for tensor in written]
            try:
                self._memory.warm_up(work)
            finally:
                for tensor, value in zip(written, before, strict=True):
                    tensor.copy_(value)
            self._is_warm = True
        # What is recorded is not run.
        play, results, num_bytes = self._memory.record(work)
        self._left_bytes -= num_bytes
        return Played(play, results)


class Recordings:
    """Runs passes, and plays those that come often.

    Args:
        make: returns a pass for one recording, which holds nothing that another one touches.
        written: what passes write to.
        record: a `CardRecorder`, or what stands in for it.
    """

    def __init__(self, make: Callable[[], Pass], written: Sequence[Tensor], record: Recorder) -> None:
        self._make, self._written, self._record = make, written, record
        self._usual = make()
        self._met: Counter[Hashable] = Counter()
        self._kept: OrderedDict[Hashable, _Recording] = OrderedDict()
        self._records = True
        self._recorded = self._played = 0

    def run(self, inputs: Sequence[Tensor], alpha: float = 0.0) -> Results:
        """Run or play a pass; see `Pass`. The results are nobody else's."""
        key = (*((one.shape, one.dtype) for one in inputs), alpha)
        if key not in self._kept:
            if len(self._met) > FORGOTTEN_AT:
                self._met.clear()
            self._met[key] += 1
            if not self._records:
                return self._usual(inputs, alpha)
            if self._met[key] <= WORTH_IT:
                return self._watched(inputs, alpha)
            if self._recorded >= FREE + self._played // PLAYS_FOR_ONE or not self._record_one(key, inputs, alpha):
                return self._usual(inputs, alpha)
        self._kept.move_to_end(key)
        self._played += 1
        return self._kept[key].run(inputs)

    def _watched(self, inputs: Sequence[Tensor], alpha: float) -> Results:
        """Run the pass, and see whether it draws from torch's generators: it would draw other numbers when played."""
        generators = card.generators(self._written[0].device)
        before = [generator.get_state() for generator in generators]
        results = self._usual(inputs, alpha)
        if not all(map(torch.equal, before, (generator.get_state() for generator in generators))):
            self._records = False
            log.info("CUDA graphs are not used, because a local step draws random numbers from torch's generator")
        return results

    def _record_one(self, key: Hashable, inputs: Sequence[Tensor], alpha: float) -> bool:
        """Record the pass, where the card does that and has the memory."""
        try:
            recording = _Recording(self._make(), self._written, self._record, inputs, alpha)
        except torch.OutOfMemoryError:
            # The pass alone may still have enough.
            self._records = False
            card.release_memory()
            return False
        except RuntimeError as error:
            self._records = False
            log.info("CUDA graphs are not used, because a local step cannot be recorded: %s", error)
            return False
        self._kept[key] = recording
        self._recorded += 1
        if len(self._kept) > MOST:
            left, _ = self._kept.popitem(last=False)
            self._met[left] = 0
        return True


class _Recording:
    """Of one shape and alpha."""

    def __init__(
        self, own: Pass, written: Sequence[Tensor], record: Recorder, inputs: Sequence[Tensor], alpha: float
    ) -> None:
        # Kept alive: what the pass holds is what the recording reads.
        self._own = own
        # Clients may be trained in inference mode or not: a tensor made outside of it may be written to in both.
        with torch.inference_mode(False), torch.no_grad():
            self._inputs = [one.clone() for one in inputs]
        self._played = record(lambda: own(self._inputs, alpha), written)

    def run(self, inputs: Sequence[Tensor]) -> Results:
        for own, given in zip(self._inputs, inputs, strict=True):
            own.copy_(given)
        self._played.play()
        return tuple(None if one is None else one.clone() for one in self._played.results)
