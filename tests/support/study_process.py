"""A study in a process of its own, for tests that kill it: `study_process.py FOLDER [STORAGE]`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import raysim
import tuning
from tuning import pictures

TRIALS = 5


def experiment() -> raysim.Experiment:
    """Five trials of two seeds, two at a time."""
    rates = [0.003, 0.01, 0.03, 0.1, 0.3]
    sections: dict[str, Any] = {
        "name": "killed",
        # A study goes on for longer than one of two processes may start late.
        "rounds": 60,
        "data": {"name": "digits", "clients": 10},
        "model": {"name": "linear"},
        "cohort": {"size": 4},
        "evaluation": {"every": 2},
        "checkpoint": {"every": 2},
        "engine": {"workers": 0},
        "tuning": {"space": {"client.optimizer.lr": {"grid": rates}}, "seeds": 2, "concurrent": 2, "final": 1},
    }
    return raysim.Experiment.model_validate(sections)


def main() -> None:
    """Tune, and say so for every trial that ends."""
    folder, *storage = sys.argv[1:]
    # What is drawn at the end takes longer than the study.
    pictures.draw_all = lambda *given: None
    settings: dict[str, Any] = {"storage": storage[0]} if storage else {}
    try:
        tuning.tune(experiment(), path=Path(folder), progress=True, **settings)
    except raysim.RaysimError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
