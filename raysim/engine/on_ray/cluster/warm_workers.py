"""Starts the workers of a Ray on this machine by forking a process in which torch and raysim are already imported.

A worker that Ray starts imports both by itself: seconds of a core, for each worker. Here Ray's node manager (raylet)
starts this file in place of Ray's `setup_worker.py` (`RayParams.setup_worker_path`). This file hands its arguments,
environment and output files to a server, which forks. From there on the child is a Ray worker like any other: it runs
Ray's `default_worker.py`. Workers with a runtime environment of their own, or without a server, are started as usual.

The server must not import Ray, because Ray reads a worker's environment at import. The server has one thread and no
state but modules, so its children share its memory until they write to it. Linux only.

    python warm_workers.py --serve SOCKET    serves until its standard input is closed
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

SOCKET = "RAYSIM_WORKERS_SOCKET"
"""The environment variable that holds the path of the server's socket."""

COLD = "RAYSIM_COLD_WORKERS"
"""If this environment variable is set, to any value, no server is started."""

ONE_THREAD = MappingProxyType({"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"})
"""The environment in which imports start no thread, so that the server may fork: of NumPy, and of pyarrow's allocator.
Workers set the number of their threads by themselves."""

LIMITS = tuple(name for name in dir(resource) if name.startswith("RLIMIT_"))
OOM_SCORE = Path("/proc/self/oom_score_adj")
"""Where Linux keeps a process's score for the case that memory runs out; Ray raises that of its workers."""

CONTEXT, LANGUAGE = "--serialized-runtime-env-context=", "--language="
"""The arguments that Ray's `setup_worker.py` does not pass on."""

ASK_S = 30.0
"""How long a worker waits for the server, which may still be loading; then it starts as usual. Ray gives it 60 s
(`worker_register_timeout_seconds` in its src/ray/common/ray_config_def.h)."""

LOADED = (
    "google.protobuf.reflection",
    "psutil",
    "requests",
    "yaml",
    "raysim.data.store",
    "raysim.engine.many.segment",
    "raysim.engine.plan.sent_code",
    "raysim.engine.rounds.opening",
    "raysim.engine.wire",
    "raysim.storage.remote.mirror",
)
"""The modules that the server imports: those that Ray needs and that do not read the environment, and raysim's."""


_server_pid: int | None = None
"""The server of this process. There is one, as there is one connection to Ray."""


@contextmanager
def serving() -> Iterator[int | None]:
    """Run a server for the Ray that is started inside the block; yields the server's process number.

    Yields None where there is no server: not on Linux, or where the environment says so. A block inside another uses
    the server of the outer one, which can so load its modules before Ray starts.
    """
    global _server_pid
    if _server_pid is not None or sys.platform != "linux" or COLD in os.environ:
        yield _server_pid
        return
    # The server, which runs this file too, loads raysim's modules later.
    from raysim.storage.scratch import scratch_folder

    with scratch_folder("raysim-workers-") as folder:
        path = f"{folder}/socket"
        server = subprocess.Popen(
            [sys.executable, "-P", __file__, "--serve", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD},
            start_new_session=True,  # Ctrl-C is for the script
        )
        os.environ[SOCKET], _server_pid = path, server.pid
        try:
            yield server.pid
        finally:
            _server_pid = None
            os.environ.pop(SOCKET, None)
            server.kill()
            server.wait()
            assert server.stdin is not None
            server.stdin.close()


def request_worker(arguments: list[str]) -> bool:
    """Have the server start a worker; return False if the worker is not an ordinary one, or no server answers."""
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
    # A variable may concern what the server has loaded already.
    if context.get("py_executable", sys.executable) != sys.executable or context.get("env_vars"):
        return False
    asked = json.dumps({"arguments": kept, "environment": dict(os.environ), "settings": settings()}).encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.settimeout(ASK_S)
        try:
            server.connect(os.environ[SOCKET])
            socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
            server.sendall(asked)
            return server.recv(1) == b"."
        except OSError:
            return False


def settings() -> dict[str, Any]:
    """Return what a worker inherits from Ray's process that starts it, and a fork from the server does not have."""
    return {
        "folder": os.getcwd(),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in LIMITS},
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "oom_score": OOM_SCORE.read_text(),
    }


def apply(folder: str, nice: int, limits: dict[str, tuple[int, int]], blocked: list[int], oom_score: str) -> None:
    """Give this process the settings that `settings` returned in another one."""
    os.chdir(folder)
    os.setpriority(os.PRIO_PROCESS, 0, nice)
    for name, limit in limits.items():
        resource.setrlimit(getattr(resource, name), limit)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    OOM_SCORE.write_text(oom_score)


def serve(path: str) -> None:
    """Fork a worker for each request; requests wait until all modules are loaded."""
    import select

    listening = socket.socket(socket.AF_UNIX)
    # Bound under another name first: no process can connect before it listens.
    listening.bind(f"{path}.new")
    listening.listen(64)
    os.rename(f"{path}.new", path)
    if not load_modules():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            # The script was killed, or it would have ended this process: it leaves the folder to whoever is last.
            with suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))
            return
        with listening.accept()[0] as asking:
            asking.settimeout(ASK_S)
            files: list[int] = []
            # One that asks and ends is not a reason not to serve the others; a fork that fails is answered by silence.
            with suppress(OSError):
                head, files, _, _ = socket.recv_fds(asking, 8, 3)
                left, asked = int.from_bytes(head, "big"), b""
                while len(asked) < left and (more := asking.recv(left - len(asked))):
                    asked += more
                if len(files) == 3 and len(asked) == left and os.fork() == 0:
                    try:
                        listening.close()
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        asking.sendall(b".")
                        asking.close()
                        run_as_worker(files=files, **json.loads(asked))
                    finally:
                        # Who asked waits no longer: this is not a second server.
                        os._exit(1)
            for file in files:
                os.close(file)


def load_modules() -> bool:
    """Import what a worker needs; return whether a fork of this process can be a worker."""
    import gc
    import importlib

    # Import the raysim that this file belongs to.
    folder = str(Path(__file__).parents[4])
    sys.path.insert(0, folder)
    for name in LOADED:
        importlib.import_module(name)
    sys.path.remove(folder)
    gc.collect()
    # Without this a worker's first garbage collection would copy the memory that it shares with the others.
    gc.freeze()
    return "ray" not in sys.modules and len(os.listdir("/proc/self/task")) == 1


def run_as_worker(
    arguments: list[str], environment: dict[str, str], settings: dict[str, Any], files: list[int]
) -> None:
    """Run Ray's worker here, as if it had been started by itself; never returns."""
    import atexit
    import runpy
    import threading

    # Ray may signal a worker's whole group.
    os.setpgid(0, 0)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = arguments
    sys.path.insert(0, os.path.dirname(arguments[0]))
    code = 1
    try:
        apply(**settings)
        # Python reseeds its own generator in a fork.
        sys.modules["numpy"].random.seed()
        runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        # As at the end of an interpreter; `_exit` leaves out what is the server's.
        try:
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    elif not request_worker(sys.argv[1:]):
        from ray._private.workers import setup_worker

        os.execv(sys.executable, [sys.executable, setup_worker.__file__, *sys.argv[1:]])
