"""Checks that the folder of a trial's run holds that run, before its figures are used: folders can be exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim import Experiment
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
    """Check that a folder's run is of an experiment, on data with a fingerprint; errors as `check`.

    A script's own parts, which stand in the run's record in the place of the experiment's, are not compared.
    """
    kept = stored_experiment(run)
    alike = kept.seed == expected.seed and _are_alike(kept.determining(), expected.determining())
    if not alike or stored_data_fingerprint(run) not in (None, data):
        raise _other(run)


def _are_alike(kept: Any, expected: Any) -> bool:
    if _is_own(kept):
        return True
    if isinstance(kept, Mapping) and isinstance(expected, Mapping):
        return all(_are_alike(kept.get(key), expected.get(key)) for key in kept.keys() | expected.keys())
    if isinstance(kept, list) and isinstance(expected, list):
        return [each for each in kept if not _is_own(each)] == expected
    return bool(kept == expected)


def _is_own(kept: Any) -> bool:
    return isinstance(kept, Mapping) and kept.get("name") == "own"


def _other(run: Path) -> StudyError:
    return StudyError(
        f"{run} holds another run than that of its trial: folders were exchanged. Put back the ones that were there."
    )
