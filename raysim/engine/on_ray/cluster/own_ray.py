"""Watches over the Ray that a script starts for itself: when a process of Ray ends in mid-run, one error says so.

Ray itself reports it after 15 to 60 seconds, with its own logs, or ends the script. The state is one for the process,
as Ray's connection is.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raysim.engine.on_ray.cluster.guard import Guard
from raysim.errors import WorkerLostError
from raysim.run_folder import files
from raysim.storage.remote import folder

WATCHED = MappingProxyType({"gcs_server": "control service (gcs_server)", "raylet": "node manager (raylet)"})
"""Ray's processes without which no run goes on, by Ray's names."""

POLL_S = 0.5
"""How often who waits for an answer looks whether Ray lives."""

STARTS_POLL_S = 0.02
"""How often the guard is told while Ray starts: Ray's library may end this process as soon as the last one is there."""

LAST_S = 45.0
"""How long after the control service the script may live. Ray ends a script that is still connected after 60 s,
without raysim's error: calls to the control service cannot be interrupted."""

Processes = Mapping[str, Sequence[Any]]
"""Ray's own table of the processes that it started; it grows while Ray starts."""


@dataclass
class OwnRay:
    """The Ray that this script starts.

    run_folder: of its run; None if there are several. is_left: see `watched`. server: the process that forks its
    workers, if there is one. processes: see `Processes`; None before they start, and once they are about to be ended on
    purpose. died: how it ended by itself.
    """

    run_folder: Path | None
    is_left: Callable[[], bool]
    server: int | None
    processes: Processes | None = None
    died: str | None = None


_own: OwnRay | None = None


@contextmanager
def watched(
    run_folder: Path | None, end: Callable[[], None], is_left: Callable[[], bool], server: int | None = None
) -> Iterator[Callable[[Processes], None]]:
    """Watch over a Ray that is started and used inside the block; yields the function that takes its processes.

    Args:
        run_folder: of its run; None if there are several.
        end: ends that Ray; called when the block is left.
        is_left: whether the script has ended the connection to it, which ends its processes on purpose.
        server: the process that forks its workers, if there is one (warm_workers.py).

    Raises:
        WorkerLostError: one of its processes ended, whatever error followed from that.
    """
    global _own
    _own = own = OwnRay(run_folder, is_left, server)
    left = threading.Event()
    looks = threading.Thread(target=_look, args=(own, left), daemon=True)
    looks.start()
    try:
        yield lambda processes: setattr(own, "processes", processes)
    except Exception:
        check()
        raise
    finally:
        died()
        own.processes = None
        try:
            end()
        finally:
            _own = None
            left.set()
            # For the guard, which ends once nothing is left.
            looks.join()


def is_there() -> bool:
    """Whether the Ray of this process is one that it has started: all of it is on this machine, and ends with it."""
    return _own is not None and _own.processes is not None


def share() -> None:
    """Name no run's folder if the script's own Ray dies: several runs use it."""
    if _own is not None:
        _own.run_folder = None


def died() -> str | None:
    """Return how the script's own Ray ended by itself; None if it lives, or the script has ended it or joined one."""
    if _own is None:
        return None
    for name, called in WATCHED.items():
        for one in () if _own.processes is None or _own.died is not None else _own.processes.get(name, ()):
            code = one.process.poll()
            # `ray.shutdown()` leaves the connection first, then ends the processes, and clears the table last.
            if code is not None and not _own.is_left():
                _own.died = f"Ray's {called} {_ended(code)}"
    return _own.died


def check() -> None:
    """Raise `WorkerLostError` if the script's own Ray has ended."""
    how = died()
    if how is not None:
        raise WorkerLostError(f"{how}, and the run with it. {_advice()}") from None


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def _advice() -> str:
    path = None if _own is None else _own.run_folder
    if path is None:
        return "What its runs had checkpointed can be resumed: raysim resume DIR, or raysim tune once more for a study."
    if not (path / files.RECORD).exists():
        return "Nothing was recorded yet: start it again."
    return f"What it had checkpointed can be resumed: {folder.resume_command(folder.named(path))}"


def _look(own: OwnRay, left: threading.Event) -> None:
    """Keep the guard informed, and end this process with raysim's error before Ray ends it with its own."""
    guard = Guard() if sys.platform == "linux" else None
    if guard is not None and own.server is not None:
        # Before Ray starts: its library may end this process at any time from then on.
        guard.cover(own.server)
    since_s: float | None = None
    poll_s = STARTS_POLL_S
    while not left.wait(poll_s):
        processes = own.processes
        if processes is not None and all(processes.get(name) for name in WATCHED):
            poll_s = POLL_S
        if guard is not None and processes is not None:
            # The control service starts first, and tells the session too.
            for one in (one for name in WATCHED for one in processes.get(name, ())):
                guard.cover(one.process.pid)
                guard.needs(one.process.pid, _advice())
            if own.server is not None:
                guard.cover(own.server)
        try:
            check()
        except WorkerLostError as error:
            since_s = since_s or time.monotonic()
            if time.monotonic() - since_s > LAST_S and WATCHED["gcs_server"] in str(error):
                print(f"error: {error}", file=sys.stderr, flush=True)
                if guard is not None:
                    guard.is_said()
                os._exit(1)
    if guard is not None:
        guard.close()
