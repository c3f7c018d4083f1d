"""Which process this is, so that others on the same machine can tell whether it still runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

_STARTED = 19
"""Where /proc/PID/stat has the start time, counted after the command's name."""


def here() -> str:
    """The space that process ids are unique in: the machine, since its last start, and its namespace of ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    return f"{socket.gethostname()} {boot} {os.stat('/proc/self/ns/pid').st_ino}"


def identity() -> dict[str, Any]:
    """What others need to know of this process."""
    return {"machine": here(), "pid": os.getpid(), "started": _started(os.getpid())}


def is_gone(identity: dict[str, Any]) -> bool | None:
    """Whether that process has ended; None where that cannot be seen from here."""
    if identity["machine"] != here():
        return None
    return bool(_started(identity["pid"]) != identity["started"])


def _started(pid: int) -> str | None:
    """When the process was started, in ticks since the machine was; None: there is none, or it is only waited for."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else fields[_STARTED]
