"""Makes a run's folder that goes on from another run, as a run of another experiment."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raysim.errors import RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.run_folder import (
    beginning,
    best_models,
    checkpoint,
    client_table,
    experiment_record,
    files,
    kept_checkpoints,
    round_table,
    run_table,
)
from raysim.run_folder.passed_parts import NOTHING, Passed
from raysim.run_folder.writer import FOLDERS
from raysim.server.state import ServerState
from raysim.storage import atomic, disk, lock


def branch(
    origin: Path,
    path: Path,
    experiment: Experiment,
    fingerprint: str,
    trained_by: Mapping[str, Any] | None = None,
    state: ServerState | None = None,
    passed: Passed = NOTHING,
) -> None:
    """Write the folder: rows, evaluated clients, newest state and best models of the run in `origin`, which stays as it
    is.

    Args:
        path: of the folder; there is none yet. experiment, fingerprint, trained_by: of the run that goes on.
        state: from which it goes on; None: the newest of the other run. passed: what the script passes.

    Raises:
        DiskError: the disk is full, or the folder cannot be written.
        RunFolderError: there is a folder, or the other one has no checkpoint, or not the best model by which the run
            goes on, or is damaged.
    """
    stored = experiment_record.stored_experiment(origin)
    state = state or kept_checkpoints.newest_state(origin, experiment_record.stored_owner(origin))
    if state is None:
        raise RunFolderError(f"{origin} has no checkpoint yet, so no run can go on from it.")
    if not beginning.is_unbegun(path):
        raise RunFolderError(f"{path} exists already, so no run is put there that goes on from {origin}.")
    best_models.check_kept(
        origin, experiment.checkpoint.best, stored.checkpoint.best, round_table.rows_before(origin, state.round)
    )
    kept = {}
    if experiment.checkpoint.best is not None:
        owner, models = experiment_record.stored_owner(origin), files.best_models(origin)
        kept = {done: checkpoint.read(file, owner, done) for done, file in models.items() if done <= state.round}
    # Runs of one fingerprint that go on from others' states are other runs.
    own = _owner(passed.owner(fingerprint), state)
    # A link to an empty folder stays one.
    place = path.resolve() if path.is_symlink() else path
    atomic.sweep_folders(place)
    # A killed process leaves nothing at the run's place: a part of a run could neither be begun nor gone on with.
    with atomic.folder_aside(place) as made:
        with disk.writing(made):
            for name in FOLDERS:
                (made / name).mkdir()
        for index in files.client_files(origin):
            if index < state.round:
                clients = client_table.clients_after(origin, index)
                run_table.write_table(clients, files.client_file(made, index), own)
        rows = round_table.read_rounds(origin).slice(0, state.round)
        run_table.write_table(rows, made / files.ROUNDS, own)
        for done, model in kept.items():
            checkpoint.write(model, files.best_file(made, done), own)
        checkpoint.write(state, files.checkpoint_file(made, state.round), own)
        experiment_record.write_experiment(
            made,
            experiment,
            fingerprint,
            experiment_record.PlannedFacts(trained_by=trained_by, owner=own, goes_on_after=state.round),
        )
        _put(made, place)


def _put(made: Path, path: Path) -> None:
    """Put the folder at its place, where no run has begun."""
    with ExitStack() as held:
        if path.exists():
            held.enter_context(lock.locked(path))
            if not beginning.is_unbegun(path):
                raise RunFolderError(f"{path} exists already: a run has begun there meanwhile.")
            with disk.writing(path):
                path.rename(held.enter_context(_deleted(atomic.beside(path))))
        with disk.writing(path):
            made.rename(path)
            atomic.sync_folder(path.parent)


@contextmanager
def _deleted(path: Path) -> Iterator[Path]:
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def _owner(owner: str, state: ServerState) -> str:
    return hashlib.blake2b(f"{owner} {checkpoint.digest(state)}".encode(), digest_size=16).hexdigest()
