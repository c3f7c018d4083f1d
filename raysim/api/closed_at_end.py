"""Closes what a script still has open when it ends, while modules can be used.

Python itself would do so when it has taken modules down: Arrow then ends the process, Ray fails, nothing is written.
"""

from __future__ import annotations

import atexit
from collections.abc import Callable
from contextlib import ExitStack
from weakref import WeakMethod

_open: dict[WeakMethod[Callable[[], None]], None] = {}


def closed_at_end(close: Callable[[], None]) -> None:
    """Call this method at the process's end if its object is still there: what was opened last is closed first.

    To be called again once more was opened: what modules register at their import, Ray's end for one, comes later.
    """
    for gone in [one for one in _open if one() is None]:
        del _open[gone]
    _open[WeakMethod(close)] = None
    atexit.unregister(_close_all)
    atexit.register(_close_all)


def _close_all() -> None:
    with ExitStack() as stack:
        for one in tuple(_open):
            if (close := one()) is not None:
                stack.callback(close)
