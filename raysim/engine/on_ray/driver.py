"""The Driver: a Ray actor that runs the loop. The script that started it only watches, or pulls round by round."""

from __future__ import annotations

import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import torch

from raysim.engine import loop, wire
from raysim.engine.job import Stopped
from raysim.engine.on_ray.cluster import Placement
from raysim.engine.on_ray.dashboard import Dashboard
from raysim.engine.on_ray.executor import OnRay
from raysim.engine.plan import Plan
from raysim.records import RunFolder

POLL_S = 0.5
"""How long a watcher's question waits for news."""


class Driver:
    """Owns the pools. `run` or `advance` moves the loop; `watch` and `stop` answer meanwhile on threads of their own.

    Args:
        plan: the run.
        placement: where its pools go.
        path: the run's folder, which exists; the loop goes on from its newest checkpoint. None writes nothing.
        profile: write the folder's timeline.
    """

    def __init__(self, plan: Plan, placement: Placement, path: Path | None, profile: bool) -> None:
        self._plan, self._placement, self._path, self._profile = plan, placement, path, profile
        self._rows: list[dict[str, Any]] = []
        self._news = threading.Condition()
        self._rounds: Generator[loop.Finished] | None = None
        self._dashboard = Dashboard(plan.experiment.name)

    def start(self) -> list[str]:
        """Start the pools; returns what each one says of itself."""
        # Not in the constructor: an error there reaches the script as a dead actor, without its type.
        self._executor = OnRay(self._plan, self._placement)
        return self._executor.started

    def run(self) -> Any:
        """Run to the last round, or until `stop`; returns the weights of the last finished round, packed."""
        self._open(overlap=True)
        while (finished := self._next()) is not None:
            with self._news:
                self._rows.append(finished.row)
                self._news.notify_all()
        return wire.pack(self._weights)

    def advance(self) -> Any:
        """Run one round and return it packed; None after the last."""
        if self._rounds is None:
            # The reader asks for one round ahead itself: two ahead would be one too many.
            self._open(overlap=False)
        finished = self._next()
        return None if finished is None else wire.pack(finished)

    def watch(self, seen: int) -> list[dict[str, Any]]:
        """The rows after the first `seen`; waits a moment where there are none."""
        with self._news:
            self._news.wait_for(lambda: len(self._rows) > seen, timeout=POLL_S)
            return self._rows[seen:]

    def finish(self) -> None:
        """Close the loop, which checkpoints the last recorded round, and end the pools."""
        if self._rounds is not None:
            self._rounds.close()
        self._executor.close()

    def stop(self) -> None:
        """Ask the loop to end at once; what is left is a checkpoint of the last finished round."""
        self._executor.stop.set()

    def _open(self, overlap: bool) -> None:
        """Find where to go on from."""
        plan, path = self._plan, self._path
        folder, state = RunFolder.reopen(path, plan.experiment, self._profile) if path else (None, None)
        state = state or plan.initial_state()
        self._weights = state.weights
        self._rounds = loop.rounds(plan, self._executor, state, folder, self._executor.stop.is_set, overlap)

    def _next(self) -> loop.Finished | None:
        assert self._rounds is not None
        # Reductions of the server step depend on the thread count too, and torch keeps it per calling thread.
        torch.set_num_threads(self._plan.experiment.engine.threads)
        try:
            finished = next(self._rounds, None)
        except Stopped:
            finished = None
        except BaseException:
            self._executor.close()
            raise
        if finished is None:
            self._executor.close()
        else:
            self._weights = finished.weights
            self._dashboard.row(finished.row)
        return finished
