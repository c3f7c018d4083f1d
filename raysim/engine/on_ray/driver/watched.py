"""The WatchedDriver: an actor that runs from its start to its end by itself, and tells whoever asks how it stands.

Nobody has to watch. Detached, it outlives the script that started it, and ends itself: its pools with the run, its own
process, which says what became of the run, a little later.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import ray

from raysim.engine import wire
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.driver.driver import Driver
from raysim.engine.on_ray.executor.shell import StartedPools
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.opening import Opening
from raysim.engine.rounds.under_way import ENDED, Stage, UnderWay
from raysim.experiment.experiment import Experiment
from raysim.run_folder import records
from raysim.storage.remote.folder import put_meanwhile, put_rest

log = logging.getLogger("raysim")

POLL_S = 0.5
"""How long a watcher's question waits for news."""

LINGER_S = 5.0
"""How long a detached driver can still be asked about a run that has ended."""


@dataclass(frozen=True)
class News:
    """What a watcher has not heard yet.

    workers: where they run; empty until they have started. rows: of the rounds that were finished since. seen: what to
    ask with next; None before the run knows where it goes on.
    """

    stage: Stage
    workers: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    seen: int | None


@dataclass(frozen=True)
class Remains:
    """What an ended run leaves.

    params: by name, packed to travel. rounds, clients: the tables on record. behind: see `UnderWay`.
    """

    params: Any
    rounds: pa.Table
    clients: pa.Table
    behind: str | None


class WatchedDriver:
    """Begins at once, and needs nobody: `watch`, `stop` and the others answer on threads of their own.

    Args:
        plan: the run.
        placement: where its pools go.
        started_pools: its pools, where the script has started them; None starts them here.
        opening: its folder, on this machine's paths.
        after: called with folder and experiment when the run has ended, however it did; an error in it is a warning.
        name: by which the run is attached to. With a name it is detached, and ends itself; None leaves that to its
            owner.
    """

    def __init__(
        self,
        plan: Plan,
        placement: Placement,
        started_pools: StartedPools | None,
        opening: Opening,
        after: Callable[[Path, Experiment], None],
        name: str | None,
    ) -> None:
        self._driver = Driver(plan, placement, started_pools, opening, name)
        self._plan, self._opening, self._after, self._name = plan, opening, after, name
        self._since_s = time.time()
        self._news = threading.Condition()
        self._stage: Stage = "starting"
        self._workers: tuple[str, ...] = ()
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._first = 0
        """The first round of this session."""
        self._error: BaseException | None = None
        self._behind: str | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def about(self) -> UnderWay:
        """The run, and how it stands."""
        experiment, path, host = self._plan.experiment, self._opening.path, socket.gethostname()
        since_s, stage, rounds = self._since_s, self._stage, len(self._rows)
        return UnderWay(
            self._name or "", experiment, host, path, self._opening.named, since_s, stage, rounds, self._behind
        )

    def watch(self, stage: Stage, seen: int | None) -> News:
        """What is new to a watcher, as soon as there is something, or after a moment.

        Args:
            stage: the last one that it was told.
            seen: the rounds that it was told, counted from the run's first; None wants those of this session.

        Raises:
            RaysimError: what the run failed with, once all its rounds were told.
        """
        with self._news:
            self._news.wait_for(lambda: self._stage != stage or self._since(seen) or self._stage in ENDED, POLL_S)
            rows = self._since(seen)
            if self._error is not None and not rows:
                raise self._error
            if seen is None and self._stage != "starting":
                seen = self._first
            # A failure is told last: whoever is told rows has to ask again.
            stage = "running" if self._error is not None else self._stage
            return News(stage, self._workers, rows, None if seen is None else seen + len(rows))

    def weights(self) -> Any:
        """Of the last finished round, packed."""
        return wire.pack(self._driver.weights)

    def remains(self) -> Remains:
        """What the run leaves, once it has ended."""
        path, params = self._opening.path, self._driver.weights.to_named(self._plan.model)
        return Remains(wire.pack(params), records.read_rounds(path), records.read_clients(path), self._behind)

    def stop(self) -> None:
        """Ask the run to end at once, with a checkpoint of the last finished round."""
        with self._news:
            if self._stage == "starting":
                # Nothing was written, and workers that others hold may be waited for: there is nothing to wait for.
                self._stage = "stopped"
                self._news.notify_all()
                threading.Timer(2 * POLL_S, _end_this_process).start()
            elif self._stage == "running":
                self._driver.stop()

    def _since(self, seen: int | None) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._rows[self._first if seen is None else seen :])

    def _work(self) -> None:
        stage: Stage = "failed"
        try:
            self._begin()
            while self._driver.next() is not None:
                with self._news:
                    self._news.notify_all()
            stage = "done" if len(self._rows) >= self._plan.experiment.rounds else "stopped"
        except BaseException as error:
            self._error = error
        if self._stage == "running":
            self._draw()
        try:
            self._driver.close()
        except BaseException as error:
            stage, self._error = "failed", self._error or error
        if self._name is not None:
            # Nobody else may be left to do so.
            self._behind = put_rest(self._opening.path)
            if self._behind is not None:
                log.warning("%s", self._behind)
        with self._news:
            self._stage = stage
            self._news.notify_all()
        if self._name is not None:
            time.sleep(LINGER_S)
            _end_this_process()

    def _begin(self) -> None:
        workers = tuple(self._driver.start())
        with self._news:
            stopped = self._stage == "stopped"
            if not stopped:
                # A stop that comes now waits, and finds a run that can be stopped.
                self._driver.open(overlap=True)
                assert self._driver.folder is not None
                self._workers, self._rows = workers, self._driver.folder.rows
                self._first, self._stage = len(self._rows), "running"
                self._news.notify_all()
        if stopped:
            # This process is about to end.
            threading.Event().wait()

    def _draw(self) -> None:
        try:
            # A folder elsewhere gets it too, though the script may be gone.
            with put_meanwhile(self._opening.path):
                self._after(self._opening.path, self._plan.experiment)
        except Exception as error:
            log.warning("%s: %s", self._opening.path, error)


def _end_this_process() -> None:
    """End the actor, as somebody else would: its name is free again."""
    ray.kill(ray.get_runtime_context().current_actor)
