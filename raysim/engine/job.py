"""Defines the executor's interface: a job is units of work on one broadcast, whose results add up along the fixed tree.

Executors schedule and retry units (a chunk of clients, a slice of an evaluation, a segment); callers wait for jobs. One
contract suite tests both executors, in process and on Ray.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from raysim.algorithm.broadcast import Broadcast
from raysim.cohort.chunks import Chunk
from raysim.evaluation import personalised, scores
from raysim.run_folder.timeline import Span
from raysim.server import sums
from raysim.server.aggregators.updates import Bounds
from raysim.server.state import ServerState
from raysim.server.sums import Sums

T = TypeVar("T")

Kind = Literal[
    "train", "evaluate", "fine_tune", "personal", "gram", "combine", "coordinatewise", "distances", "segment"
]
"""`train`, `evaluate`, `fine_tune` and `personal` (models of their own) work on clients, `segment` on
whole rounds of several runs (engine/many). The others work on a shard of the updates that a training job kept."""


DOING: Mapping[Kind, str] = MappingProxyType(
    {"train": "Training", "evaluate": "Evaluating", "fine_tune": "Fine-tuning", "personal": "Personalising"}
)
"""What is done to a client, in messages."""

UNITS: Mapping[Kind, str] = MappingProxyType(
    {
        "train": "chunk",
        "evaluate": "slice",
        "fine_tune": "slice",
        "personal": "slice",
        "gram": "shard",
        "combine": "shard",
        "coordinatewise": "shard",
        "distances": "shard",
        "segment": "segment",
    }
)
"""What a unit is called, in messages."""


def _join(left: Tensor, right: Tensor) -> Tensor:
    return torch.cat([left, right])


COMBINE: Mapping[Kind, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "train": sums.add_to,
        "evaluate": scores.concatenate,
        "fine_tune": personalised.concatenate,
        "personal": personalised.concatenate,
        "gram": operator.add,
        "combine": _join,
        "coordinatewise": _join,
        "distances": operator.add,
        "segment": operator.add,
    }
)
"""How the results of a kind's units add up; a function for each kind's own type, which may use both of them up."""


def on_host(result: T) -> T:
    """Move a unit's result, or a sum of results, to the host's memory."""
    return cast(T, sums.on_cpu(result)) if isinstance(result, Sums) else result


@dataclass(frozen=True)
class UpdateQuery:
    """The broadcast of a job over kept updates: coefficients, a target vector, or weights and the order of the rows."""

    round: int
    vector: Tensor
    order: Tensor | None = None


@dataclass(frozen=True)
class RunStates:
    """The states from which the runs of a segment continue; round: the earliest of their rounds."""

    round: int
    states: list[ServerState]


@dataclass(frozen=True)
class Shard:
    """Coordinates `start` to `stop` of all updates of a round; `parts` are `Part`s, or references to them."""

    start: int
    stop: int
    parts: tuple[object, ...]


Part = Mapping[int, Tensor]
"""Rows (k, P_s) by the index of the unit that computed them."""

JobBroadcast = Broadcast | UpdateQuery | RunStates
"""What the units of a job receive, by its kind."""


@dataclass(frozen=True)
class Job:
    """Units of one kind over one broadcast; `costs` are relative, and only order the work.

    units: what the kind takes: chunks, slices of an evaluation, shards or segments. Executors do not look inside.
    keep: bounds of the shards in which a training job keeps its updates for later jobs. runs: if several runs share the
    executor, the numbers of the runs of the segment.
    """

    kind: Kind
    broadcast: JobBroadcast
    units: tuple[object, ...]
    costs: Sequence[float]
    keep: tuple[Bounds, ...] = ()
    runs: tuple[int, ...] = ()

    @property
    def chunks(self) -> tuple[Chunk, ...]:
        """The units of a training job."""
        assert self.kind == "train"
        return cast("tuple[Chunk, ...]", self.units)


@dataclass(frozen=True)
class Outcome:
    """The sum of the units' results, and the cost of the job, which does not influence `value`.

    value: of the kind's type, see `Pool.run`; executors do not look inside.
    spans: one for each completed unit. workers: number of available workers. put_s, fold_s: the driver's time for
    sending and for adding up. retries: failures after which units ran again. bytes_down, bytes_up: bytes to each node
    and from it, the driver's first. kept: the updates, if the job keeps them; deleting it frees them.
    """

    value: object
    spans: tuple[Span, ...]
    workers: int
    put_s: float = 0.0
    fold_s: float = 0.0
    retries: int = 0
    bytes_down: tuple[int, ...] = (0,)
    bytes_up: tuple[int, ...] = (0,)
    kept: tuple[Shard, ...] = ()

    @property
    def sums(self) -> Sums:
        """The value of a training job."""
        assert isinstance(self.value, Sums)
        return self.value

    @property
    def busy_s(self) -> float:
        """Summed seconds of work."""
        return sum(span.end_s - span.start_s for span in self.spans)


class Stopped(Exception):
    """Raised by `result` after a request to stop: the job is dropped. It is not an error of the run."""


class UpdatesLost(Exception):
    """Raised by `result` if kept updates that a job needs were lost with a node: their round must be trained again."""


class Executor(Protocol):
    """Carries out jobs. Jobs submitted together share the workers; `result` may be called in any order."""

    def submit(self, job: Job) -> int:
        """Accept a job with at least one unit; returns its ticket."""
        ...

    def result(self, ticket: int) -> Outcome:
        """Wait for the job and return its outcome, once.

        Raises:
            ClientError: user code failed; no result of the job is kept.
            WorkerLostError, ResourceError: the budget for lost workers, or for a card's full memory, is spent.
        """
        ...

    def close(self) -> None:
        """End the workers; may be called twice."""
        ...
