"""Defines the status of a run on a cluster, and the functions that receive its progress."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from raysim.experiment.experiment import Experiment

Stage = Literal["starting", "running", "done", "stopped", "failed"]

ENDED: frozenset[Stage] = frozenset({"done", "stopped", "failed"})


@dataclass(frozen=True)
class UnderWay:
    """The status of a run on a cluster, at one moment.

    name: by which a user attaches to it. path: its folder on `host`. folder: the folder's name for people, which is its
    URI if it has one. since_s: its start, by the Unix clock. rounds: finished, including those before a resume. behind:
    a message of its host, if the run has ended and its URI lacks files.
    """

    name: str
    experiment: Experiment = field(repr=False)
    host: str
    path: Path
    folder: str
    since_s: float
    stage: Stage
    rounds: int
    behind: str | None = None

    @property
    def is_here(self) -> bool:
        """Whether its folder is on this machine."""
        return self.host == socket.gethostname()


def run_name(experiment: Experiment, path: Path) -> str:
    """Return the name by which a user attaches to a run: the experiment's, plus the folder's if that differs.

    A trial is "three/trial-0", and a run in its default folder is "quickstart".
    """
    return experiment.name if path.name == experiment.name else f"{experiment.name}/{path.name}"


@dataclass(frozen=True)
class Watcher:
    """Functions that receive a run's progress.

    started: called with the places of workers that have started. row: called with every finished round.
    """

    started: Callable[[list[str]], None]
    row: Callable[[Mapping[str, Any]], None]


NO_WATCHER = Watcher(lambda workers: None, lambda row: None)
