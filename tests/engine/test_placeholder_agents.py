"""A Ray on this machine starts without its agents, and has the one of runtime environments once work asks for it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import psutil
import pytest

from raysim.engine.on_ray.cluster import placeholder_agents
from tests.support.nodes import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="Ray's agents are replaced on Linux only")

RAYLET = [
    "raylet",
    "--session_dir=/tmp/a session",
    "--node_id=12ab",
    "--node_ip_address=127.0.0.1",
    "--head",
    "--dashboard_agent_command=python agent.py --listen-port=0",
    "--runtime_env_agent_command=python main.py --runtime-env-agent-port=0 --temp-dir=/tmp/ray",
]


def test_a_raylet_finds_ports_and_placeholders() -> None:
    written: list[tuple[Any, ...]] = []
    command = placeholder_agents.stand_in(RAYLET, 4321, lambda *port: written.append(port), {"listen": -1, "env": 4321})
    assert written == [("/tmp/a session", "12ab", "listen", -1), ("/tmp/a session", "12ab", "env", 4321)]
    assert command[:5] == RAYLET[:5]
    placeholder = f"{sys.executable} -I -S {placeholder_agents.__file__}"
    assert command[5:] == [
        f"--dashboard_agent_command={placeholder}",
        f"--runtime_env_agent_command={placeholder} 127.0.0.1 4321 "
        f"python main.py --runtime-env-agent-port=4321 --temp-dir=/tmp/ray",
    ]


@pytest.mark.parametrize("option", ["--dashboard_agent_command", "--runtime_env_agent_command", "--node_id"])
def test_a_raylet_of_another_ray_keeps_its_agents(option: str) -> None:
    command = [part for part in RAYLET if not part.startswith(option)]
    written: list[tuple[Any, ...]] = []
    assert placeholder_agents.stand_in(command, 4321, lambda *port: written.append(port), {"env": 4321}) == command
    assert not written


def test_an_agent_that_has_its_port_keeps_it() -> None:
    command = [part.replace("--runtime-env-agent-port=0", "--runtime-env-agent-port=77") for part in RAYLET]
    assert placeholder_agents.stand_in(command, 4321, lambda *port: None, {}) == command


@linux
def test_a_port_that_is_reserved_is_there_for_who_listens() -> None:
    with placeholder_agents.reserved("127.0.0.1") as reserving:
        where = reserving.getsockname()
        # As Ray's agent does, and once more behind its placeholder.
        for _ in range(2):
            with socket.socket() as listening:
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listening.bind(where)
                listening.listen()
                socket.create_connection(where).close()


@linux
def test_a_placeholder_that_is_late_ends() -> None:
    """Its raylet has ended, and another process is its parent."""
    command = [sys.executable, "-I", "-S", placeholder_agents.__file__]
    assert subprocess.run(command, check=False, timeout=240).returncode == 0


@linux
def test_a_placeholder_ends_with_its_raylet() -> None:
    code = """
import subprocess, sys, time
open("/proc/self/comm", "w").write("raylet")
print(subprocess.Popen(sys.argv[1:]).pid, flush=True)
time.sleep(1)
"""
    command = [sys.executable, "-c", code, sys.executable, "-I", "-S", placeholder_agents.__file__]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    until(lambda: not psutil.pid_exists(int(done.stdout)))


SCRIPT = """
import json, os
import psutil
import ray
from raysim.engine.on_ray.cluster.cluster import connected

def agents():
    commands = [" ".join(process.cmdline()) for process in psutil.Process().children(recursive=True)]
    names = ("placeholder_agents", "dashboard/agent.py", "ray::RuntimeEnvAgent")
    found = [[name for name in names if name in command] for command in commands if "raylet/raylet" not in command]
    return sorted({these[0] for these in found if these})

@ray.remote
def value():
    return os.environ.get("OF_ITS_OWN")

with connected(None):
    plain, before = ray.get(value.remote()), agents()
    own = ray.get(value.options(runtime_env={"env_vars": {"OF_ITS_OWN": "yes"}}).remote())
    print(json.dumps([plain, own, before, agents()]), flush=True)
    children = [process.pid for process in psutil.Process().children(recursive=True)]
    print(json.dumps(children), flush=True)
    if os.environ.get("KILLED"):
        os.kill(os.getpid(), 9)
"""


def on_own_ray(**environment: str) -> list[Any]:
    """What SCRIPT prints, line by line."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == 2, done.stderr
    return lines


@linux
@pytest.mark.ray
def test_work_with_an_environment_of_its_own_finds_the_agent_for_it() -> None:
    (plain, own, before, behind), children = on_own_ray()
    assert (plain, own) == (None, "yes")
    assert before == ["placeholder_agents"]
    assert behind == ["placeholder_agents", "ray::RuntimeEnvAgent"]
    assert not any(psutil.pid_exists(child) for child in children)


@linux
@pytest.mark.ray
def test_placeholders_end_with_a_killed_script() -> None:
    _, children = on_own_ray(KILLED="1")
    until(lambda: not any(psutil.pid_exists(child) for child in children))
