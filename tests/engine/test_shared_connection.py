"""Runs of one process share the Ray that the first of them starts; the last one ends it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from raysim.engine.on_ray.cluster.cluster import connected
from raysim.errors import ResourceError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What stands for Ray: one entry while it runs."""
    running: list[str] = []

    @contextmanager
    def watched(run_folder: object, end: Callable[[], None], is_left: object, server: object) -> Iterator[None]:
        try:
            yield
        finally:
            end()

    context = partial(Mock, gcs_address="here", get_node_id=lambda: "node", get_job_id=lambda: "1")
    monkeypatch.setattr("ray.is_initialized", lambda: bool(running))
    monkeypatch.setattr("ray.get_runtime_context", context)
    monkeypatch.setattr("ray.shutdown", running.clear)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.own_ray.watched", watched)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.warm_workers.serving", nullcontext)

    def start(*_: Any, **__: Any) -> None:
        running.append("ray")

    monkeypatch.setattr("raysim.engine.on_ray.cluster.joining.start", start)
    return running


@pytest.mark.parametrize("first", [0, 1])
def test_the_last_run_of_a_process_ends_ray(first: int, started: list[str]) -> None:
    runs = [connected(None), connected(None)]
    for run in runs:
        run.__enter__()
    assert started == ["ray"]
    runs.pop(first).__exit__(None, None, None)
    assert started == ["ray"]
    runs.pop().__exit__(None, None, None)
    assert started == []


def test_a_connection_of_the_script_stays(started: list[str]) -> None:
    started.append("ray of the script")
    with connected(None):
        pass
    assert started == ["ray of the script"]


