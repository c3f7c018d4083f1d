"""Concludes a study: trains the best configurations on all training clients, and evaluates them once on test."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim import Experiment, RaysimError, Report, Runs, differing
from raysim.experiment.row import Row
from raysim.run_folder.experiment_record import stored_experiment
from raysim.run_folder.files import RECORD
from raysim.run_folder.tables import mean
from tuning import standard_error
from tuning.errors import StudyError
from tuning.folder import clear_unfinished
from tuning.kept_trial import SEAL, digest
from tuning.ledger import Ledger
from tuning.progress import StudyProgress
from tuning.protocol import final_experiment, with_each_seed
from tuning.search import POLL_S
from tuning.section import TuningSection

PREFIX = "final/"
"""Prefix of the study's attributes that hold the results of final runs."""


def folder_of(folder: Path, number: int) -> Path:
    """Return the folder of the final runs of a trial's configuration, which has a folder per seed."""
    return folder / "final" / f"{number:04d}"


def results(attributes: Mapping[str, Any]) -> dict[int, Mapping[str, Mapping[str, float | None]]]:
    """Return trial -> column of its last evaluation -> mean over the seeds, and its standard error.

    Raises:
        StudyError: a result is not the one that was written.
    """
    found = {}
    for key, kept in attributes.items():
        if not key.startswith(PREFIX):
            continue
        number = key.removeprefix(PREFIX)
        if not (
            number.isdecimal()
            and isinstance(kept, Mapping)
            and kept.get(SEAL) == digest([int(number), kept.get("evaluations")])
        ):
            raise StudyError(
                f"The result of the final runs of trial {number} is damaged in the study's storage: it is not the one "
                f"that was written. Restore the storage, or give the study another folder (--path, path=)."
            )
        found[int(number)] = kept["evaluations"]
    return found


def check_evaluation(experiment: Experiment, attributes: Mapping[str, Any], folder: Path) -> None:
    """See that final runs that have ended were evaluated as the experiment's would be now.

    Args:
        experiment: the file's. attributes: the study's. folder: of the study; what is not there is not compared.

    Raises:
        StudyError: one was evaluated otherwise, or a result is damaged.
    """
    asked = _evaluation(final_experiment(experiment, {}))
    for number in results(attributes):
        run = folder_of(folder, number) / "seed-0"
        found = differing(_evaluation(stored_experiment(run)), asked) if (run / RECORD).exists() else []
        if found:
            raise StudyError(
                f"The final runs of trial {number} have ended with another evaluation: {'; '.join(found)}. Put that "
                f"back to go on with the study. To evaluate its best otherwise, run {folder / 'best.toml'} with other "
                f"keys of [evaluation]."
            )


def _evaluation(final: Experiment) -> dict[str, Any]:
    """Return how a final run is evaluated: what the study's trials do not have."""
    split, fine_tuning = final.evaluation.split or "test", final.evaluation.fine_tuning
    return {
        "evaluation.split": [split] if isinstance(split, str) else sorted(split),
        "evaluation.fine_tuning": None if fine_tuning is None else fine_tuning.model_dump(mode="json"),
    }


def conclude(
    experiment: Experiment,
    tuning: TuningSection,
    ledger: Ledger,
    runs: Runs,
    chosen: Mapping[int, Mapping[str, Any]],
    folder: Path,
    progress: StudyProgress,
) -> None:
    """Run the missing final runs, in one process of the study, and wait for them in the others.

    Args:
        experiment: the file's. chosen: trial -> its values.

    Raises:
        RaysimError: as a run; the same command resumes it.
    """
    while missing := [number for number in chosen if number not in results(ledger.study.user_attrs)]:
        mine = [number for number in missing if ledger.is_mine(f"{PREFIX}{number}")]
        if mine:
            trials = ", ".join(map(str, mine))
            progress.print_line(f"on all training clients, and then on the test split: trial {trials}")
            begun = {number: _begun(experiment, tuning, chosen[number], folder_of(folder, number)) for number in mine}
            for number, last in _run(runs, begun, folder, progress).items():
                evaluations = _summary(last)
                kept = {"evaluations": evaluations, SEAL: digest([number, evaluations])}
                ledger.study.set_user_attr(f"{PREFIX}{number}", kept)
        else:
            time.sleep(POLL_S)


def _begun(
    experiment: Experiment, tuning: TuningSection, values: Mapping[str, Any], folder: Path
) -> list[tuple[Experiment, Path]]:
    """Return the runs of a configuration, one for each seed, and their folders."""
    seeds = with_each_seed(final_experiment(experiment, values), tuning)
    return [(seed, folder / f"seed-{place}") for place, seed in enumerate(seeds)]


def _run(
    runs: Runs, begun: Mapping[int, Sequence[tuple[Experiment, Path]]], folder: Path, progress: StudyProgress
) -> dict[int, list[Row]]:
    """Return the last row of every run, by trial."""
    every = [(number, *run) for number, of_trial in begun.items() for run in of_trial]
    for _, _, path in every:
        clear_unfinished(path, folder)
    progress.expects(sum(seed.rounds for _, seed, _ in every))
    started = runs.start([(seed, path) for _, seed, path in every], resume=True)
    rows: dict[int, list[Row]] = {run: [] for run in started}
    for report in runs.reports():
        _receive(report, rows, progress)
    last: dict[int, list[Row]] = {number: [] for number in begun}
    for (number, _, _), found in zip(every, rows.values(), strict=True):
        last[number].append(found[-1])
    return last


def _receive(report: Report, rows: dict[int, list[Row]], progress: StudyProgress) -> None:
    if report.error is not None:
        raise _of_final_run(report.error, report.path)
    rows[report.run].extend(report.rows)
    progress.finished(len(report.rows))


def _of_final_run(error: RaysimError, path: Path) -> RaysimError:
    return type(error)(f"The final run in {path} failed: {error}")


def _summary(last: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    for name in (name for name in last[0] if name.startswith("eval/")):
        values = [row[name] for row in last if row.get(name) is not None]
        if values:
            found[name] = {"mean": mean(values), "standard_error": standard_error.over_seeds(values)}
    return found
