"""Makes a table: a study of every configuration of a grid, evaluated after every round, whose records are collected."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim import Experiment, ExperimentError, dataset_of
from raysim.experiment.row import Row
from raysim.run_folder.files import RECORD, ROUNDS
from raysim.run_folder.run_table import read_table
from raysim.run_folder.tables import column
from raysim.storage.remote.folder import path_here
from raysim.storage.remote.uri import check_is_path
from tuning import kept_run, protocol, search, section, study, study_plan
from tuning.client_scores import client_rows
from tuning.client_sums import weight_column
from tuning.errors import StudyError
from tuning.kept_trial import FAILED, FINISHED
from tuning.of_a_table import EVALUATION, SEARCH
from tuning.pruners import NoPruner
from tuning.samplers import Grid
from tuning.section import TuningSection
from tuning.space import Space
from tuning.table import card, file
from tuning.table.record import (
    ACCURACIES,
    LISTS,
    LOSSES,
    PublishedTable,
    ScoredClients,
    configurations,
    place_of,
    values_of,
)

FIGURES = ("round", "clients", "rejected", "examples", "loss", "accuracy", "bytes_down", "bytes_up", "simulated_time_s")
"""Columns that a table keeps, beside all evaluations: what two machines measure alike."""

OF_A_SEARCH = ("sampler", "pruner", "trials", "budget")
"""Keys of `[tuning]` that a table does not have."""

log = logging.getLogger("raysim")


def whole_grid(experiment: Experiment) -> Experiment:
    """Return the experiment of the study behind a table: the whole grid, every client evaluated after every round.

    Raises:
        ExperimentError: the space is not a grid, or what it needs differs from the section's keys.
    """
    tuning = section.section_of(experiment)
    if tuning.parsed_space().grid is None:
        raise ExperimentError(
            "A table has every configuration of a grid, but tuning.space has numbers without end between two: write "
            "grid = [...] or choices = [...] for each key."
        )
    if "data" in tuning.vary:
        raise ExperimentError(
            'A table has the same validation clients for every seed, but tuning.vary has "data": remove it there.'
        )
    _check_as_long(experiment, tuning.parsed_space())
    for remark in _remarks(tuning):
        log.warning("%s", remark)
    kept = {key: value for key, value in (experiment.tuning or {}).items() if key not in OF_A_SEARCH}
    every = {f"evaluation.{key}": value for key, value in EVALUATION.items()}
    return experiment.changed({**every, "tuning": {**kept, **SEARCH, "final": 0}})


def _check_as_long(experiment: Experiment, space: Space) -> None:
    """Refuse a grid whose runs differ in their number of rounds, before any is trained.

    Raises:
        ExperimentError: some are longer than others, or may end before their last round.
    """
    every = "A table has every round of every run"
    if "rounds" in space.dimensions:
        raise ExperimentError(
            f"{every}, but tuning.space has rounds: set rounds to the largest one, and remove the key."
        )
    for values in configurations(space):
        each = experiment.changed(values)
        if each.stop is not None:
            raise ExperimentError(f"{every}, but [stop] would end some before: remove it.")
        privacy = each.server.privacy
        # Without a noise multiplier the noise is such that all rounds keep to epsilon.
        if privacy is not None and privacy.epsilon is not None and privacy.noise_multiplier is not None:
            raise ExperimentError(
                f"{every}, but server.privacy.epsilon = {privacy.epsilon:g} may end some before: remove it, or "
                f"server.privacy.noise_multiplier."
            )


def _remarks(tuning: TuningSection) -> Iterator[str]:
    """Yield a sentence for keys that are set, and that no table has."""
    chosen = {key for key in OF_A_SEARCH if key in tuning.model_fields_set}
    chosen -= {"sampler"} if isinstance(tuning.sampler, Grid) else set()
    chosen -= {"pruner"} if isinstance(tuning.pruner, NoPruner) else set()
    if chosen:
        yield (
            f"raysim table does not use {', '.join(f'tuning.{key}' for key in sorted(chosen))}: a table has all "
            f"{tuning.parsed_space().size} configurations of the grid, each to the last round"
        )


def make(experiment: Experiment, path: Path, *, folder: Path | None = None, **settings: Any) -> PublishedTable:
    """Train every configuration of the experiment's grid, and write the table with its card.

    A second call goes on where the first one stopped.

    Args:
        path: the table's file; the card is beside it, as Markdown.
        folder: of the study behind it, by default `runs/<name>-tuning`.
        settings: as for `tune`: executor, parts, keys of `[tuning]`.

    Raises:
        ExperimentError: see `whole_grid`.
        StudyError: the code of a configuration failed; or the table's card would replace another file.
        RaysimError: as `tune`.
    """
    check_is_path(path, "The table (--out)", StudyError)
    card.check_free(path)
    experiment, settings = study_plan.entered(experiment, settings)
    whole = whole_grid(experiment)
    where = folder or study_plan.default_folder(whole)
    check_is_path(where, "The study's folder (--path, folder=)", StudyError)
    # A part of the script may change the working folder.
    path, where = path_here(path).absolute(), path_here(where).absolute()
    found = study.tune(whole, path=where, **settings)
    if found.counts.get(FAILED):
        failed = next(row for row in found.trials.to_pylist() if row["outcome"] == FAILED)
        raise StudyError(f"Trial {failed['trial']} failed, so the grid has a hole: {failed['why']}")
    tuning, dataset = section.section_of(whole), settings.get("dataset")
    measured = protocol.evaluated_on_validation(whole, tuning, dataset)
    held = protocol.with_validation_clients(whole, tuning, dataset) or dataset_of(measured)
    seeds = [each.seed for each in protocol.with_each_seed(measured, tuning)]
    space = tuning.parsed_space()
    scored = []
    for row, values in zip(_by_place(found.trials.to_pylist(), space), configurations(space), strict=True):
        of_trial, total = (
            search.trial_folder(where, row["trial"]),
            measured.rounds if row["outcome"] == FINISHED else None,
        )
        runs = [of_trial / f"seed-{place}" for place in range(len(seeds))]
        expected = protocol.runs_of(measured, tuning, values)
        scored.append(
            [list(_scored(run, own, held.fingerprint, total)) for run, own in zip(runs, expected, strict=True)]
        )
    clients, rows = _collected(scored)
    table = PublishedTable(measured, space, tuple(seeds), held.fingerprint, clients, rows, tuple(tuning.vary))
    file.write(table, path)
    card.write(table, path)
    return table


def _by_place(trials: Sequence[Row], space: Space) -> list[Row]:
    """Return all trials, in the order of the grid."""
    read = {}
    for key in space.dimensions:
        listed = values_of(space, key)
        # The trials have all values of the key, so their column is of the same kind as this one.
        read[key] = dict(zip(column(listed).to_pylist(), listed, strict=True))
    values = [{key: read[key][row[key]] for key in space.dimensions} for row in trials]
    found = {place_of(space, each): row for each, row in zip(values, trials, strict=True)}
    return [found[place] for place in sorted(found)]


def _collected(
    scored: Sequence[Sequence[Sequence[tuple[Row, Mapping[str, Row]]]]],
) -> tuple[ScoredClients, list[list[list[Row]]]]:
    """Return the clients, and the rows by configuration and seed; where one seed diverged, all end with its end."""
    # A run whose first round diverged has evaluated nobody.
    first = next(table for of_trial in scored for rows in of_trial for _, table in rows)
    clients = ScoredClients(tuple(first), tuple(each["examples"] for each in first.values()), _weights(first.values()))
    every = []
    for of_trial in scored:
        shortest = min(map(len, of_trial))
        every.append([[_row(row, table, clients) for row, table in rows[:shortest]] for rows in of_trial])
    return clients, every


def _scored(run: Path, expected: Experiment, data: str, total: int | None) -> Iterator[tuple[Row, Mapping[str, Row]]]:
    """Yield the rounds of a run, each with its row of every validation client by name.

    Args:
        expected, data: of the run that belongs there; the fingerprint of its data.
        total: its number of rounds; None: its trial diverged, perhaps before its first round ended.

    Raises:
        StudyError, RunFolderError: rows or clients are lost or damaged, or of another run.
    """
    file = run / ROUNDS
    rows = read_table(run, file).to_pylist() if file.exists() else []
    known = [row.get("round") for row in rows]
    if not (run / RECORD).exists() or known != list(range(len(rows) if total is None else total)):
        raise StudyError(
            f"{run} has lost records: a table needs every round of it, and it has {len(rows)}. Put the whole folder "
            f"back, or make the table from another study."
        )
    kept_run.check_experiment(run, expected, data)
    for row in rows:
        clients = client_rows(run, row["round"])
        yield row, {each["client"]: each for each in clients if each["split"] == "validation"}


def _row(row: Row, scores: Mapping[str, Row], clients: ScoredClients) -> Row:
    figures = {name: row[name] for name in row if name in FIGURES or name.startswith("eval/")}
    losses, accuracies = ([scores[client][of] for client in clients.names] for of in (LISTS[LOSSES], LISTS[ACCURACIES]))
    # A client has none without an example, or a place, that counts.
    known = [None if each is None or math.isnan(each) else each for each in accuracies]
    return {**figures, LOSSES: losses, ACCURACIES: known}


def _weights(rows: Iterable[Row]) -> dict[str, tuple[float, ...]]:
    """Return what clients weigh in a figure, of their rows, by figure: where that is not their examples."""
    every = list(rows)
    columns = {figure: weight_column(figure) for figure in LISTS.values()}
    return {
        figure: tuple(row[column] for row in every)
        for figure, column in columns.items()
        if all(row.get(column) is not None for row in every)
    }
