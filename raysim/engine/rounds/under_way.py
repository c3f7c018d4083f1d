"""What a run says of itself while it goes on, and who is told."""

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
    """A run on a cluster, as it stood when it was asked.

    name: by which it is attached to. path: its folder, as `host` names it. folder: the same as people name it, which is
    its URI where it has one. since_s: its start, by the Unix clock. rounds: finished, those before a resume included.
    behind: where the run has ended and its URI lacks some of it, what and why, as its host says it.
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
    """By which name a run can be attached to: the experiment's, with the folder's behind it where that is another.

    So a trial is "three/trial-0", and a run in its default folder just "quickstart".
    """
    return experiment.name if path.name == experiment.name else f"{experiment.name}/{path.name}"


@dataclass(frozen=True)
class Watcher:
    """What is told of a run.

    started: once, where its workers run. row: every finished round.
    """

    started: Callable[[list[str]], None]
    row: Callable[[Mapping[str, Any]], None]


NO_WATCHER = Watcher(lambda workers: None, lambda row: None)
