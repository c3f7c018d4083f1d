"""The experiment that a command is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysim.experiment import Experiment


def load(file: Path, changes: list[str] | None, removals: list[str] | None) -> Experiment:
    """From a file, with what --set and --unset change."""
    from raysim import experiment

    return experiment.load(file, changes or (), removals or ())
