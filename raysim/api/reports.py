"""Makes reports, comparisons and choices of recorded runs from Python, as the commands of these names do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raysim.config.call_advice import advised
from raysim.report import best_build, build, comparison_build
from raysim.report.best_build import BestMethods
from raysim.report.build import Built
from raysim.report.comparison_build import Comparisons
from raysim.storage.remote.uri import check_is_path

if TYPE_CHECKING:
    from raysim.report.comparison import Test

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
        ExperimentError: a change does not fit.
    """
    found = _paths(folders)
    if out:
        check_is_path(out, "A report's folder (--out, out=)")
    return build.build(found, Path(out) if out else build.default_folder(found), targets, monotone, set, labels)


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
    """
    return comparison_build.build(_paths(folders), metrics, test, labels, last)


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
        ExperimentError: a change does not fit.
    """
    check_is_path(out, "The folder of pictures (--out, out=)")
    scores = (by,) if isinstance(by, str) else by
    return best_build.build(_paths(folders), scores, after or (None,), shown, Path(out), set)


def _paths(folders: Sequence[str | Path]) -> list[Path]:
    if not folders:
        raise TypeError(f"No folder is given: {FOLDERS}.")
    return [Path(folder) for folder in folders]
