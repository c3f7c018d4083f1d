"""Reads what a run's folder goes on from, and refuses what it cannot go on to; nothing is written."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from raysim.errors import RunFolderError
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row
from raysim.experiment.stop import without_evaluation
from raysim.experiment.stopping import StopReason
from raysim.run_folder import best_models, experiment_record, kept_checkpoints, round_table
from raysim.server.state import ServerState


class Begun(NamedTuple):
    """What a run goes on from.

    state: of the newest intact checkpoint; None: there is none. rows: of the rounds before it. unevaluated: the round
    that was evaluated only because it was the last, which it no longer is, so its row has lost its evaluation; None:
    there is none. stopped: why the run has stopped before its last round; None: it has not.
    """

    state: ServerState | None
    rows: list[Row]
    unevaluated: int | None
    stopped: StopReason | None

    @property
    def done(self) -> int:
        """The number of rounds before the state."""
        return self.state.round if self.state else 0


def begun(path: Path, experiment: Experiment) -> Begun:
    """Return what the folder's run goes on from, as a run of the experiment, which has the same fingerprint.

    Raises:
        CheckpointError: see `kept_checkpoints.newest_state`.
        RunFolderError: rows are lost; or more rounds are done than the experiment has; or the best model is not kept
            by which the experiment goes on.
    """
    stored = experiment_record.stored_experiment(path)
    state = kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))
    done, rounds = (state.round if state else 0), experiment.rounds
    rows = round_table.rows_before(path, done)
    if done > rounds:
        raise RunFolderError(
            f"{path} has {done} rounds behind it, so it cannot go on to round {rounds} only: ask for more (--rounds "
            f"{2 * done}, rounds={2 * done}). Its rounds.parquet has the figures of the first {rounds}, and "
            f"raysim.replay({str(path)!r}, {rounds - 1}) the model after them."
        )
    stopped, unevaluated = stopping.after_all(experiment, rows).stopped, None
    if done % experiment.evaluation.every and not stopping.is_over(experiment, done, stopped):
        unevaluated = done - 1
        rows[-1:] = [without_evaluation(row) for row in rows[-1:]]
    best_models.check_kept(path, experiment.checkpoint.best, stored.checkpoint.best, rows)
    return Begun(state, rows, unevaluated, stopped)
