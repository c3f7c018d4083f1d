"""Ends what Ray leaves behind, in a small process of its own that outlives a killed script.

Ray's control service dies with the script, and Ray's agents wait a minute for it before they end. Linux only.

    python guard.py     reads lines "PID START", "session NAME" or "closed now" until its input is closed, and ends
                        those processes, and those of the session, that then go on for GRACE_S
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
"""How long a process may go on after the script. Ray's workers end by themselves within three seconds."""


CLOSED = "closed now"
"""The line by which a script says that it ends Ray by itself; one that dies does not come to it."""


class Guard:
    """The process, and what it has been told."""

    def __init__(self) -> None:
        # Not in the terminal's group: Ctrl-C is for the script. Without site: 8 MB, and nothing to import.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._told: set[str] = set()

    def cover(self, parent: int) -> None:
        """Tell it of all children of a process of Ray, such as its node manager, and of its session.

        Children are known while they live, even if they change their command line. The session also has those that are
        started, and lose their parent, before the next call.
        """
        lines = {"{} {}".format(*child) for child in children(parent)}
        if (name := session(parent)) is not None:
            lines.add(f"session {name}")
        self._tell(lines - self._told)

    def _tell(self, lines: set[str]) -> None:
        assert self._process.stdin is not None
        self._told |= lines
        # A guard that was killed guards nothing; the run goes on.
        with suppress(BrokenPipeError):
            self._process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self._process.stdin.flush()

    def close(self) -> None:
        """Have it end what is left, and wait for that."""
        self._tell({CLOSED})
        with suppress(BrokenPipeError):
            self._process.communicate()


def children(parent: int) -> set[tuple[int, int]]:
    """Return the children of a process that its first thread started, with the times of their starts."""
    try:
        pids = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    except OSError:
        return set()
    return {(int(pid), start) for pid in pids if (start := started(int(pid))) is not None}


def started(pid: int) -> int | None:
    """Return when a process started, in the kernel's ticks; None if there is none that lives."""
    try:
        # The name, in brackets, may contain anything.
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return None
    return None if state in "ZX" else int(fields[18])


def session(pid: int) -> str | None:
    """Return the name of the Ray session to which a process belongs, by its command line; None if it has none."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return None
    # A whole argument: whoever reads a log of the session has its name in a longer one.
    found = (_OF_SESSION.fullmatch(os.fsdecode(argument)) for argument in arguments)
    return next((match[1] or match[2] for match in found if match), None)


_OF_SESSION = re.compile(
    r"--session[-_](?:name=|dir=(?:.*/)?)(session_[^/\s]+)|(?:.*/)?(raysim-workers-[^/\s]+)/socket"
)
"""Also of the server that forks workers (warm_workers.py): they have its command line until they are Ray's."""


def members(sessions: set[str]) -> set[tuple[int, int]]:
    """Return the processes of these sessions, with the times of their starts."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdecimal()] if sessions else []
    return {(pid, start) for pid in pids if session(pid) in sessions and (start := started(pid)) is not None}


def end(processes: set[tuple[int, int]], sessions: set[str], grace_s: float, is_closed: bool = True) -> None:
    """End those processes, and those of the sessions, that go on for the given time.

    Another process may have the number of one that has ended. Unless Ray was closed, one that is not seen may come: a
    worker that becomes another program on its way has no session for a moment.
    """
    deadline_s = time.monotonic() + grace_s
    while True:
        left = {(pid, start) for pid, start in processes if started(pid) == start} | members(sessions)
        if not left and is_closed:
            return
        if time.monotonic() >= deadline_s:
            for pid, _ in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)


if __name__ == "__main__":
    told = [(line[0], line[1]) for line in map(str.split, sys.stdin) if len(line) == 2]
    of_session = {name for kind, name in told if kind == "session"}
    numbers = {(int(pid), int(start)) for pid, start in told if pid.isdecimal()}
    end(numbers, of_session, GRACE_S, tuple(CLOSED.split()) in told)
