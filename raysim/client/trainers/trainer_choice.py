"""Defines the record of which trainer trains the clients, and how many of them together.

Trainer and K fix the order of additions and with it the bits. So they are resolved once before anything starts
(`trainer_table.py`), and sent to every worker.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from raysim.client.trainers.kernel.kernels import NONE_USED, KernelsUsed

TrainerName = Literal["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"]
Precision = Literal["float32", "tf32", "bf16"]
ShortBatches = Literal["by autograd", "recorded", "resized"]

BY_HAND: tuple[TrainerName, ...] = ("fused", "stacked")
"""With hand-written gradients, of which only large products are made in another precision."""

WITH_CLIENT_AXIS: tuple[TrainerName, ...] = ("stacked", "vmap")
"""Trainers whose clients are trained together."""

RECORDED: tuple[TrainerName, ...] = ("recorded", "interpreted")
"""Trainers that record a module's local steps."""

CALL_AUTOGRAD: tuple[TrainerName, ...] = ("one_by_one", *RECORDED)
"""Trainers whose steps are autograd's where they are not recorded."""


@dataclass(frozen=True)
class TrainerChoice:
    """How clients are trained.

    trainer: never "auto". usual, most: clients of a chunk where all have as many, and at most.
    least_chunks: where sizes are equal, how many chunks a round should have at least if the cohort allows it, so that
    workers stay level; 1 where the experiment gives the chunk size.
    overhead: examples that take as long as what a local step of a chunk costs whoever is in it, where clients are
    trained together; 0 where they are not.
    call: examples that take as long as what a chunk costs whoever is in it, where that is much beside their work; 0
    where chunks hold enough.
    why: one sentence, for people.
    short_batches: how a trainer that records local steps takes those of short batches: by autograd, recorded for each
    length, or made from the steps of two other lengths where they can be, else recorded. Last digits differ.
    changed: what the process that chose has in the place of torch's own, which all workers must have.
    kernels: what is computed in C in the place of torch's operators, with other last digits.
    from_outputs: whether steps by autograd begin with the gradient of the task's own loss at the outputs, by hand, and
    not with the loss, with other last digits.
    """

    trainer: TrainerName
    usual: int
    most: int
    least_chunks: int
    overhead: int
    call: int
    why: str = field(compare=False)
    short_batches: ShortBatches = "by autograd"
    changed: tuple[str, ...] = field(default=(), compare=False)
    kernels: KernelsUsed = NONE_USED
    from_outputs: bool = False

    @classmethod
    def of_size(
        cls,
        trainer: TrainerName,
        size: int,
        overhead: int = 0,
        why: str = "",
        short_batches: ShortBatches = "by autograd",
        changed: tuple[str, ...] = (),
        kernels: KernelsUsed = NONE_USED,
        from_outputs: bool = False,
    ) -> TrainerChoice:
        """Of the experiment's own chunk size."""
        return cls(trainer, size, size, 1, overhead, 0, why, short_batches, changed, kernels, from_outputs)

    @property
    def together(self) -> bool:
        """Whether a chunk's clients are trained with a client axis, and so should have about as many local steps."""
        return self.trainer in WITH_CLIENT_AXIS

    @property
    def records(self) -> bool:
        """Whether local steps are recorded."""
        return self.trainer in RECORDED

    @property
    def is_given(self) -> bool:
        """Whether the experiment gives the chunk size, which no chunk exceeds."""
        return self.least_chunks == 1

    @property
    def record(self) -> dict[str, object]:
        """What a run's folder says of it."""
        record: dict[str, object] = {"trainer": self.trainer, "chunk_size": self.usual if self.is_given else "auto"}
        return record | {name: True for name, is_used in self.kernels._asdict().items() if is_used}

    def chunk_size(self, cohort_size: int) -> int:
        """K of a round whose chunks are of one size."""
        if self.is_given:
            return max(1, min(self.usual, cohort_size))
        num_chunks = max(self.least_chunks, math.ceil(cohort_size / self.usual))
        return max(1, math.ceil(cohort_size / num_chunks))

    def num_chunks(self, cohort_size: int) -> int:
        """Chunks of a round, at most, where their sizes differ: a multiple of `least_chunks`."""
        chunks = math.ceil(cohort_size / self.chunk_size(cohort_size))
        return math.ceil(chunks / self.least_chunks) * self.least_chunks
