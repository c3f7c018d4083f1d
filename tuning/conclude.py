"""The end of a study: the best configurations on all training clients, evaluated on the test split, once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysim import Experiment, RaysimError, Report, Runs
from tuning import standard_error
from tuning.files import clear_half_made
from tuning.ledger import Ledger
from tuning.objective import Row
from tuning.progress import Progress
from tuning.protocol import concluding, seeded
from tuning.search import POLL_S
from tuning.section import TuningSection

PREFIX = "final/"
"""How the study's attributes begin that hold what final runs came to."""


def folder_of(folder: Path, number: int) -> Path:
    """Where the final runs of a trial's configuration lie, a folder a seed."""
    return folder / "final" / f"{number:04d}"


def results(attributes: Mapping[str, Any]) -> dict[int, Mapping[str, Mapping[str, float | None]]]:
    """Trial -> column of its last evaluation -> mean over the seeds, and its standard error."""
    return {int(key.removeprefix(PREFIX)): value for key, value in attributes.items() if key.startswith(PREFIX)}


def conclude(
    experiment: Experiment,
    tuning: TuningSection,
    ledger: Ledger,
    runs: Runs,
    chosen: Mapping[int, Mapping[str, Any]],
    folder: Path,
    progress: Progress,
) -> None:
    """Run what has not been run yet, in one process of the study, and wait for it in the others.

    Args:
        experiment: as the file has it. chosen: trial -> its values.

    Raises:
        RaysimError: as a run; the command again goes on with it.
    """
    while missing := [number for number in chosen if number not in results(ledger.study.user_attrs)]:
        mine = [number for number in missing if ledger.is_mine(f"{PREFIX}{number}")]
        if mine:
            progress.say("on all training clients, and then on the test split: trial " + ", ".join(map(str, mine)))
            _run(experiment, tuning, ledger, runs, {number: chosen[number] for number in mine}, folder, progress)
        else:
            time.sleep(POLL_S)


def _run(
    experiment: Experiment,
    tuning: TuningSection,
    ledger: Ledger,
    runs: Runs,
    chosen: Mapping[int, Mapping[str, Any]],
    folder: Path,
    progress: Progress,
) -> None:
    begun: list[tuple[Experiment, Path]] = []
    of: list[int] = []
    for number, values in chosen.items():
        for place, seed in enumerate(seeded(concluding(experiment, values), tuning)):
            begun.append((seed, folder_of(folder, number) / f"seed-{place}"))
            clear_half_made(begun[-1][1])
            of.append(number)
    progress.expects(sum(seed.rounds for seed, _ in begun))
    rows: dict[int, list[Row]] = {run: [] for run in runs.start(begun, resume=True)}
    trial_of = dict(zip(rows, of, strict=True))
    for report in runs.reports():
        _hear(report, rows, progress)
    for number in chosen:
        last = [found[-1] for run, found in rows.items() if trial_of[run] == number]
        ledger.study.set_user_attr(f"{PREFIX}{number}", _summary(last))


def _hear(report: Report, rows: dict[int, list[Row]], progress: Progress) -> None:
    if report.error is not None:
        raise _told(report.error, report.path)
    rows[report.run].extend(report.rows)
    progress.finished(len(report.rows))


def _told(error: RaysimError, path: Path) -> RaysimError:
    return type(error)(f"The final run in {path} failed: {error}")


def _summary(last: Sequence[Row]) -> dict[str, dict[str, float | None]]:
    found: dict[str, dict[str, float | None]] = {}
    for name in (name for name in last[0] if name.startswith("eval/")):
        values = [row[name] for row in last if row.get(name) is not None]
        if values:
            found[name] = {"mean": statistics.fmean(values), "standard_error": standard_error.over_seeds(values)}
    return found
