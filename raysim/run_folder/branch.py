"""Makes a run's folder that goes on from another run, as a run of another experiment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.errors import RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.run_folder import begun, checkpoint, files, records
from raysim.run_folder.writer import FOLDERS


def branch(
    origin: Path, path: Path, experiment: Experiment, fingerprint: str, trained_by: Mapping[str, Any] | None = None
) -> None:
    """Write the folder: rows, evaluated clients and newest state of the run in `origin`, which stays as it is.

    Args:
        path: of the folder; there is none yet. experiment, fingerprint, trained_by: of the run that goes on.

    Raises:
        RunFolderError: there is a folder, or the other one has no checkpoint, or is damaged.
    """
    state = records.newest_state(origin, records.stored_fingerprint(origin))
    if state is None:
        raise RunFolderError(f"{origin} has no checkpoint yet, so no run can go on from it.")
    if not begun.is_unbegun(path):
        raise RunFolderError(f"{path} exists already, so no run is put there that goes on from {origin}.")
    records.rows_before(origin, state.round)
    for name in FOLDERS:
        (path / name).mkdir(parents=True)
    for index in files.client_files(origin):
        if index < state.round:
            clients = records.clients_after(origin, index)
            records.write_table(clients, files.client_file(path, index), fingerprint)
    rows = records.read_rounds(origin).slice(0, state.round)
    records.write_table(rows, path / files.ROUNDS, fingerprint)
    checkpoint.write(state, files.checkpoint_file(path, state.round), fingerprint)
    # The record comes last: a folder without it is no run's, wherever the process is killed.
    records.write_experiment(path, experiment, fingerprint, records.PlannedFacts(trained_by=trained_by))
