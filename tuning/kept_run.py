"""Checks that the folder of a trial's run holds that run, before its figures are used: folders can be exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.run_folder.experiment_record import stored_experiment
from tuning.errors import StudyError


def check(run: Path, values: Mapping[str, Any], seed: int) -> None:
    """Check that a folder's run has the trial's values and this seed.

    Args:
        values: by dotted key.

    Raises:
        StudyError: it is another run.
        RunFolderError: the folder has no record of a run, or a damaged one.
    """
    kept = stored_experiment(run)
    if kept.seed != seed or kept.changed(values).determining() != kept.determining():
        raise StudyError(
            f"{run} holds another run than that of its trial: folders were exchanged. Put back the ones that were "
            f"there."
        )
