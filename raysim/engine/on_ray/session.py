"""What the script does on its side: start a driver, watch it or pull from it, and stop it when asked to."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import Any

import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.elsewhere.folder import named
from raysim.engine import wire
from raysim.engine.client_memory import with_states_folder
from raysim.engine.loop import Finished
from raysim.engine.on_ray.cluster import connected, place
from raysim.engine.on_ray.driver import Driver
from raysim.engine.plan import Plan
from raysim.errors import ExperimentError, RaysimError, WorkerLostError
from raysim.models.model import Weights


def run(
    plan: Plan,
    path: Path,
    address: str | None,
    on_start: Callable[[list[str]], None],
    on_row: Callable[[Mapping[str, Any]], None],
    make_folder: Callable[[], None],
    profile: bool = False,
) -> Weights:
    """Run to the last round in a driver actor and return its weights; `on_row` sees every finished round.

    `make_folder` is called once all pools have started: until then, nothing on the disk is touched.

    Raises:
        KeyboardInterrupt: after Ctrl-C, once the driver has checkpointed the last finished round.
    """
    with connected(address), with_states_folder(plan, path) as plan:
        _check_shared(plan, path)
        driver = _start(plan, path, profile)
        outcome = None
        try:
            on_start(_get(driver.start.remote()))
            make_folder()
            outcome = driver.run.remote()
            seen = 0
            done: list[Any] = []
            while not done:
                done, _ = ray.wait([outcome], timeout=0)
                rows = _get(driver.watch.remote(seen))
                seen += len(rows)
                for row in rows:
                    on_row(row)
            weights: Weights = wire.unpack(_get(outcome))
            return weights
        except KeyboardInterrupt:
            if outcome is not None:
                driver.stop.remote()
                ray.wait([outcome])
            raise
        finally:
            ray.kill(driver)


def rounds(plan: Plan, path: Path | None, address: str | None, make_folder: Callable[[], None]) -> Generator[Finished]:
    """Pull round by round; the driver works on the next one while the reader looks at this one."""
    with connected(address), with_states_folder(plan, path) as plan:
        _check_shared(plan, path)
        driver = _start(plan, path)
        ahead = None
        try:
            _get(driver.start.remote())
            make_folder()
            ahead = driver.advance.remote()
            while (packed := _get(ahead)) is not None:
                ahead = driver.advance.remote()
                finished: Finished = wire.unpack(packed)
                yield finished
        finally:
            try:
                if ahead is not None:
                    driver.stop.remote()
                    ray.wait([ahead])
                    _get(driver.finish.remote())
            finally:
                ray.kill(driver)


def _check_shared(plan: Plan, path: Path | None) -> None:
    """Refuse several machines where clients remember in files that only this one sees."""
    if plan.states is not None and len(ray.nodes()) > 1 and (path is None or named(path) != str(path)):
        given = "" if path is None else f", but got {named(path)}, whose copy is on one machine"
        raise ExperimentError(
            f"Clients remember under this correction, and here they are on several machines: the run's folder "
            f"(--path, path=) must be a path on a disk that all of them share{given}."
        )


def _start(plan: Plan, path: Path | None, profile: bool = False) -> Any:
    placement = place(plan.experiment.engine)
    # Zero CPUs: a driver that took one would starve a pool. No restarts: a restarted driver would begin at round 0.
    # This node: paths of the run folder and of prepared data mean what they mean to the script.
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    options = ray.remote(Driver).options(
        num_cpus=0, max_restarts=0, max_task_retries=0, max_concurrency=4, scheduling_strategy=here
    )
    return options.remote(plan, placement, None if path is None else path.absolute(), profile)


def _get(reference: Any) -> Any:
    """ray.get with raysim's own errors as they were raised."""
    try:
        return ray.get(reference)
    except exceptions.RayTaskError as error:
        if isinstance(error.cause, RaysimError):
            raise error.cause from None
        raise
    except exceptions.RayActorError as error:
        raise WorkerLostError(
            f"the driver's process died ({error}). What it had checkpointed can be resumed: raysim resume DIR"
        ) from None
