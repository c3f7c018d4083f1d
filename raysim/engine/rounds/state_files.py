"""Commits the files of client states after each round, and deletes files that no state and no checkpoint names."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from raysim.cohort.chunks import Chunk
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.opening import Opening, owner_of
from raysim.errors import within
from raysim.run_folder.checkpoint import UnreadableError
from raysim.run_folder.files import STATES
from raysim.run_folder.kept_checkpoints import named_states
from raysim.run_folder.writer import RunFolder
from raysim.server import manifest
from raysim.server.state import ServerState
from raysim.storage.scratch import scratch_folder

log = logging.getLogger("raysim")


class StateFiles:
    """The files of client states, for the driver, which does not write them.

    Args:
        plan: the run; it names their folder.
        folder: the run's, whose checkpoints name files too; None: there are no checkpoints.
        state: the state from which the run continues; files of uncommitted rounds are deleted.
        written_elsewhere: the run's folder, if another process writes there; rounds may be repeated then.
    """

    def __init__(
        self, plan: Plan, folder: RunFolder | None, state: ServerState, written_elsewhere: Path | None = None
    ) -> None:
        self._store, self._folder, self._written_elsewhere = plan.client_store(), folder, written_elsewhere
        self._named: set[tuple[int, int]] = set()
        self._checkpointed = -1
        self._is_kept_back = False
        self._sweep(state, None)

    def committed(
        self, state: ServerState, index: int, chunks: Sequence[Chunk], rejected: Iterable[int]
    ) -> ServerState:
        """Commit round `index`; returns the state, which now names the files of that round's chunks."""
        self._store.committed(index, len(chunks))
        return replace(state, clients=manifest.with_round(state.clients, index, chunks, rejected))

    def flush(self) -> None:
        """Flush the files to the disk, before a checkpoint."""
        self._store.flush()

    def finished(self, state: ServerState) -> None:
        """Do what `recorded` does, unless another process records the rounds: they may be repeated until it has."""
        if self._written_elsewhere is None:
            self.recorded(state)

    def recorded(self, state: ServerState) -> None:
        """Delete files of earlier rounds, checkpoints excepted: the round before `state` is recorded."""
        self._sweep(state, state.round)

    def _sweep(self, state: ServerState, before: int | None) -> None:
        # The next round may be writing already: delete only files of finished rounds.
        try:
            if self._written_elsewhere is not None:
                self._named = named_states(self._written_elsewhere)
            elif self._folder is not None and self._checkpointed != self._folder.checkpointed:
                self._named, self._checkpointed = named_states(self._folder.path), self._folder.checkpointed
        except UnreadableError as error:
            # It may be whole, and then its states are needed.
            if not self._is_kept_back:
                log.warning("%s. No file of client states is deleted as long as that is so", within(error))
            self._is_kept_back = True
            return
        self._store.sweep(self._named | manifest.files(state.clients), before)


@contextmanager
def with_states_folder(plan: Plan, opening: Opening | None) -> Iterator[Plan]:
    """Yield the plan with a folder for client states: in the run's folder, or without an opening a temporary one."""
    if not plan.algorithm().state_vectors or plan.states is not None:
        yield plan
    elif opening is not None:
        yield replace(plan, states=opening.path.absolute() / STATES, states_of=owner_of(plan, opening))
    else:
        with scratch_folder() as scratch:
            yield replace(plan, states=scratch / STATES)
