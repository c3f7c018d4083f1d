"""Writes the records of runs that share workers, on threads of their own."""

from __future__ import annotations

from collections.abc import Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from raysim.engine.many.segment import Advanced
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds import best_model
from raysim.engine.rounds.loop import checkpoint_due
from raysim.experiment import stopping
from raysim.experiment.stopping import NOTHING, Seen
from raysim.run_folder.writer import RunFolder
from raysim.server.state import ServerState

WRITERS = 4
"""Threads that write records: they mostly wait for the disk, which accepts several writes at a time."""


@dataclass
class OpenRun:
    """A run that has not ended.

    path: its folder, as the script names it. held: the folder, until it is closed; a folder with all rounds is not
    changed. recorded: the state after the last recorded round. key: equal for runs that may be trained together. seen:
    by `[stop]`, before `state`.
    """

    plan: Plan
    path: Path
    held: ExitStack
    folder: RunFolder
    state: ServerState
    recorded: ServerState
    key: Hashable | None
    seen: Seen = NOTHING
    dropped: bool = False
    """Whether the script has ended it."""

    @property
    def is_over(self) -> bool:
        """Whether its last round is behind it, or it has stopped before."""
        return stopping.is_over(self.plan.experiment, self.state.round, self.seen.stopped)

    def leave(self) -> None:
        """Checkpoint the last recorded round, and close the folder."""
        with self.held:
            if self.folder.checkpointed < self.recorded.round:
                self.folder.checkpoint(self.recorded)


class RunRecords:
    """Threads that write what segments return; a context manager that waits for them."""

    def __init__(self) -> None:
        self._writers = ThreadPoolExecutor(WRITERS, thread_name_prefix="records")
        self._written: dict[int, Future[None]] = {}

    def __enter__(self) -> RunRecords:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writers.shutdown()

    def write(self, number: int, run: OpenRun, advanced: Advanced) -> None:
        """Begin to write the rounds of a segment, once the last segment's are written."""
        self.wait(number)
        self._written[number] = self._writers.submit(_record, run, advanced)

    def wait(self, number: int) -> None:
        """Wait until all records of a run are written; raises the error of writing."""
        if (written := self._written.pop(number, None)) is not None:
            written.result()


def _record(run: OpenRun, advanced: Advanced) -> None:
    for told in advanced.rounds:
        run.folder.add(told.row, told.clients, told.spans)
    # A segment ends with every evaluation.
    best_model.keep(run.folder, run.plan, advanced.rounds[-1].row, advanced.state)
    if advanced.seen.stopped is not None:
        run.folder.write_stopped(advanced.seen.stopped)
    run.recorded = advanced.state
    if checkpoint_due(advanced.state, run.plan.experiment):
        run.folder.checkpoint(advanced.state)
