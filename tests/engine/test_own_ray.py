"""What is left of a run on a Ray of its own when a process of that Ray dies, or the script: one error."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import raysim
from raysim.engine.on_ray.cluster import guard, own_ray
from tests.support.nodes import until

EXPERIMENT = """
rounds = 100000
[data]
name = "digits"
clients = 20
[model]
name = "linear"
[cohort]
size = 10
[engine]
workers = 1
cpus_per_worker = 0.5
[checkpoint]
every = 3
"""


@pytest.fixture
def sleeping() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


def processes_of(process: subprocess.Popen[bytes]) -> own_ray.Processes:
    """Ray's table of processes, with one that dies when the test wants it."""
    return {"raylet": [SimpleNamespace(process=process)], "log_monitor": []}


def test_an_error_that_follows_from_a_death_is_replaced_by_the_one_that_names_it(
    tmp_path: Path, sleeping: subprocess.Popen[bytes]
) -> None:
    (tmp_path / "experiment.json").touch()
    ended: list[str | None] = []
    expected = rf"^Ray's node manager \(raylet\) was killed by SIGTERM.*: raysim resume {tmp_path}$"

    def run() -> None:
        with own_ray.watched(tmp_path, lambda: ended.append(own_ray.died()), lambda: False) as begun:
            begun(processes_of(sleeping))
            own_ray.check()
            sleeping.terminate()
            sleeping.wait()
            raise RuntimeError("what Ray says of it")

    with pytest.raises(raysim.WorkerLostError, match=expected):
        run()
    assert ended[0] is not None
    assert own_ray.died() is None


def test_what_ends_because_it_is_ended_on_purpose_is_no_death(
    tmp_path: Path, sleeping: subprocess.Popen[bytes]
) -> None:
    def end() -> None:
        sleeping.kill()
        sleeping.wait()
        own_ray.check()

    def run() -> None:
        with own_ray.watched(tmp_path, end, lambda: False) as begun:
            begun(processes_of(sleeping))
            raise KeyError("own mistake")

    with pytest.raises(KeyError, match="own mistake"):
        run()


def test_what_ends_because_the_script_leaves_it_is_no_death(tmp_path: Path, sleeping: subprocess.Popen[bytes]) -> None:
    """Between the end of a process and its removal from Ray's table the thread that watches may see it."""
    left: list[bool] = []
    with own_ray.watched(tmp_path, lambda: None, lambda: bool(left)) as begun:
        begun(processes_of(sleeping))
        left.append(True)
        sleeping.kill()
        sleeping.wait()
        assert own_ray.died() is None
        own_ray.check()


def test_before_anything_was_recorded_there_is_nothing_to_resume(
    tmp_path: Path, sleeping: subprocess.Popen[bytes]
) -> None:
    def run() -> None:
        with own_ray.watched(tmp_path, lambda: None, lambda: False) as begun:
            begun(processes_of(sleeping))
            sleeping.kill()
            sleeping.wait()
            own_ray.check()

    with pytest.raises(raysim.WorkerLostError, match="Nothing was recorded yet: start it again"):
        run()


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@linux
def test_the_guard_ends_only_the_processes_that_it_was_told_of(sleeping: subprocess.Popen[bytes]) -> None:
    other = subprocess.Popen(["sleep", "600"])
    try:
        started = dict(guard.children(os.getpid()))
        guard.end({(sleeping.pid, started[sleeping.pid]), (other.pid, started[other.pid] - 1)}, set(), grace_s=0)
        assert sleeping.wait(timeout=240) == -signal.SIGKILL
        assert other.poll() is None, "another process has the number"
    finally:
        other.kill()
        other.wait()


@linux
def test_the_guard_ends_what_a_node_manager_started_in_its_last_moment() -> None:
    """A worker that starts as its node manager dies waits for it half a minute, and nobody knows its number."""
    session, waits = f"session_test_{os.getpid()}", [sys.executable, "-c", "import time; time.sleep(600)"]
    log = f"/tmp/ray/{session}/logs/raylet.out"
    with subprocess.Popen([*waits, f"--session_dir=/tmp/ray/{session}"]) as raylet:
        until(lambda: guard.session(raylet.pid) == session)
        watch = guard.Guard()
        watch.cover(raylet.pid)
        raylet.kill()
    worker = subprocess.Popen([*waits, "--node-id=7", f"--session-name={session}"])
    readers = [subprocess.Popen([*waits, log]), subprocess.Popen([*waits, f"--session-name={session}_2"])]
    try:
        until(lambda: guard.session(worker.pid) == session)
        watch.close()
        assert worker.wait(timeout=240) == -signal.SIGKILL
        assert [reader.poll() for reader in readers] == [None, None]
    finally:
        for process in (worker, *readers):
            process.kill()
            process.wait()


@linux
def test_the_guard_ends_what_the_server_of_workers_forked_in_its_last_moment() -> None:
    """It has the server's command line until it is Ray's, and no session."""
    waits = [sys.executable, "-c", "import time; time.sleep(600)", "--serve"]
    path = f"/tmp/raysim-workers-{os.getpid()}/socket"
    with subprocess.Popen([*waits, path]) as server:
        until(lambda: guard.session(server.pid) == f"raysim-workers-{os.getpid()}")
        watch = guard.Guard()
        watch.cover(server.pid)
        server.kill()
    worker, other = subprocess.Popen([*waits, path]), subprocess.Popen([*waits, "/tmp/raysim-workers-x/socket"])
    try:
        until(lambda: guard.session(worker.pid) == f"raysim-workers-{os.getpid()}")
        watch.close()
        assert worker.wait(timeout=240) == -signal.SIGKILL
        assert other.poll() is None
    finally:
        for process in (worker, other):
            process.kill()
            process.wait()


