"""Ends what Ray leaves behind, in a small process of its own that outlives a killed script, and says what killed it.

Ray's control service dies with the script, and Ray's agents wait a minute for it before they end. While Ray starts, its
library ends the script at once when a process of Ray has died. Linux only.

    python guard.py SCRIPT      reads lines of the process SCRIPT until its input is closed, and ends the processes that
                                then go on for GRACE_S:

        PID START           such a process
        session NAME        all processes of this session of Ray
        needed PID          a process of Ray without which no run goes on; if it ends, and the script, one error says so
        advice TEXT         the end of that error
        said already        the script has said so by itself
        closed now          the script ends Ray by itself
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

GRACE_S = 5.0
"""How long a process may go on after the script. Ray's workers end by themselves within three seconds."""


SOON_S = 0.5
"""How long after a script that it has ended a process of Ray may end: others see that its files are closed before."""

RAYS_EXIT_CODE = 1
"""That of a script that Ray's library ends."""

CLOSED = "closed now"
"""The line by which a script says that it ends Ray by itself; one that dies does not come to it."""


SAID = "said already"
"""The line of a script that ends itself because Ray has died."""


class Guard:
    """The process, and what it has been told."""

    def __init__(self) -> None:
        # Not in the terminal's group: Ctrl-C is for the script. Without site: 8 MB, and nothing to import.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
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

    def needs(self, pid: int, advice: str) -> None:
        """Have it say that Ray has ended, and the advice, if this process of Ray ends and so does the script."""
        # A folder's name may have a line's end.
        self._tell({f"needed {pid}", f"advice {' '.join(advice.splitlines())}"} - self._told)

    def is_said(self) -> None:
        """Have it say nothing: the script has."""
        self._tell({SAID})

    def _tell(self, lines: set[str]) -> None:
        assert self._process.stdin is not None
        self._told |= lines
        # A guard that was killed guards nothing; the run goes on.
        with suppress(BrokenPipeError):
            self._process.stdin.write(os.fsencode("".join(f"{line}\n" for line in lines)))
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


@dataclass
class Heard:
    """What a script has said until it ended.

    sessions, processes: what may be left of it. needed: file descriptors of the processes that it needs. advice: see
    `Guard.needs`. is_said, is_closed: see SAID and CLOSED.
    """

    sessions: set[str] = field(default_factory=set)
    processes: set[tuple[int, int]] = field(default_factory=set)
    needed: set[int] = field(default_factory=set)
    advice: str = ""
    is_said: bool = False
    is_closed: bool = False


def hear(lines: Iterable[str]) -> Heard:
    """Read what the script says until it ends."""
    heard = Heard()
    for line in lines:
        kind, _, rest = line.strip().partition(" ")
        if kind == "session":
            heard.sessions.add(rest)
        elif kind == "needed":
            # One that has ended already, and a kernel before Linux 5.3.
            with suppress(OSError):
                heard.needed.add(os.pidfd_open(int(rest)))
        elif kind == "advice":
            heard.advice = rest
        elif kind.isdecimal():
            heard.processes.add((int(kind), int(rest)))
        else:
            heard.is_said |= line.strip() == SAID
            heard.is_closed |= line.strip() == CLOSED
    return heard


def last_words(heard: Heard, script: int) -> str | None:
    """Return the error of a script that Ray has ended; None if it ended otherwise, or has said so."""
    if heard.is_said or heard.is_closed or not ended_as_by_ray(script):
        return None
    ended, _, _ = select.select([*heard.needed], [], [], SOON_S) if heard.needed else ([], [], [])
    return f"error: Ray ended, and this script with it. {heard.advice}" if ended else None


def ended_as_by_ray(pid: int) -> bool:
    """Return whether a process that is ending may be one that Ray's library ends: it has the exit code of these."""
    deadline_s = time.monotonic() + 1
    while time.monotonic() < deadline_s:
        try:
            state, *_, status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            # Its parent has heard of its end already.
            return True
        # As of `wait`; it is there before the end is.
        if state in "ZX" or int(status):
            return int(status) == RAYS_EXIT_CODE << 8
        time.sleep(0.001)
    return False


def main() -> None:
    """Do what the head of this file says."""
    # Names of folders need not be text.
    heard = hear(map(os.fsdecode, sys.stdin.buffer))
    words = last_words(heard, int(sys.argv[1]))
    if words is not None and sys.stderr is not None:
        # Who reads the script's errors may have gone.
        with suppress(OSError):
            print(words, file=sys.stderr, flush=True)
    # Who waits for the end of the script's errors is not to wait for Ray's processes.
    os.dup2(1, 2)
    end(heard.processes, heard.sessions, GRACE_S, heard.is_closed)


if __name__ == "__main__":
    main()
