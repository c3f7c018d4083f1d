"""Makes reports, comparisons and choices of recorded runs from Python, as the commands of these names do."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from numbers import Real
from pathlib import Path
from typing import Any, get_args

from raysim.config.call_advice import advised
from raysim.config.flag import check_flag
from raysim.config.plain import shown as in_words
from raysim.config.values import is_whole
from raysim.errors import ExperimentError
from raysim.report import best_build, build, comparison_build
from raysim.report.best_build import BestMethods
from raysim.report.build import Built
from raysim.report.comparison import Test
from raysim.report.comparison_build import Comparisons
from raysim.storage.remote.uri import check_is_path

FOLDERS = "the folders of runs, trials, sweeps or studies come first, such as 'runs/a', 'runs/b'"


@advised(FOLDERS)
def make_report(
    *folders: str | Path,
    out: str | Path | None = None,
    targets: Sequence[float] = (),
    monotone: bool = False,
    labels: Sequence[str] = (),
    set: Sequence[str] = (),
) -> Built:
    """Make a page with pictures of runs, and each picture as PNG, SVG, PDF and CSV, as `raysim report` does.

    In a notebook the result is a link to the page.

    Args:
        folders: of runs, trials, sweeps or studies, their URIs, or folders that hold any of them. Runs that differ only
            in seeds form one method.
        out: where the report goes; None: `report` in the folder, or in the working folder for several.
        targets: accuracies from 0 to 1 of rounds to target; none: 95 % of the best.
        monotone: learning curves show the best value so far (McMahan et al. 2017).
        labels: names of methods, such as "runs/a=FedAvg" or "cohort.size=5=small".
        set: changes of keys of pictures, such as "report.width_cm=8".

    Raises:
        RunFolderError: a folder is missing or holds no run that can be read; or a label is of no method.
        ExperimentError: a change, or a target, does not fit.
    """
    check_flag("monotone", monotone)
    found = _paths(folders)
    _check_targets(targets)
    if out is not None:
        check_is_path(out, "A report's folder (--out, out=)")
    out = Path(out) if out is not None else build.default_folder(found)
    return build.build(found, out, tuple(targets), monotone, _texts(set), _texts(labels))


@advised(FOLDERS)
def compare(
    *folders: str | Path,
    metrics: Sequence[str] = (),
    test: Test = "t",
    labels: Sequence[str] = (),
    last: int = 1,
) -> Comparisons:
    """Compare methods: mean, deviation, and the difference from the first, paired by seed and tested.

    As `raysim compare` does; `print` shows the tables, and so does a notebook.

    Args:
        folders: as of `make_report`.
        metrics: columns of the records; none: the accuracy of each evaluation.
        test: the paired test: "t" (Student's) or "wilcoxon"; p-values are corrected by Holm's method.
        labels: as of `make_report`.
        last: a run's figure is its mean over so many rounds that have it (evaluated ones, for an evaluation), the last
            ones until the last round that all runs have; 1: its value there.

    Raises:
        RunFolderError: as of `make_report`; or fewer than two methods have a figure; or `last` is below 1, or more than
            the rounds in which a run has a figure.
        ExperimentError: there is no such test, or `last` is no integer.
    """
    if test not in get_args(Test):
        raise ExperimentError(f"test must be {' or '.join(map(repr, get_args(Test)))}, but got {in_words(test)}.")
    if not is_whole(last):
        raise ExperimentError(f"last must be an integer, but got {in_words(last)}.")
    return comparison_build.build(_paths(folders), _texts(metrics), test, _texts(labels), last)


@advised(FOLDERS + "; by names a recorded score, such as by='eval/validation/accuracy'")
def best(
    *folders: str | Path,
    by: str | Sequence[str],
    after: Sequence[int] = (),
    shown: str | None = None,
    out: str | Path = "best",
    set: Sequence[str] = (),
) -> BestMethods:
    """Choose the best and the second best method of each folder by a score, and draw them, as `raysim best` does.

    A notebook shows the choices and the pictures.

    Args:
        folders: of studies or sweeps.
        by: recorded scores: "accuracy" and "loss" are of training; "eval/validation/accuracy", ...
        after: rounds after which to choose; none: all. There is a picture for each pair of score and rounds.
        shown: what is drawn; None: "eval/test/accuracy" where all have it, else the score.
        out: where pictures and their CSV files go.
        set: as of `make_report`.

    Raises:
        RunFolderError: as of `make_report`; or a score is not recorded, or fewer rounds are finished; or a
            file that is none of a picture lies where a picture goes.
        ExperimentError: a change does not fit, or `after` is no list of integers from 1 on.
    """
    check_is_path(out, "The folder of pictures (--out, out=)")
    _check_rounds(after)
    return best_build.build(_paths(folders), _texts(by), tuple(after) or (None,), shown, Path(out), _texts(set))


def _paths(folders: Sequence[str | Path]) -> list[Path]:
    if not folders:
        raise TypeError(f"No folder is given: {FOLDERS}.")
    for folder in folders:
        if not isinstance(folder, str | os.PathLike):
            raise TypeError(f"A folder must be a path or URI, but got {in_words(folder)}: {FOLDERS}.")
    return [Path(folder) for folder in folders]


def _texts(given: str | Sequence[str]) -> Sequence[str]:
    """Return the texts; one is no sequence of its letters."""
    return (given,) if isinstance(given, str) else given


def _check_targets(targets: Any) -> None:
    # NaN is not in the range either.
    if not _is_list(targets) or not all(
        not isinstance(each, bool) and isinstance(each, Real) and 0 <= float(each) <= 1 for each in targets
    ):
        raise ExperimentError(f"targets must be accuracies from 0 to 1, such as [0.9], but got {in_words(targets)}.")


def _check_rounds(after: Any) -> None:
    if not _is_list(after) or not all(is_whole(each) and each >= 1 for each in after):
        raise ExperimentError(f"after must be numbers of rounds, such as [100], but got {in_words(after)}.")


def _is_list(given: object) -> bool:
    return isinstance(given, Collection) and not isinstance(given, str)
