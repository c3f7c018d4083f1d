"""Defines WatchedDriver, an actor that carries out a run by itself, and reports its status to watchers.

It needs no watcher. A detached one outlives the script that started it. It ends its pools with the run, and its process
a little later, so watchers can read how the run ended.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import ray

from raysim.engine import wire
from raysim.engine.on_ray.cluster.cluster import Placement
from raysim.engine.on_ray.cluster.data_on_nodes import SentPlan
from raysim.engine.on_ray.cluster.handles import RemoteMethod
from raysim.engine.on_ray.cluster.run_names import NamedDriver
from raysim.engine.on_ray.driver.driver import Driver
from raysim.engine.on_ray.executor.on_ray import StartedPools
from raysim.engine.rounds.opening import Opening
from raysim.engine.rounds.run_status import ENDED, Stage, UnderWay
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.run_folder import client_table, round_table
from raysim.storage.remote.folder import changing, put_meanwhile, put_rest, uri_in_messages

log = logging.getLogger("raysim")

POLL_S = 0.5
"""How long a watcher's call waits for news."""

LINGER_S = 5.0
"""How long a detached driver still answers after its run has ended."""


@dataclass(frozen=True)
class News:
    """News for a watcher.

    workers: the places of those that have started since the last call. rows: of the rounds finished since then. seen:
    the argument of the next call; None until the run has found the state to continue from.
    """

    stage: Stage
    workers: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    seen: int | None


@dataclass(frozen=True)
class Remains:
    """The results of an ended run.

    params: by name, packed to travel. rounds, clients: the tables on record. behind: see `UnderWay`.
    """

    params: object
    rounds: pa.Table
    clients: pa.Table
    behind: str | None


class WatchedDriverHandle(NamedDriver, Protocol):
    """The actor of a `WatchedDriver`."""

    @property
    def watch(self) -> RemoteMethod[[Stage, int | None, int], News]:
        """See `WatchedDriver`."""
        ...

    @property
    def weights(self) -> RemoteMethod[[], object]:
        """See `WatchedDriver`."""
        ...

    @property
    def remains(self) -> RemoteMethod[[], Remains]:
        """See `WatchedDriver`."""
        ...

    @property
    def stop(self) -> RemoteMethod[[], None]:
        """See `WatchedDriver`."""
        ...


class WatchedDriver:
    """Begins its run at once; `watch`, `stop` and the other methods answer on other threads.

    Args:
        sent: the run.
        placement: where its pools go.
        started_pools: its pools, where the script has started them; None starts them here.
        opening: its folder, on this machine's paths.
        after: called with folder and experiment when the run has ended, also after an error; its own error is only
            logged.
        name: the name by which a user attaches to the run. With a name the driver is detached and ends itself; with
            None its owner ends it.
    """

    def __init__(
        self,
        sent: SentPlan,
        placement: Placement,
        started_pools: StartedPools | None,
        opening: Opening,
        after: Callable[[Path, Experiment], None],
        name: str | None,
    ) -> None:
        self._driver = Driver(sent, placement, started_pools, opening, name)
        # Its data are the driver's.
        self._plan, self._opening, self._after, self._name = sent.plan, opening, after, name
        self._since_s = time.time()
        self._news = threading.Condition()
        self._stage: Stage = "starting"
        self._workers: Sequence[str] = ()
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._first = 0
        """The first round of this session."""
        self._error: BaseException | None = None
        self._behind: str | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def about(self) -> UnderWay:
        """Return the run's status."""
        experiment, path, host = self._plan.experiment, self._opening.path, socket.gethostname()
        since_s, stage, rounds = self._since_s, self._stage, len(self._rows)
        return UnderWay(
            self._name or "", experiment, host, path, self._opening.named, since_s, stage, rounds, self._behind
        )

    def watch(self, stage: Stage, seen: int | None, workers: int) -> News:
        """Return the news for a watcher, as soon as there are some, or after POLL_S.

        Args:
            stage: the last stage that the watcher received.
            seen: number of rounds that it received, from the run's first; None stands for those before this session.
            workers: number of workers whose places it received.

        Raises:
            RaysimError: the run failed with this error, and the watcher has received all rounds.
        """
        with self._news:
            self._news.wait_for(lambda: self._stage != stage or self._since(seen) or self._stage in ENDED, POLL_S)
            rows = self._since(seen)
            if self._error is not None and not rows:
                raise self._error
            if seen is None and self._stage != "starting":
                seen = self._first
            # A failure comes last: a watcher that receives rows has to call again.
            stage = "running" if self._error is not None else self._stage
            return News(stage, tuple(self._workers[workers:]), rows, None if seen is None else seen + len(rows))

    def weights(self) -> object:
        """Return the weights after the last finished round, packed."""
        return wire.pack(self._driver.weights)

    def remains(self) -> Remains:
        """Return the results of the run after its end."""
        path, params = self._opening.path, self._driver.weights.to_named(self._plan.stated)
        with uri_in_messages(path):
            rounds, clients = round_table.read_rounds(path), client_table.read_clients(path)
        return Remains(wire.pack(params), rounds, clients, self._behind)

    def stop(self) -> None:
        """Request the run to end at once, with a checkpoint of the last finished round."""
        with self._news:
            if self._stage == "starting":
                # Nothing was written. The start may wait for resources that others hold: do not wait for it.
                self._stage = "stopped"
                self._news.notify_all()
                threading.Timer(2 * POLL_S, _end_this_process).start()
            elif self._stage == "running":
                self._driver.stop()

    def _since(self, seen: int | None) -> tuple[Mapping[str, Any], ...]:
        return tuple(self._rows[self._first if seen is None else seen :])

    def _work(self) -> None:
        stage: Stage = "failed"
        at_work = ExitStack()
        try:
            # To the last upload: the script, which says so too, may end before.
            at_work.enter_context(changing(self._opening.path))
            with uri_in_messages(self._opening.path):
                self._begin()
                while self._driver.next() is not None:
                    with self._news:
                        self._news.notify_all()
            is_over = stopping.is_over(self._plan.experiment, len(self._rows), self._driver.stopped)
            stage = "done" if is_over else "stopped"
        except BaseException as error:
            self._error = error
        if self._stage == "running":
            self._draw()
        try:
            with uri_in_messages(self._opening.path):
                self._driver.close()
        except BaseException as error:
            stage, self._error = "failed", self._error or error
        if self._name is not None:
            # The script may have ended.
            self._behind = put_rest(self._opening.path)
            if self._behind is not None:
                log.warning("%s", self._behind)
        at_work.close()
        with self._news:
            self._stage = stage
            self._news.notify_all()
        if self._name is not None:
            time.sleep(LINGER_S)
            _end_this_process()

    def _begin(self) -> None:
        self._driver.start()
        with self._news:
            stopped = self._stage == "stopped"
            if not stopped:
                # `stop` waits for this lock, and then finds a run that it can stop.
                self._driver.open(overlap=True)
                assert self._driver.folder is not None
                self._workers, self._rows = self._driver.workers, self._driver.folder.rows
                self._first, self._stage = len(self._rows), "running"
                self._news.notify_all()
        if stopped:
            # This process is about to end.
            threading.Event().wait()

    def _draw(self) -> None:
        try:
            # The picture must also reach a remote folder; the script may have ended.
            with put_meanwhile(self._opening.path):
                self._after(self._opening.path, self._plan.experiment)
        except Exception as error:
            log.warning("%s: %s", self._opening.path, error)


def _end_this_process() -> None:
    """Kill this actor, which frees its name."""
    ray.kill(ray.get_runtime_context().current_actor)
