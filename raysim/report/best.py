"""Chooses the best and the second best method of each folder, by any score that its runs have recorded.

Source: Wang et al. (2021), figures 1, 3 and 11: rates are chosen by a score after the last of a number of rounds, the
training accuracy, the validation accuracy or the test accuracy. The rounds may be fewer than were run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from raysim.config.messages import nearest
from raysim.errors import RunFolderError
from raysim.report.groups import Group, group_runs
from raysim.report.runs import read_all
from raysim.report.series import Series

_SCORE = re.compile(r"(eval\w*/.+/)?(accuracy|loss)|eval\w*/.+/(mean_client_accuracy|p[0-9.]+)")
_STUDY, _TRIALS = "study.json", "trials"


class Scored(NamedTuple):
    """A method and its score, the mean over its trials."""

    group: Group
    score: float


class Chosen(NamedTuple):
    """The best and the second best of a folder's methods by the column `by` after `after` finished rounds.

    second: None if no other has the score there. left_out: methods without it, because they diverged or were stopped.
    """

    folder: str
    by: str
    after: int
    best: Scored
    second: Scored | None
    left_out: int


class Methods(NamedTuple):
    """The methods in a folder, by its name."""

    folder: str
    groups: tuple[Group, ...]

    @property
    def columns(self) -> list[str]:
        """The columns of numbers in its records."""
        schemas = (run.rounds.schema for group in self.groups for run in group.runs)
        return list(dict.fromkeys(field.name for schema in schemas for field in schema if field.type.num_fields == 0))


def methods(folder: Path) -> tuple[Methods, list[str]]:
    """Return the methods of a folder with runs, and notes of caution; of a study its trials, not its final runs.

    Raises:
        RunFolderError: the folder is missing, or contains no readable run.
    """
    runs, unread = read_all([folder / _TRIALS if (folder / _STUDY).is_file() else folder])
    groups, careful = group_runs(runs)
    return Methods(folder.resolve().name, tuple(groups)), [*unread, *careful]


def choose(found: Methods, by: str, after: int | None = None) -> Chosen:
    """Return the choice by a column after so many finished rounds, or after all; losses are to be small.

    The score counts at the last round until then in which any method has it.

    Raises:
        RunFolderError: the folder has not recorded that score, or fewer rounds.
    """
    if by not in found.columns or not _SCORE.fullmatch(by):
        scores = [name for name in found.columns if _SCORE.fullmatch(name)]
        raise RunFolderError(
            f"{found.folder} has no score {by!r} to choose by{nearest(by, scores)}: its runs have recorded "
            f"{', '.join(scores) or 'none'}."
        )
    finished = max(run.rounds.num_rows for group in found.groups for run in group.runs)
    if after is not None and after > finished:
        raise RunFolderError(f"{found.folder} has finished {finished:,} rounds, so nothing is known after {after:,}.")
    curves = [(group, curve) for group in found.groups if (curve := until(group, by, after)) is not None]
    if not curves:
        raise RunFolderError(f"No run of {found.folder} has the score {by!r} by then: choose more rounds.")
    last = max(int(curve.rounds[-1]) for _, curve in curves)
    scored = [Scored(group, float(curve.mean[-1])) for group, curve in curves if curve.rounds[-1] == last]
    sign = 1 if by.endswith("loss") else -1
    best, *others = sorted(scored, key=lambda one: sign * one.score)
    return Chosen(found.folder, by, last, best, next(iter(others), None), len(found.groups) - len(scored))


def until(group: Group, column: str, after: int | None) -> Series | None:
    """Return the column's mean over the method's trials, at the rounds up to `after` that all of them have."""
    series = group.series(column)
    if series is None:
        return None
    kept = series.trials == len(group.runs)
    if after is not None:
        kept &= series.rounds <= after
    return series.at(np.flatnonzero(kept)) if kept.any() else None
