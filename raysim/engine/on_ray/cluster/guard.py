"""Ends what Ray leaves behind, in a small process of its own that outlives a killed script.

Ray's control service dies with the script, and Ray's agents wait a minute for it before they end. Linux only.

    python guard.py     reads lines "PID START" until its input is closed, and ends those that then go on for GRACE_S
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

GRACE_S = 5.0
"""How long a process may go on after the script. Ray's workers end by themselves within three seconds."""


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
        self._told: set[tuple[int, int]] = set()

    def cover(self, parent: int) -> None:
        """Tell it of all children of a process."""
        assert self._process.stdin is not None
        for child in children(parent) - self._told:
            self._told.add(child)
            # A guard that was killed guards nothing; the run goes on.
            with suppress(BrokenPipeError):
                self._process.stdin.write("{} {}\n".format(*child).encode())
                self._process.stdin.flush()

    def close(self) -> None:
        """Have it end what is left, and wait for that."""
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


def end(processes: set[tuple[int, int]], grace_s: float) -> None:
    """End those processes that go on for the given time. Another process may have the number of one that has ended."""
    deadline = time.monotonic() + grace_s
    while left := {(pid, start) for pid, start in processes if started(pid) == start}:
        if time.monotonic() >= deadline:
            for pid, _ in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.1)


if __name__ == "__main__":
    lines = [line.split() for line in sys.stdin]
    end({(int(pid), int(start)) for pid, start in (line for line in lines if len(line) == 2)}, GRACE_S)
