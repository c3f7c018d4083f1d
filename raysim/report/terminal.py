"""Whether somebody watches, and by what means."""

from __future__ import annotations

import os
import sys
from typing import Literal

Place = Literal["notebook", "terminal", "lines", "nowhere"]


def place(progress: bool | None) -> Place:
    """Where progress is shown.

    Args:
        progress: False: nowhere. True: somewhere, in lines where there is neither notebook nor terminal. None: only
            where there is one of them.
    """
    if progress is False:
        return "nowhere"
    if is_notebook():
        return "notebook"
    if is_terminal():
        return "terminal"
    return "lines" if progress else "nowhere"


def is_terminal() -> bool:
    """Whether standard error is a terminal that can draw a bar again in place: a dumb one cannot move its cursor."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def is_notebook() -> bool:
    """Whether this process is a kernel, whose output is shown below a cell; IPython in a terminal is none."""
    # A kernel has imported it; nobody else need have it.
    loaded = sys.modules.get("IPython")
    return loaded is not None and hasattr(loaded.get_ipython(), "kernel")
