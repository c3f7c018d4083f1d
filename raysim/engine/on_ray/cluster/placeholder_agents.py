"""Stands in for the two agents of a Ray on this machine, for which its node manager (raylet) would wait.

Each agent is a Python process that imports Ray: a second of a core and tens of MB, before any worker can start. The
dashboard's agent serves a dashboard, which such a Ray does not have. The agent of runtime environments serves work with
an environment of its own, which raysim does not send, and a user's code may. Here the raylet finds the agents' ports
written, and starts this file in place of both. The first waits for the raylet's end. The second listens, and becomes
Ray's agent once the raylet connects, which tries again until the agent answers. Linux only.

    python placeholder_agents.py                        waits for the raylet's end
    python placeholder_agents.py ADDRESS PORT COMMAND   becomes this command when something connects to the port
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

WritePort = Callable[[str, str, str, int], None]
"""Ray's `persist_port`: writes an agent's port into a session's folder, for a node, under a name."""

POLL_S = 0.5
"""How often an agent looks whether its raylet lives."""

DASHBOARD, RUNTIME_ENV = "--dashboard_agent_command", "--runtime_env_agent_command"
SESSION, NODE, ADDRESS = "--session_dir", "--node_id", "--node_ip_address"
"""Options of Ray's raylet."""

ANY_PORT = "--runtime-env-agent-port=0"
"""The option by which the agent of runtime environments chooses its port."""


def reserved(address: str) -> socket.socket:
    """Return a socket that keeps a port free for one that listens with SO_REUSEADDR."""
    reserving = socket.socket()
    reserving.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserving.bind((address, 0))
    return reserving


def stand_in(command: Sequence[str], port: int, write_port: WritePort, ports: Mapping[str, int]) -> list[str]:
    """Return a raylet's command with placeholders for its agents, and write their ports for it to find.

    Args:
        command: of the raylet. One that lacks an option of the agents, as of another Ray, is returned as it is.
        port: on which the agent of runtime environments will listen.
        write_port: see `WritePort`.
        ports: what to write, by Ray's names.
    """
    options = dict(option.split("=", 1) for option in command if "=" in option)
    if not {DASHBOARD, RUNTIME_ENV, SESSION, NODE, ADDRESS} <= options.keys() or ANY_PORT not in options[RUNTIME_ENV]:
        return list(command)
    for name, number in ports.items():
        write_port(options[SESSION], options[NODE], name, number)
    placeholder = [sys.executable, "-I", "-S", __file__]
    own_port = ANY_PORT.replace("=0", f"={port}")
    on_demand = subprocess.list2cmdline([*placeholder, options[ADDRESS], str(port)])
    agents = {
        DASHBOARD: subprocess.list2cmdline(placeholder),
        RUNTIME_ENV: f"{on_demand} {options[RUNTIME_ENV].replace(ANY_PORT, own_port)}",
    }
    return [f"{name}={agents[name]}" if (name := option.split("=", 1)[0]) in agents else option for option in command]


def wait(address: str | None, port: int, command: list[str]) -> None:
    """Wait for the raylet's end; if there is an address, become the command once something connects there."""
    # Ctrl-C is for the script.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raylet = os.getppid()
    with open(f"/proc/{raylet}/comm") as name:
        if not name.read().startswith("raylet"):
            # It ended before this process looked.
            return
    with socket.socket() as listening:
        if address is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listening.bind((address, port))
            listening.listen()
        watched = [] if address is None else [listening]
        while os.getppid() == raylet:
            if select.select(watched, [], [], POLL_S)[0]:
                # Python's sockets are closed by exec.
                os.execv(command[0], command)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        wait(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    else:
        wait(None, 0, [])
