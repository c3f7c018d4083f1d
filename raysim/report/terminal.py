"""Whether somebody watches."""

from __future__ import annotations

import os
import sys


def is_terminal() -> bool:
    """Whether standard error is a terminal that can draw a bar again in place: a dumb one cannot move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