@linux
def test_the_guard_of_a_script_that_died_ends_what_becomes_a_worker_later() -> None:
    """A worker that is started without the server is another program for a moment."""
    path = f"/tmp/raysim-workers-late-{os.getpid()}/socket"
    waits = [sys.executable, "-c", "import time; time.sleep(600)", path]
    with subprocess.Popen(waits) as server:
        until(lambda: guard.session(server.pid) is not None)
        watch = guard.Guard()
        watch.cover(server.pid)
        server.kill()
    assert watch._process.stdin is not None
    watch._process.stdin.close()
    time.sleep(1)
    worker = subprocess.Popen(waits)
    try:
        assert worker.wait(timeout=240) == -signal.SIGKILL
    finally:
        worker.kill()
        worker.wait()
        watch._process.wait()


ENDS_WITH_RAY = """
import os, signal, subprocess, time
from raysim.engine.on_ray.cluster.guard import Guard

def reads(pid, descriptor):
    try:
        return "pidfd" in os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return False

# What it leaves does not hold this script's errors.
raylet = subprocess.Popen(["sleep", "600"], stderr=subprocess.DEVNULL)
guard = Guard()
guard.needs(raylet.pid, "start it\\nagain \\udcff")
# The guard takes a moment to start.
while not [name for name in os.listdir(f"/proc/{guard._process.pid}/fd") if reads(guard._process.pid, name)]:
    time.sleep(0.01)
{dies}
raylet.wait()
{ends}
"""

BY_ITSELF = "os._exit(1)"


@linux
@pytest.mark.parametrize(
    ("dies", "ends", "said"),
    [
        ("raylet.kill()", BY_ITSELF, "error: Ray ended, and this script with it. start it again \\udcff\n"),
        ("raylet.kill()", f"guard.is_said(); {BY_ITSELF}", ""),
        ("raylet.kill()", "guard.close()", ""),
        ("raylet.kill()", "os.kill(os.getpid(), signal.SIGKILL)", ""),
        ("raylet.kill()", "os._exit(3)", ""),
        ("raylet.wait = raylet.kill", BY_ITSELF, "error: Ray ended, and this script with it. start it again \\udcff\n"),
    ],
)
def test_the_guard_says_why_a_script_ended_that_ray_ended(dies: str, ends: str, said: str) -> None:
    """Ray's library ends the script without a word of raysim where a process of Ray dies while Ray starts."""
    script = ENDS_WITH_RAY.replace("{dies}", dies).replace("{ends}", ends)
    done = subprocess.run([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True, timeout=240, check=False)
    assert done.stderr == said


def own_processes(script: psutil.Process) -> list[psutil.Process]:
    """The script and all that it has started."""
    return [script, *script.children(recursive=True)]


def left(processes: list[psutil.Process]) -> list[str]:
    """Those that still run."""
    return [p.name() for p in processes if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


@linux
@pytest.mark.ray
def test_a_node_manager_that_is_killed_while_ray_starts_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    command = [sys.executable, "-c", "from raysim.cli import main; main()", "run", "exp.toml", "--path", "run"]
    with subprocess.Popen([*command, "--no-progress"], stderr=subprocess.PIPE, text=True, cwd=tmp_path) as script:
        try:
            found: list[psutil.Process] = []

            def starts() -> bool:
                found.extend(one for one in psutil.Process(script.pid).children() if one.name() == "raylet")
                return bool(found)

            until(starts)
            found[0].kill()
            _, errors = script.communicate(timeout=240)
        finally:
            script.kill()
    assert script.returncode == 1
    # Ray ends the script, with a line of its own, or starts it again for half a minute; that depends on the moment.
    *_, last = errors.splitlines()
    assert re.fullmatch(
        r"error: Ray.* ended, and .*|error: Ray's node manager \(raylet\) was killed by SIGKILL, .*", last
    )
    assert last.endswith("Nothing was recorded yet: start it again.")
    assert "Traceback" not in errors


@pytest.mark.ray
@pytest.mark.parametrize("victim", ["gcs_server", "the script"])
def test_a_killed_process_of_ray_is_one_error_and_nothing_is_left(victim: str, tmp_path: Path) -> None:
    (tmp_path / "exp.toml").write_text(EXPERIMENT)
    folder = tmp_path / "run"
    command = [sys.executable, "-c", "from raysim.cli import main; main()", "run", str(tmp_path / "exp.toml")]
    with subprocess.Popen(
        [*command, "--path", str(folder), "--no-progress"], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as script:
        try:
            until(lambda: script.poll() is not None or any((folder / "checkpoints").glob("round-*")))
            processes = own_processes(psutil.Process(script.pid))
            by_name: dict[str, Any] = {process.name(): process for process in processes}
            (script if victim == "the script" else by_name[victim]).send_signal(signal.SIGKILL)
            said, errors = script.communicate(timeout=240)
            since_s = time.monotonic()
            until(lambda: not left(processes) or time.monotonic() - since_s > 15)
        finally:
            script.kill()
    assert left(processes) == []
    if victim == "the script":
        return
    assert script.returncode == 1
    assert said == ""
    assert errors.startswith("error: Ray's ")
    assert f"({victim}) was killed by SIGKILL" in errors
    assert errors.endswith(f"raysim resume {folder}\n")
    assert errors.count("\n") == 1
