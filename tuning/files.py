"""Folders that a killed process left half made."""

from __future__ import annotations

import shutil
from pathlib import Path


def clear_half_made(run: Path) -> None:
    """Remove a run's folder that was never finished being made: there is nothing in it to go on with."""
    if run.is_dir() and not (run / "experiment.json").exists():
        shutil.rmtree(run)
