"""The executor's seam: a job is units of work on one broadcast, whose results add up along the fixed tree.

The unit (a chunk of clients, a slice of an evaluation, a segment) is what is scheduled and retried; the job is what is
waited for. In-process and on Ray, one contract suite holds for both.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast
from raysim.evaluation import personalised, scores
from raysim.run_folder.timeline import Span
from raysim.server import sums
from raysim.server.aggregators.updates import Bounds
from raysim.server.state import ServerState

T = TypeVar("T")

Kind = Literal["train", "evaluate", "personalise", "gram", "combine", "coordinatewise", "distances", "segment"]
"""`train`, `evaluate` and `personalise` work on clients, `segment` on whole rounds of several runs (engine/many); the
others look at a shard of all updates that a training job kept."""


def _join(left: Tensor, right: Tensor) -> Tensor:
    return torch.cat([left, right])


COMBINE: dict[str, Callable[[Any, Any], Any]] = {
    "train": sums.add,
    "evaluate": scores.concatenate,
    "personalise": personalised.concatenate,
    "gram": operator.add,
    "combine": _join,
    "coordinatewise": _join,
    "distances": operator.add,
    "segment": operator.add,
}
"""How the results of a kind's units add up."""


def on_host(result: T) -> T:
    """A unit's result, or a sum of such, in memory that a card has no part in."""
    return cast(T, sums.on_cpu(result)) if isinstance(result, sums.Sums) else result


@dataclass(frozen=True)
class UpdateQuery:
    """What a job over kept updates needs: coefficients, a target vector, or weights and which row comes first."""

    round: int
    vector: Tensor
    order: Tensor | None = None


@dataclass(frozen=True)
class RunStates:
    """Where the runs of a segment go on from; round: the earliest of theirs."""

    round: int
    states: list[ServerState]


@dataclass(frozen=True)
class Shard:
    """Coordinates `start` to `stop` of all updates of a round; `parts` hold them by unit, or say where they lie."""

    start: int
    stop: int
    parts: tuple[Any, ...]


Part = Mapping[int, Tensor]
"""Rows (k, P_s) by the index of the unit that made them."""


@dataclass(frozen=True)
class Job:
    """Units of one kind over one broadcast; `costs` are relative, and only order the work.

    keep: a training job keeps its updates in shards of these bounds, for jobs that look at them again. runs: by number,
    whose segment it is, where several runs share the executor.
    """

    kind: Kind
    broadcast: Broadcast | UpdateQuery | RunStates
    units: tuple[Any, ...]
    costs: Sequence[float]
    keep: tuple[Bounds, ...] = ()
    runs: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """The units' results added up, and what the job cost: none of the figures below influences `value`.

    spans: one for each unit that a worker carried out. workers: how many could work. put_s, fold_s: the driver's time
    for sending and for adding up. retries: failures after which units ran again. bytes_down, bytes_up: what went to
    each node and came from it, the driver's first. kept: the updates, where the job asked for them; letting go of it
    frees them.
    """

    value: Any
    spans: tuple[Span, ...]
    workers: int
    put_s: float = 0.0
    fold_s: float = 0.0
    retries: int = 0
    bytes_down: tuple[int, ...] = (0,)
    bytes_up: tuple[int, ...] = (0,)
    kept: tuple[Shard, ...] = ()

    @property
    def busy_s(self) -> float:
        """Summed seconds of work."""
        return sum(span.end_s - span.start_s for span in self.spans)


class Stopped(Exception):
    """Raised out of `result` where the executor was asked to stop: the job is dropped, the run is not at fault."""


class UpdatesLost(Exception):
    """Raised out of `result` where updates that a job is to look at went with a node: their round is to be trained
    again."""


class Executor(Protocol):
    """Carries out jobs. Jobs submitted together share the workers; `result` may be asked for in any order."""

    def submit(self, job: Job) -> int:
        """Take a job with at least one unit and return its ticket."""
        ...

    def result(self, ticket: int) -> Outcome:
        """Wait for the job and hand over its outcome, once.

        Raises:
            ClientError: user code failed; nothing of the job is kept.
            WorkerLostError, ResourceError: the budget for lost workers, or for a card's full memory, is spent.
        """
        ...

    def close(self) -> None:
        """End the workers; may be called twice."""
        ...
