"""Warns that a run that is over has lost its last checkpoint: its newest model is older than its newest row."""

from __future__ import annotations

import logging
from pathlib import Path

from raysim.config.counted import counted
from raysim.errors import RunFolderError
from raysim.experiment import stopping
from raysim.run_folder import experiment_record, round_table, stop_record
from raysim.server.state import ServerState
from raysim.storage.remote.folder import named

log = logging.getLogger("raysim")


def warn(path: Path, state: ServerState) -> None:
    """Warn if the newest state of a folder's run is not that of its end, though the run is over."""
    try:
        rounds = round_table.read_rounds(path)
    except RunFolderError:
        # Whoever needs the rows says so.
        return
    experiment = experiment_record.stored_experiment(path)
    stopped = stop_record.stop_reason(experiment, rounds)
    if state.round < rounds.num_rows and stopping.is_over(experiment, rounds.num_rows, stopped):
        log.warning(
            "%s has lost its last checkpoint: its newest model is that after %s, and its rows are of %s. Put the file "
            "back, or resume the run, which computes the rounds between again",
            named(path),
            counted(state.round, "round"),
            counted(rounds.num_rows, "round"),
        )
