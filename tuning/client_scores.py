"""Reads what each validation client scored in the rounds that count, from the folders of trials."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from optuna.trial import FrozenTrial

from raysim import RunFolderError
from raysim.experiment.row import Row
from raysim.run_folder.files import client_file
from raysim.run_folder.round_table import read_rounds
from raysim.run_folder.run_table import read_table
from tuning import kept_run
from tuning.client_sums import sums
from tuning.errors import StudyError
from tuning.kept_trial import FINISHED
from tuning.objective import Objective
from tuning.regret import Regret, bootstrap
from tuning.search import trial_folder
from tuning.trial_rows import RUNS

log = logging.getLogger("raysim")

_NOT_ESTIMATED = "the regret of the study's choice is not estimated"


def regret(folder: Path, trials: Iterable[FrozenTrial], objective: Objective) -> tuple[Regret, ...]:
    """Return the regret of choosing among the finished trials of a study's folder by few validation clients.

    Empty if the objective is not a sum over clients, the trials were measured on other clients, or the folders of some
    runs are on another machine; or, with a warning, if they have lost figures of clients.
    """
    finished = sorted((t for t in trials if t.user_attrs["outcome"] == FINISHED), key=lambda trial: trial.number)
    if not objective.is_ratio or not finished:
        return ()
    scores = []
    for trial in finished:
        of_trial = trial_folder(folder, trial.number)
        facts = trial.user_attrs["facts"]
        runs = [
            _tables(of_trial / f"seed-{place}", fingerprint, objective, total)
            for place, (fingerprint, total) in enumerate(zip(facts[RUNS], facts["rounds"], strict=True))
        ]
        if not all(runs):
            return ()
        scores.append([sums(tables, objective.name) for tables in runs])
    # The first of equal ones, as the ranking has it.
    values = [trial.values[0] for trial in finished]
    best = values.index((max if objective.is_maximised else min)(values))
    return tuple(bootstrap(scores, objective.is_maximised, best))


def client_rows(run: Path, index: int) -> list[Row]:
    """Return the rows of the clients that were evaluated after a round.

    Raises:
        StudyError: they are of another round.
        RunFolderError: they are lost, damaged, or of another run.
    """
    file = client_file(run, index)
    rows: list[Row] = read_table(run, file).to_pylist()
    if other := {row.get("round") for row in rows} - {index}:
        raise StudyError(f"{file} holds round {other.pop()}: files were exchanged. Put back the ones that were there.")
    return rows


def _tables(run: Path, fingerprint: str, objective: Objective, total: int) -> list[list[Row]]:
    """Return the validation clients' rows after each round whose figure counts; none if one of the tables is lost."""
    if not run.exists():
        return []
    kept_run.check(run, fingerprint)
    try:
        rows = read_rounds(run).to_pylist()
    except RunFolderError as error:
        log.warning("%s: %s", _NOT_ESTIMATED, error)
        return []
    counting = objective.rounds(total)
    evaluated = [row["round"] for row in rows if row["round"] in counting and objective.figure.is_known(row)]
    if lost := [file for index in evaluated if not (file := client_file(run, index)).exists()]:
        log.warning("%s: %s is lost. Put it back, and give the same command again", _NOT_ESTIMATED, lost[0])
        return []
    found = [client_rows(run, index) for index in evaluated]
    return [[row for row in rows if row["split"] == "validation" and row["examples"]] for rows in found]
