"""Makes a run's folder that goes on from another run, as a run of another experiment."""

from __future__ import annotations

from collections.abc import Mapping
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
from raysim.run_folder.writer import FOLDERS
from raysim.server.state import ServerState
from raysim.storage import disk


def branch(
    origin: Path,
    path: Path,
    experiment: Experiment,
    fingerprint: str,
    trained_by: Mapping[str, Any] | None = None,
    state: ServerState | None = None,
) -> None:
    """Write the folder: rows, evaluated clients, newest state and best models of the run in `origin`, which stays as it
    is.

    Args:
        path: of the folder; there is none yet. experiment, fingerprint, trained_by: of the run that goes on.
        state: from which it goes on; None: the newest of the other run.

    Raises:
        DiskError: the disk is full, or the folder cannot be written.
        RunFolderError: there is a folder, or the other one has no checkpoint, or not the best model by which the run
            goes on, or is damaged.
    """
    stored = experiment_record.stored_experiment(origin)
    state = state or kept_checkpoints.newest_state(origin, experiment_record.stored_fingerprint(origin))
    if state is None:
        raise RunFolderError(f"{origin} has no checkpoint yet, so no run can go on from it.")
    if not beginning.is_unbegun(path):
        raise RunFolderError(f"{path} exists already, so no run is put there that goes on from {origin}.")
    best_models.check_kept(
        origin, experiment.checkpoint.best, stored.checkpoint.best, round_table.rows_before(origin, state.round)
    )
    kept = {}
    if experiment.checkpoint.best is not None:
        owner, models = experiment_record.stored_fingerprint(origin), files.best_models(origin)
        kept = {done: checkpoint.read(file, owner, done) for done, file in models.items() if done <= state.round}
    with disk.writing(path):
        for name in FOLDERS:
            (path / name).mkdir(parents=True)
    for index in files.client_files(origin):
        if index < state.round:
            clients = client_table.clients_after(origin, index)
            run_table.write_table(clients, files.client_file(path, index), fingerprint)
    rows = round_table.read_rounds(origin).slice(0, state.round)
    run_table.write_table(rows, path / files.ROUNDS, fingerprint)
    for done, model in kept.items():
        checkpoint.write(model, files.best_file(path, done), fingerprint)
    checkpoint.write(state, files.checkpoint_file(path, state.round), fingerprint)
    # The record comes last: a folder without it is not a run's, wherever the process is killed.
    experiment_record.write_experiment(
        path,
        experiment,
        fingerprint,
        experiment_record.PlannedFacts(trained_by=trained_by, goes_on_after=state.round),
    )
