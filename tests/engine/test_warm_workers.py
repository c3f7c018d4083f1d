"""Workers of an own Ray are forks of a process that has loaded what they need; without it they start all the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

import raysim
from raysim.engine.on_ray.cluster import warm_workers
from tests.support.nodes import until


@pytest.fixture
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a script that has not started Ray; the tests' own cluster keeps its server."""
    monkeypatch.setattr(warm_workers, "_server_pid", None)
    monkeypatch.delenv(warm_workers.SOCKET, raising=False)


linux = pytest.mark.skipif(sys.platform != "linux", reason="forks by a server on Linux only")


def loaded(then: str) -> Any:
    """What a process prints as JSON that has loaded what the server loads, and then runs this code."""
    code = f"""
import json, os, sys
from raysim.engine.on_ray.cluster import warm_workers
may_fork = warm_workers.load_modules()
before = set(sys.modules)
{then}
"""
    environment = {**os.environ, **warm_workers.ONE_THREAD}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@linux
def test_a_worker_finds_all_of_raysim_loaded_but_what_knows_ray() -> None:
    missing = loaded("""
import raysim.engine.on_ray.executor.client_pool, raysim.engine.on_ray.driver.driver
own = sorted(name for name in set(sys.modules) - before if name.startswith(("raysim", "torch.", "pyarrow", "pydantic")))
print(json.dumps([name for name in own if not name.startswith("raysim.engine.on_ray.")]))
""")
    assert missing == []


@linux
def test_the_server_may_fork() -> None:
    """It has one thread, and nothing of Ray, which reads a worker's environment when it is imported."""
    assert loaded("print(json.dumps(may_fork))") is True
    with_ray = loaded("import ray; print(json.dumps(warm_workers.load_modules()))")
    assert with_ray is False
    with_thread = loaded("""
import threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
print(json.dumps(warm_workers.load_modules()))
""")
    assert with_thread is False


def settings(**keys: Any) -> raysim.Experiment:
    base: dict[str, Any] = {
        "name": "warm",
        "rounds": 2,
        "data": {"name": "digits", "clients": 10},
        "model": {"name": "linear"},
        "cohort": {"size": 4},
        "evaluation": {"every": 2},
        "engine": {"workers": 1, "cpus_per_worker": 0.5},
    }
    return raysim.Experiment.model_validate({**base, **keys})


SCRIPT = """
import json, sys
from pathlib import Path
import psutil
import raysim
from raysim.engine.on_ray.cluster import warm_workers
from tests.engine.test_warm_workers import settings

def inherited(process):
    folder = Path("/proc", str(process.pid))
    masks = [line for line in (folder / "status").read_text().splitlines() if line.startswith(("SigBlk", "SigIgn"))]
    return [process.nice(), (folder / "limits").read_text(), (folder / "oom_score_adj").read_text(), *masks]

parents, seen = [], {}
for done in raysim.rounds(settings()):
    # Behind the last round they end.
    if seen:
        continue
    every = psutil.Process().children(recursive=True)
    workers = [process for process in every if "ClientPool" in process.name()]
    parents += [process.ppid() == warm_workers._server_pid for process in workers]
    seen |= {str(inherited(process)): inherited(process) for process in workers}
weights = {n: p.sum().item() for n, p in done.params.items()}
print(json.dumps({"forked": parents, "weights": weights, "inherited": list(seen.values())}))
"""


def on_own_ray(**environment: str) -> Any:
    """What SCRIPT prints; it has a Ray of its own."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@linux
@pytest.mark.ray
def test_workers_are_forks_with_the_same_bits() -> None:
    *_, last = raysim.rounds(settings(engine={"workers": 0}))
    here = {name: value.sum().item() for name, value in last.params.items()}
    warm, cold = on_own_ray(), on_own_ray(**{warm_workers.COLD: "1"})
    assert warm["forked"]
    assert all(warm["forked"])
    assert not any(cold["forked"])
    assert warm["weights"] == cold["weights"] == here
    # Priority, limits, turn when memory runs out, signals.
    assert warm["inherited"] == cold["inherited"]


@linux
@pytest.mark.usefixtures("no_server")
def test_a_server_ends_with_who_started_it() -> None:
    """At the end of the block, also while it loads; and when its script is killed."""
    with warm_workers.serving() as server, warm_workers.serving() as inner:
        assert server is not None
        assert inner == server
        process = psutil.Process(server)
        assert process.is_running()
    assert not process.is_running()
    code = """
import os, time
from raysim.engine.on_ray.cluster import warm_workers
with warm_workers.serving() as server:
    print(server, os.environ[warm_workers.SOCKET], flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        number, path = script.stdout.readline().split()
        server_of_script = psutil.Process(int(number))
        until(lambda: Path(path).exists())
        script.kill()
    until(lambda: not server_of_script.is_running() or server_of_script.status() == psutil.STATUS_ZOMBIE)
    assert not Path(path).parent.exists()


@linux
@pytest.mark.usefixtures("no_server")
def test_who_finds_no_server_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    arguments = [f"{warm_workers.CONTEXT}{{}}", f"{warm_workers.LANGUAGE}PYTHON", "worker.py"]
    assert not warm_workers.request_worker(arguments)
    monkeypatch.setenv(warm_workers.SOCKET, str(tmp_path / "nobody"))
    assert not warm_workers.request_worker(arguments)


@pytest.mark.parametrize(
    "asks_more",
    [
        [f"{warm_workers.LANGUAGE}JAVA"],
        [warm_workers.CONTEXT + json.dumps({"command_prefix": ["nice"]})],
        [warm_workers.CONTEXT + json.dumps({"py_executable": "/usr/bin/another"})],
        [warm_workers.CONTEXT + json.dumps({"override_worker_entrypoint": "other.py"})],
    ],
    ids=["another language", "a prefix", "another Python", "another entry"],
)
@pytest.mark.usefixtures("no_server")
def test_what_is_no_ordinary_worker_is_left_to_ray(asks_more: list[str]) -> None:
    with warm_workers.serving():
        assert not warm_workers.request_worker([*asks_more, "worker.py"])
