"""Defines `read`: the result of a study again, from its storage and its folder, without training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna

from raysim.storage.reading import why
from raysim.storage.remote.uri import check_is_path
from tuning import client_scores, folder, kept_trial, result, space
from tuning.budget import CLIENT_UPDATES, UNITS
from tuning.errors import StudyError
from tuning.ledger import by_slot
from tuning.objective import Objective
from tuning.result import Study
from tuning.storage import absolute, answering, kept, open_storage, shown

UNIT = "unit"
"""The study's attribute that names what its budget counts."""


def read(path: str | Path, *, storage: str | None = None) -> Study:
    """Return the result of a study again, as `tune` returned it; of one under way, that of its ended trials.

    Args:
        path: the study's folder.
        storage: its `tuning.storage`, if the study is kept elsewhere than in the folder.

    Raises:
        StudyError: the folder is not a study's, its trials are kept elsewhere, or no trial has finished.
        StorageError: the storage cannot be opened.
    """
    check_is_path(path, "A study's folder", StudyError)
    where = Path(path)
    name, recorded = folder.read(where)
    # A folder from elsewhere does not choose which files or servers are opened.
    url = absolute(storage) if storage else kept(recorded, where)
    with answering(url), open_storage(url) as held:
        try:
            study = optuna.load_study(study_name=name, storage=held)
        except KeyError:
            raise StudyError(f"{shown(url)} has no study {name!r}, which {where} is the folder of.") from None
        trials = [trial for trial in by_slot(study).values() if trial.state.is_finished()]
        attributes = study.user_attrs
    try:
        identity, digest = attributes["identity"], folder.identity_of(where)
        if digest is not None and digest != kept_trial.digest(identity):
            raise ValueError(f"its settings are not those that {where} was claimed with")
        tuning = identity["tuning"]
        objective, searched = Objective.model_validate(tuning["objective"]), space.parse(tuning["space"])
        found = result.rank_trials(trials, searched, objective, attributes)
        if not found:
            raise StudyError(result.no_result(trials, searched) if trials else f"No trial of {where} has ended yet.")
        unit = attributes.get(UNIT, CLIENT_UPDATES)
        if unit not in UNITS:
            raise ValueError(f"its budget counts {unit!r:.40}")
        of = result.Searched(name, objective, tuning.get("cost"), unit, searched)
        finished = result.of_trials(of, trials, found, where)
    except (LookupError, TypeError, ValueError) as error:
        raise StudyError(f"The study {name!r} in {shown(url)} is damaged: {why(error)}.") from error
    return replace(finished, regret=client_scores.regret(where, trials, objective))
