"""The executor's seam: a job is units of work on one broadcast, whose results add up along the fixed tree.

The unit (a chunk of clients, a slice of an evaluation) is what is scheduled and retried; the job is what is waited for.
In-process and on Ray, one contract suite holds for both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from raysim import evaluate
from raysim.algorithm import Broadcast
from raysim.server import sums
from raysim.timeline import Span

Kind = Literal["train", "evaluate"]

COMBINE: dict[str, Callable[[Any, Any], Any]] = {"train": sums.add, "evaluate": evaluate.concatenate}
"""How the results of a kind's units add up."""


@dataclass(frozen=True)
class Job:
    """Units of one kind over one broadcast; `costs` are relative, and only order the work."""

    kind: Kind
    broadcast: Broadcast
    units: tuple[Any, ...]
    costs: Sequence[float]


@dataclass(frozen=True)
class Outcome:
    """The units' results added up, and what the job cost: none of the figures below influences `value`.

    spans: one for each unit that a worker carried out. workers: how many could work. put_s, fold_s: the driver's time
    for sending and for adding up. retries: failures after which units ran again. bytes_down, bytes_up: through the
    object store.
    """

    value: Any
    spans: tuple[Span, ...]
    workers: int
    put_s: float = 0.0
    fold_s: float = 0.0
    retries: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    @property
    def busy_s(self) -> float:
        """Summed seconds of work."""
        return sum(span.end_s - span.start_s for span in self.spans)


class Stopped(Exception):
    """Raised out of `result` where the executor was asked to stop: the job is dropped, the run is not at fault."""


class Executor(Protocol):
    """Carries out jobs. Jobs submitted together share the workers; `result` may be asked for in any order."""

    def submit(self, job: Job) -> int:
        """Take a job with at least one unit and return its ticket."""
        ...

    def result(self, ticket: int) -> Outcome:
        """Wait for the job and hand over its outcome, once.

        Raises:
            ClientError: user code failed; nothing of the job is kept.
            WorkerLostError: the retry budget is spent.
        """
        ...

    def close(self) -> None:
        """End the workers; may be called twice."""
        ...
