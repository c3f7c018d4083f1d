"""Checks that the folder of a trial's run holds that run, before its figures are used: folders can be exchanged."""

from __future__ import annotations

from pathlib import Path

from raysim import Experiment
from raysim.experiment import differences
from raysim.run_folder.experiment_record import stored_data_fingerprint, stored_experiment, stored_fingerprint
from tuning.errors import StudyError


def check(run: Path, fingerprint: str) -> None:
    """Check that a folder's run is the one whose fingerprint the trial has recorded.

    Raises:
        StudyError: it is another run.
        RunFolderError: the folder has no record of a run, or a damaged one.
    """
    if stored_fingerprint(run) != fingerprint:
        raise _other(run)


def check_experiment(run: Path, expected: Experiment, data: str) -> None:
    """Check that a folder's run is of an experiment, on data with a fingerprint; errors as `check`."""
    if differences.of_run(stored_experiment(run), expected) or stored_data_fingerprint(run) not in (None, data):
        raise _other(run)


def _other(run: Path) -> StudyError:
    return StudyError(
        f"{run} holds another run than that of its trial: folders were exchanged. Put back the ones that were there."
    )
