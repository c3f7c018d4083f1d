"""Controls a driver from the script: starts it, watches it or pulls rounds from it, and stops it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.engine import wire
from raysim.engine.on_ray.cluster import forked, handles, own_ray, run_names, sendable
from raysim.engine.on_ray.cluster.cluster import connected, place
from raysim.engine.on_ray.cluster.connection import Connection
from raysim.engine.on_ray.cluster.data_on_nodes import hand_over
from raysim.engine.on_ray.cluster.remote_errors import answer, wait_for_all
from raysim.engine.on_ray.driver.driver import Driver, DriverHandle
from raysim.engine.on_ray.driver.watched_driver import WatchedDriver, WatchedDriverHandle
from raysim.engine.on_ray.executor.on_ray import start_pools
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.opening import Opening
from raysim.engine.rounds.run_status import ENDED, NO_WATCHER, Stage, Watcher
from raysim.engine.rounds.state_files import with_states_folder
from raysim.errors import ExperimentError, RaysimError
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import Seen
from raysim.models.model import Weights
from raysim.server.state import ServerState
from raysim.storage.remote import folder

if TYPE_CHECKING:
    from ray import ObjectRef

WATCHERS = 16
"""Calls that a driver answers at a time: each watcher has one waiting there."""

BESIDE = "beside"
"""The concurrency group of calls that a driver answers while it runs a round. All other calls share one thread: each
thread that writes rows would keep memory for it."""


def run(
    plan: Plan,
    opening: Opening,
    address: str | None,
    watcher: Watcher,
    after: Callable[[Path, Experiment], None],
    name: str,
) -> Weights:
    """Run to the last round in a driver actor and return its weights.

    On a cluster with an address, which outlives the script, the run continues if the script is killed.

    Args:
        plan: the run.
        opening: its folder; nothing is written to the disk until a pool has started.
        address: of the cluster; None starts one for this script.
        watcher: receives the run's progress, with every round that is recorded, also where the run is interrupted.
        after: called in the driver with folder and experiment when the run has ended, also after an error.
        name: the name by which others attach to the run, if there is an address; it gets a number if it is taken.

    Raises:
        KeyboardInterrupt: after Ctrl-C or `raysim stop`, once the driver has checkpointed the last finished round.
    """
    plan = sendable.checked(plan)
    opening = opening.absolute()
    seen: int | None = None

    def row(finished: Mapping[str, Any]) -> None:
        nonlocal seen
        seen = finished["round"] + 1
        watcher.row(finished)

    with connected(address, opening.path) as connection, with_states_folder(plan, opening) as plan:
        _check_shared(plan, opening.path)
        driver, _ = _start(plan, opening, after, None if address is None else name)
        try:
            stage = follow(driver, Watcher(watcher.started, row), opening.named)
            if stage == "stopped":
                raise KeyboardInterrupt
            weights: Weights = wire.unpack(answer(driver.weights.remote(), opening.named))
            return weights
        except BaseException:
            if connection.lives:
                with suppress(RaysimError):
                    stop(driver, opening.named, row, seen)
            raise
        finally:
            if address is None:
                _kill(driver, connection)


def launch(plan: Plan, opening: Opening, address: str, after: Callable[[Path, Experiment], None], name: str) -> str:
    """Start a run that needs no script, and return its name once a worker has started; see `run`."""
    plan = sendable.checked(plan)
    opening = opening.absolute()
    with connected(address, opening.path) as connection, with_states_folder(plan, opening) as plan:
        _check_shared(plan, opening.path)
        driver, name = _start(plan, opening, after, name)
        try:
            follow(driver, NO_WATCHER, opening.named, until="running")
        except BaseException:
            if connection.lives:
                with suppress(RaysimError):
                    stop(driver, opening.named)
            raise
        return name


def follow(
    driver: WatchedDriverHandle, watcher: Watcher, run_folder: str, seen: int | None = None, until: Stage = "done"
) -> Stage:
    """Watch a run until it has ended, or has reached a stage; returns the last stage.

    Args:
        driver: its handle.
        watcher: receives the run's progress.
        run_folder: its name for people.
        seen: number of rounds to skip; None skips those before this session.
        until: the stage at which to return.

    Raises:
        RaysimError: the run failed with this error.
    """
    stage: Stage = "starting"
    workers = 0
    connection = Connection()
    while stage not in ENDED and stage != until:
        connection.check(run_folder)
        news = answer(driver.watch.remote(stage, seen, workers), run_folder, connection=connection)
        with forked.ended():
            if news.workers:
                watcher.started(list(news.workers))
            for row in news.rows:
                watcher.row(row)
        workers += len(news.workers)
        stage, seen = news.stage, news.seen
    return stage


def find(name: str) -> WatchedDriverHandle:
    """Return the driver of the run of that name; see `run_names.find`."""
    return cast(WatchedDriverHandle, run_names.find(name))


def stop(
    driver: WatchedDriverHandle,
    run_folder: str,
    row: Callable[[Mapping[str, Any]], None] = NO_WATCHER.row,
    seen: int | None = None,
) -> None:
    """Stop a run, and wait until its last finished round is checkpointed. A run that has ended is not changed.

    Args:
        driver: its handle.
        run_folder: its name for people.
        row: called with every round that the driver has finished meanwhile.
        seen: number of rounds to skip; None skips those before this session.

    Raises:
        RaysimError: the run failed with this error, meanwhile or before.
    """
    answer(driver.stop.remote(), run_folder)
    follow(driver, Watcher(NO_WATCHER.started, row), run_folder, seen)


def rounds(
    plan: Plan, opening: Opening | None, address: str | None, start: tuple[ServerState, Seen] | None = None
) -> Generator[Finished]:
    """Pull round by round; the driver works on the next round while the reader uses this one.

    `start`: where to continue from, and what `[stop]` has seen before, if there is no folder that says so.
    """
    plan = sendable.checked(plan)
    opening = None if opening is None else opening.absolute()
    path, run_folder = (None, None) if opening is None else (opening.path, opening.named)
    with connected(address, path) as connection, with_states_folder(plan, opening) as plan:
        _check_shared(plan, path)
        placement = place(plan.experiment.engine)
        pools = start_pools(plan, placement)
        driver: DriverHandle = _actor(Driver, concurrency_groups={BESIDE: 1}).remote(
            pools.sent, placement, pools, opening, start=start
        )
        ahead: deque[ObjectRef[object]] = deque()
        _wait_for_process(driver, placement.wait_s, run_folder)
        try:
            answer(driver.start.remote(), run_folder)
            answer(driver.open.remote(overlap=False), run_folder)
            ahead.append(driver.advance.remote())
            while True:
                # The call for the next round waits behind this round's call, so the driver begins it at once, while
                # the reader uses this round.
                connection.check(run_folder)
                ahead.append(driver.advance.remote())
                if (packed := answer(ahead[0], run_folder, connection=connection)) is None:
                    break
                ahead.popleft()
                finished: Finished = wire.unpack(packed)
                yield finished
        finally:
            try:
                if ahead and own_ray.died() is None and connection.lives:
                    driver.stop.options(concurrency_group=BESIDE).remote()
                    wait_for_all(list(ahead))
                    answer(driver.close.remote(), run_folder)
            finally:
                _kill(driver, connection)


def _kill(driver: DriverHandle | WatchedDriverHandle, connection: Connection) -> None:
    # A Ray that died takes the driver with it, and its control service would not answer. So does a connection that the
    # script has ended.
    if own_ray.died() is None and connection.lives:
        handles.kill(driver)


def _check_shared(plan: Plan, path: Path | None) -> None:
    """Refuse several machines if clients keep state in files that only this machine can read."""
    machines = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
    if plan.states is not None and len(machines) > 1 and (path is None or folder.named(path) != str(path)):
        given = "" if path is None else f", but got {folder.named(path)}, whose copy is on one machine"
        raise ExperimentError(
            f"Clients keep state between rounds in this experiment, and the cluster has several machines: the run's "
            f"folder (--path, path=) must be a path on a disk that all of them share{given}."
        )


def _start(
    plan: Plan, opening: Opening, after: Callable[[Path, Experiment], None], name: str | None
) -> tuple[WatchedDriverHandle, str]:
    placement = place(plan.experiment.engine)
    if name is None:
        # The pools import their modules while the driver does. They end with this script, like the run.
        pools = start_pools(plan, placement)
        own: WatchedDriverHandle = _actor(WatchedDriver, max_concurrency=WATCHERS).remote(
            pools.sent, placement, pools, opening, after, None
        )
        _wait_for_process(own, placement.wait_s, opening.named)
        return own, ""

    sent = hand_over(plan, placement.wait_s)

    def start(name: str) -> WatchedDriverHandle:
        detached = {"name": name, "namespace": run_names.NAMESPACE, "lifetime": "detached"}
        driver: WatchedDriverHandle = _actor(WatchedDriver, max_concurrency=WATCHERS, **detached).remote(
            sent, placement, None, opening, after, name
        )
        return driver

    named, name = run_names.start(name, start)
    _wait_for_process(named, placement.wait_s, opening.named)
    return named, name


def _wait_for_process(driver: Any, wait_s: float, run_folder: str | None) -> None:
    """Wait until the driver's process has started; otherwise end the driver.

    Ray starts a process that dies before it registers again and again, and reports nothing.
    """
    connection = Connection()
    try:
        answer(driver.__ray_ready__.remote(), run_folder, wait_s, connection)
    except BaseException:
        _kill(driver, connection)
        raise


def _actor(kind: type, **options: Any) -> Any:
    # Zero CPUs: a driver that took one would starve a pool. No restarts: a restarted driver would begin at round 0.
    # This node: paths of the run folder and of prepared data are those of the script.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    fixed: Any = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": here}
    return ray.remote(**fixed, **options)(kind)
