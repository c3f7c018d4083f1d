"""Reads the checkpoints that a run's folder keeps: the newest state, and the client states that they name."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from raysim.errors import CheckpointError, within
from raysim.run_folder import checkpoint, files
from raysim.run_folder.experiment_record import other_version
from raysim.server import manifest
from raysim.server.state import ServerState

log = logging.getLogger("raysim")


def state_of(file: Path, fingerprint: str, done: int) -> ServerState:
    """Read the checkpoint of a run after so many rounds; see `checkpoint.read`.

    Raises:
        CheckpointError: as there; a `checkpoint.DamagedError` too if it holds a model alone, as `checkpoint.best` keeps
            it: a run goes on from more.
    """
    state = checkpoint.read(file, fingerprint, done)
    if not state.ledger:
        raise checkpoint.DamagedError(
            f"The checkpoint {file} holds a model alone, such as that of a best-*.safetensors, and no run's state"
        )
    return state


def newest_state(path: Path, fingerprint: str) -> ServerState | None:
    """Read the newest intact checkpoint, None before the first; raysim warns of a damaged one and skips it.

    Raises:
        CheckpointError: every checkpoint is damaged, or may not be read: to continue would begin at round 0 and drop
            all rows. Or one has another format, or belongs to another experiment.
    """
    checkpoint_files, why, denied = files.checkpoints(path), "", ""
    for done, file in reversed(checkpoint_files.items()):
        try:
            return state_of(file, fingerprint, done)
        except checkpoint.DamagedError as error:
            if not os.path.lexists(file) and max(files.checkpoints(path), default=0) > max(checkpoint_files):
                # A run at work has written newer ones meanwhile, and deleted this.
                return newest_state(path, fingerprint)
            why = within(error)
            if isinstance(error, checkpoint.UnreadableError):
                denied = denied or why
            if done != min(checkpoint_files):
                log.warning("%s. raysim goes on from the checkpoint before it", why)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{other_version(path)}") from None
    none = f"No checkpoint in {path / 'checkpoints'} can be read"
    if denied:
        # It may be whole: neither a copy is needed, nor is anything to be deleted.
        raise CheckpointError(f"{none}: {denied}.")
    if checkpoint_files:
        raise CheckpointError(f"{none}, the oldest because {why}: put back a copy, or start afresh (--overwrite).")
    return None


def newest_intact(checkpoint_files: Mapping[int, Path], fingerprint: str) -> int:
    """Return the number of rounds of the newest intact one of a run's checkpoints; 0 if there is none.

    Damaged ones, and those of other experiments, say nothing of the run's rounds.

    Raises:
        CheckpointError: one has another format.
    """
    for done, file in sorted(checkpoint_files.items(), reverse=True):
        with suppress(checkpoint.DamagedError, checkpoint.ForeignError):
            return state_of(file, fingerprint, done).round
    return 0


def named_states(path: Path) -> set[tuple[int, int]]:
    """Return (round, chunk) of every file of client states that a kept checkpoint names.

    Raises:
        UnreadableError: this user may not read one, so what it names is not known.
    """
    checkpoint_files = files.checkpoints(path).values()
    return set().union(*(manifest.files(checkpoint.read_part(file, "clients")) for file in checkpoint_files))