def test_a_ray_that_does_not_start_leaves_nothing(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    with monkeypatch.context() as patch:
        patch.setattr("raysim.engine.on_ray.cluster.joining.start", fails)
        with pytest.raises(ResourceError, match="no room"):
            connected(None).__enter__()
    with connected(None):
        assert started == ["ray"]
    assert started == []


def test_a_script_has_left_ray_once_it_is_connected_no_more(
    started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Callable[[], bool]] = []
    said: list[bool] = []

    @contextmanager
    def watched(
        run_folder: object, end: Callable[[], None], is_left: Callable[[], bool], server: object
    ) -> Iterator[Any]:
        asked.append(is_left)
        yield lambda processes: None
        end()

    def start(*_: object, **__: object) -> None:
        said.append(asked[0]())
        started.append("ray")

    monkeypatch.setattr("raysim.engine.on_ray.cluster.own_ray.watched", watched)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.joining.start", start)
    with connected(None):
        said.append(asked[0]())
        started.clear()
        said.append(asked[0]())
    # A Ray that dies while it starts is not left.
    assert said == [False, False, True]


@pytest.mark.parametrize(("address", "begins"), [(None, "start"), ("10.0.0.1:6379", "init")])
def test_a_connection_that_ctrl_c_interrupts_once_it_is_there_is_ended(
    address: str | None, begins: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come before the start returns; a notebook would go on with a Ray that nobody ends."""

    def interrupted(*_: Any, **__: Any) -> None:
        started.append("ray")
        raise KeyboardInterrupt

    monkeypatch.setattr(f"raysim.engine.on_ray.cluster.joining.{begins}", interrupted)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.answering.checked", str)
    with pytest.raises(KeyboardInterrupt):
        connected(address).__enter__()
    assert started == []


def test_ray_outlives_the_thread_whose_run_began_first(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux ends Ray's processes with the thread that has started them."""
    starting: list[threading.Thread] = []
    monkeypatch.setattr(
        "raysim.engine.on_ray.cluster.joining.start", lambda *_, **__: starting.append(threading.current_thread())
    )
    run = connected(None)
    first = threading.Thread(target=run.__enter__)
    first.start()
    first.join()
    assert [thread.is_alive() for thread in starting] == [True]
    run.__exit__(None, None, None)
    starting[0].join(timeout=240)
    assert not starting[0].is_alive()


def test_a_thread_s_run_says_why_ray_does_not_start(started: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    def fails(*_: Any, **__: Any) -> None:
        raise OSError("no room")

    def run() -> None:
        with pytest.raises(ResourceError, match="no room"):
            connected(None).__enter__()
        said.append("no room")

    monkeypatch.setattr("raysim.engine.on_ray.cluster.joining.start", fails)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(timeout=240)
    assert said == ["no room"]


@pytest.mark.parametrize("variable", ["RAY_TMPDIR", "TMPDIR", "HOME"])
def test_a_ray_that_does_not_start_names_the_variable_of_its_folder(
    variable: str, started: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", "/nowhere/ray")

    monkeypatch.setenv(variable, "/nowhere")
    monkeypatch.setattr("raysim.engine.on_ray.cluster.joining.start", fails)
    with pytest.raises(ResourceError, match=f"a folder of the environment variable {variable}: set it to another one"):
        connected(None).__enter__()


ENDS_ITS_CONNECTION = """
import ray, raysim

experiment = raysim.Experiment.model_validate({
    "rounds": 3, "data": {"name": "digits", "clients": 10}, "model": {"name": "linear"}, "cohort": {"size": 4},
    "engine": {"workers": 1, "cpus_per_worker": 0.5}, "evaluation": {"every": 1},
})
ray.init(address="local", num_cpus=1, include_dashboard=False)
try:
    {between}
except raysim.ResourceError as error:
    print(error)
print("Ray runs" if ray.is_initialized() else "no Ray runs")
"""

BETWEEN_ROUNDS = """
    for _ in raysim.rounds(experiment, executor="ray"):
        {ends}
"""

BETWEEN_REPORTS = """
    with raysim.Runs(experiment, executor="ray") as runs:
        runs.start([(experiment, "first"), (experiment.changed({"seed": 1}), "second")])
        for _ in runs.reports():
            {ends}
"""

BEFORE_MORE_RUNS = """
    with raysim.Runs(experiment, executor="ray") as runs:
        {ends}
        runs.start([(experiment, "first")])
"""

BY_A_LOGGER = """
    def log(row):
        {ends}
    raysim.run(experiment, executor="ray", loggers=[log])
"""


BEGINS_ANOTHER = 'ray.shutdown(); ray.init(address="local", num_cpus=1, include_dashboard=False)'


@pytest.mark.ray
@pytest.mark.parametrize(("ends", "left"), [("ray.shutdown()", "no Ray runs"), (BEGINS_ANOTHER, "Ray runs")])
@pytest.mark.parametrize("between", [BETWEEN_ROUNDS, BETWEEN_REPORTS, BEFORE_MORE_RUNS, BY_A_LOGGER])
def test_a_script_that_ends_its_connection_while_a_run_uses_it_is_told_so_and_its_own_next_ray_stays(
    between: str, ends: str, left: str, tmp_path: Path
) -> None:
    script = ENDS_ITS_CONNECTION.replace("{between}", between.strip()).replace("{ends}", ends)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path
    )
    assert done.stdout.splitlines(), done.stderr
    said, *others = done.stdout.splitlines()
    assert said.startswith("This script has ended its connection to Ray (ray.shutdown()) while a run used it.")
    assert others == [left]


@pytest.mark.ray
def test_a_ray_that_a_script_begins_in_the_place_of_raysims_own_stays(tmp_path: Path) -> None:
    script = ENDS_ITS_CONNECTION.replace("{between}", BETWEEN_ROUNDS.strip()).replace("{ends}", BEGINS_ANOTHER)
    # The first one is raysim's.
    begins = 'ray.init(address="local", num_cpus=1, include_dashboard=False)\ntry:'
    assert begins in script
    command = [sys.executable, "-c", script.replace(begins, "try:")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.stdout.splitlines(), done.stderr
    said, *others = done.stdout.splitlines()
    assert said.startswith("This script has ended its connection to Ray (ray.shutdown()) while a run used it.")
    assert others == ["Ray runs"]
