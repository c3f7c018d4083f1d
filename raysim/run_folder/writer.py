"""Writes one run's folder while the run goes on: rows, evaluated clients, checkpoints, and the timeline."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from raysim.errors import CheckpointError, DiskError, RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row
from raysim.experiment.stopping import StopReason
from raysim.models.model import Weights
from raysim.run_folder import (
    beginning,
    checkpoint,
    client_table,
    experiment_record,
    files,
    going_on,
    not_a_run,
    run_table,
    sealed_record,
    stop_record,
)
from raysim.run_folder.best_models import BestModels
from raysim.run_folder.rows import Rows, table
from raysim.run_folder.timeline import Span, Timeline
from raysim.server.state import ServerState
from raysim.storage import atomic, disk, lock
from raysim.storage.inside import inside
from raysim.storage.reading import regular
from raysim.storage.remote import removed
from raysim.storage.remote.folder import named

FLUSH_S = 5.0
"""Rounds reach the disk at least this often, so users can look at a running run."""


FOLDERS = ("checkpoints", "clients")

PARTS = (*FOLDERS, files.STATES, "timeline.json")
"""What a run writes to in its place; other files are written aside and renamed."""


class RunFolder:
    """Writes one run's folder: `create` creates it, `reopen` opens it for a run or its continuation."""

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        keep: int,
        profile: bool = False,
        best: BestModels | None = None,
        held: lock.HeldLock | None = None,
    ) -> None:
        self.path = path
        self._held = held
        self._fingerprint = fingerprint
        self._keep = keep
        self._rows = Rows()
        self._flushed_s = time.monotonic()
        self._timeline = Timeline(path / "timeline.json") if profile else None
        self.best = BestModels(path) if best is None else best
        self.checkpointed = 0
        self.failed = False
        """Whether something could not be written; its error says what."""

    def check_there(self) -> None:
        """Check that the folder is where the run writes, and that this process is the run's.

        Raises:
            RunFolderError: it was deleted or moved; another one may be in its place. Or its record was deleted, its
                lock is lost, or this process was forked.
        """
        if self._held is not None and self._held.is_inherited:
            self.failed = True
            raise RunFolderError(
                f"{named(self.path)} is written by the process from which this one was forked, and the run goes on "
                f"there: end a forked process by os._exit, before it returns into raysim."
            )
        if not (self.path.is_dir() if self._held is None else self._held.is_there):
            self.failed = True
            raise RunFolderError(
                f"{named(self.path)} was deleted or moved while the run wrote to it, so the run ends here. Where it "
                f"was moved, `raysim resume` goes on from its last checkpoint; else start afresh."
            )
        if self._held is not None and self._held.is_lost:
            self.failed = True
            raise RunFolderError(
                f"{named(self.path)} is locked no more, so the run ends here, before another process writes there: the "
                f"script has closed all files (os.closerange, a daemon). Close them before the run begins. `raysim "
                f"resume` goes on from its last checkpoint."
            )
        if self._held is not None and not (self.path / files.RECORD).exists():
            self.failed = True
            raise RunFolderError(
                f"{named(self.path / files.RECORD)} was deleted while the run wrote there, so the run ends here: "
                f"without it this is no run's folder. Where you put it back, `raysim resume` goes on from the last "
                f"checkpoint; else start afresh in another folder."
            )

    @staticmethod
    def create(
        path: Path,
        experiment: Experiment,
        fingerprint: str,
        overwrite: bool = False,
        facts: experiment_record.PlannedFacts = experiment_record.NO_FACTS,
    ) -> None:
        """Create a new folder; see `check_free` for the errors, `experiment_record.write_experiment` for the content.

        The caller holds the folder's lock, or knows that no other process writes there.
        """
        RunFolder._check_empty(path, overwrite)
        with disk.writing(path):
            path.mkdir(parents=True, exist_ok=True)
            beginning.clear(path)
        # The record comes first: a folder without it holds no run, wherever the process is killed.
        experiment_record.write_experiment(path, experiment, fingerprint, facts)
        with disk.writing(path):
            for name in FOLDERS:
                (path / name).mkdir()

    @staticmethod
    def check_free(path: Path, overwrite: bool = False, is_locked: bool = False) -> None:
        """Check whether a folder may be created; nothing is written.

        Args:
            path: the folder.
            overwrite: allow to replace an existing run.
            is_locked: the caller has locked the folder.

        Raises:
            RunFolderError: it holds a run already, without `overwrite`; or it is not a run's folder; or another process
                writes to it.
        """
        if (path / files.RECORD).exists():
            lock.check_free(path, below=is_locked)
        RunFolder._check_empty(path, overwrite)

    @staticmethod
    def _check_empty(path: Path, overwrite: bool) -> None:
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, so no run's folder can be made there.")
        if not beginning.is_unbegun(path):
            if not overwrite and not (path / files.RECORD).exists():
                raise RunFolderError(
                    f"{named(path)} exists already, and is not a run's folder: {not_a_run.why(path)} Give the run "
                    f"another folder (--path, path=), or another name."
                )
            if not overwrite:
                raise RunFolderError(
                    f"{named(path)} exists already. Go on with it (--resume, raysim.resume({named(path)!r})), start "
                    f"afresh (--overwrite, overwrite=True), or give the run another name."
                )
            if not (path / files.RECORD).exists():
                raise RunFolderError(
                    f"{path} is not a run's folder (it has no experiment.json), so it is not overwritten."
                )

    @classmethod
    def reopen(
        cls,
        path: Path,
        experiment: Experiment,
        profile: bool = False,
        held: lock.HeldLock | None = None,
        record: Callable[[], None] = lambda: None,
    ) -> tuple[RunFolder, ServerState | None]:
        """Open a run's folder to continue: the newest intact checkpoint, and the rows of the rounds before it.

        The caller holds the folder's lock, `held`, so temporary files were left by a process that was killed; they are
        removed. Rows of later rounds are dropped: the run repeats those rounds. With `profile`, timeline.json receives
        the times of driver and workers from here on.

        Args:
            path, experiment, profile, held: see above.
            record: writes what the run goes on as; called once nothing refuses the folder any more.

        Raises:
            RunFolderError: a part of the folder is a symbolic link that leads out of it, or a file is damaged; or the
                run cannot go on as the experiment says, see `going_on.begun`.
        """
        _check_parts(path)
        for place in (path, *(path / name for name in FOLDERS)):
            atomic.sweep(place, older_than_s=0)
        found = going_on.begun(path, experiment)
        done, rows = found.done, found.rows
        parts = files.client_files(path)
        # A process that was killed between a table and its round's row leaves no row alone.
        client_table.warn_of_lost_clients(path, table(rows))
        counting = {index for index in parts if index < done and index != found.unevaluated}
        for index in counting:
            # They are read at the end of the run: to find damage then would be late.
            client_table.clients_after(path, index)
        record()
        best = BestModels(path, experiment.checkpoint.best, experiment.evaluation.every)
        folder = cls(path, experiment_record.stored_owner(path), experiment.checkpoint.keep, profile, best, held)
        folder.checkpointed = done
        removed.unlink(path / stop_record.STOPPED)
        best.open(rows)
        folder._rows = Rows(rows)
        folder.flush()
        # Their rows are gone first: a row without its table would look like one that was lost.
        for index in parts.keys() - counting:
            removed.unlink(parts[index])
        return folder, found.state

    @property
    def rows(self) -> Sequence[Row]:
        """A row per finished round, including those before a resume; it grows during the run."""
        return self._rows

    def add(self, row: Row, clients: pa.Table | None, spans: Iterable[Span] = ()) -> None:
        """Record a finished round, and its evaluated clients if there are any."""
        self._rows.append(row)
        with self._recording():
            if self._timeline is not None:
                self._timeline.add(spans)
            if clients is not None:
                run_table.write_table(clients, files.client_file(self.path, row["round"]), self._fingerprint)
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the rows so far.

        Raises:
            CheckpointError: the disk is full, or the folder cannot be written; existing files are untouched.
            RunFolderError: the folder was deleted or moved.
        """
        with self._recording():
            run_table.write_table(self._rows.packed(), self.path / files.ROUNDS, self._fingerprint)
        self._flushed_s = time.monotonic()

    def checkpoint(self, state: ServerState) -> None:
        """Write rows and state; then delete all but the newest `keep` checkpoints.

        Later ones than this do not count: the run goes on from an earlier one where the newest is damaged.
        """
        self.flush()
        with self._recording():
            checkpoint.write(state, files.checkpoint_file(self.path, state.round), self._fingerprint)
            self.checkpointed = state.round
            written = [file for done, file in files.checkpoints(self.path).items() if done <= state.round]
            for old in written[: -self._keep]:
                removed.unlink(old)
            self.best.prune()

    def write_best(self, done: int, weights: Weights) -> None:
        """Write the model after `done` rounds, which `best` has found to be the best so far."""
        with self._recording():
            self.best.write(ServerState(done, weights, {}, {}, {}, {}, {}), self._fingerprint)
            # Where an error or Ctrl-C breaks this round off, the state before it is what the run leaves.
            self.best.prune(done - 1)

    def write_stopped(self, reason: StopReason) -> None:
        """Write why the run stops before its last round. Other programs read it; raysim asks the rows."""
        with self._recording():
            sealed_record.write_json(reason._asdict(), self.path / stop_record.STOPPED)

    @contextmanager
    def _recording(self) -> Iterator[None]:
        """Turn errors of the disk in the block into errors of the records, and remember that there was one."""
        self.check_there()
        try:
            yield
        except (CheckpointError, DiskError) as error:
            self.failed = True
            if isinstance(error, DiskError):
                raise CheckpointError(str(error)) from error
            raise


def _check_parts(path: Path) -> None:
    """Check everything that the run will write to or delete in its place; make folders that a copy has lost."""
    for name in (files.RECORD, files.ROUNDS, *PARTS):
        inside(path, name, path, RunFolderError)
    for name in FOLDERS:
        try:
            (path / name).mkdir(exist_ok=True)
        except OSError as error:
            raise RunFolderError(f"{path / name} must be a folder: {error.strerror}.") from error
    if os.path.lexists(states := path / files.STATES) and not states.is_dir():
        raise RunFolderError(f"{states} must be a folder, but is a file: remove it.")
    timeline = [file for file in (path / "timeline.json",) if os.path.lexists(file)]
    numbered = (files.checkpoints(path), files.best_models(path), files.client_files(path))
    for file in (*(file for of_kind in numbered for file in of_kind.values()), *timeline):
        inside(path, file.relative_to(path).as_posix(), path, RunFolderError)
        regular(file, RunFolderError)
