"""Starts the workers of a test's Ray cluster by forking a process that has imported torch and raysim already.

Started by a raylet as usual, a worker imports ray twice and torch once: four seconds of a core, 200 times in the whole
suite. Here the raylet starts this file in place of Ray's `setup_worker.py` (`RayParams.setup_worker_path`); it
hands its arguments, environment and output files to a server, which forks. From there on the child is a Ray worker like
any other: it runs Ray's `default_worker.py`. Whatever asks for more than that is started as Ray starts it.

    python warm_workers.py --serve SOCKET      serves until its standard input is closed
"""

from __future__ import annotations

import json
import os
import socket
import sys

SOCKET = "RAYSIM_TEST_WORKERS"
"""The environment variable with the server's socket."""

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
"""What Ray's `setup_worker.py` takes of the arguments."""


def ask(arguments: list[str]) -> bool:
    """Have the server start a worker; False where it is not an ordinary one, or nobody serves."""
    context, kept = {}, []
    for argument in arguments:
        if argument.startswith(CONTEXT):
            context = json.loads(argument.removeprefix(CONTEXT) or "{}")
        elif argument.startswith(LANGUAGE):
            if argument != f"{LANGUAGE}PYTHON":
                return False
        else:
            kept.append(argument)
    if context.get("command_prefix") or context.get("override_worker_entrypoint") or SOCKET not in os.environ:
        return False
    if context.get("py_executable", sys.executable) != sys.executable:
        return False
    environment = {**os.environ, **context.get("env_vars", {})}
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    asked = json.dumps({"arguments": kept, "environment": environment, "folder": os.getcwd(), "nice": nice}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(os.environ[SOCKET])
        except OSError:
            return False
        socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
        server.sendall(asked)
        return server.recv(1) == b"."


def serve(path: str) -> None:
    """Fork a worker for everybody who asks."""
    import gc
    import select
    import signal

    # What Ray itself imports; not Ray, which reads a worker's environment when it is imported.
    import google.protobuf.reflection  # noqa: F401
    import psutil  # noqa: F401
    import requests  # noqa: F401
    import yaml  # noqa: F401

    assert "ray" not in sys.modules
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen(64)
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        with listening.accept()[0] as asking:
            head, files, _, _ = socket.recv_fds(asking, 8, 3)
            left, asked = int.from_bytes(head, "big"), b""
            while len(asked) < left:
                asked += asking.recv(left - len(asked))
            if os.fork() == 0:
                listening.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                asking.sendall(b".")
                asking.close()
                become(files=files, **json.loads(asked))
            for file in files:
                os.close(file)


def become(arguments: list[str], environment: dict[str, str], folder: str, nice: int, files: list[int]) -> None:
    """Run Ray's worker here, as if it had been started by itself; never returns."""
    import runpy

    # Ray may signal a worker's whole group.
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    sys.argv = arguments
    sys.path[0] = os.path.dirname(arguments[0])
    code = 1
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    elif not ask(sys.argv[1:]):
        from ray._private.workers import setup_worker

        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
