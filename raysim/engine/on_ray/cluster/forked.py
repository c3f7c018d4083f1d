"""Keeps processes that were forked from one that has used Ray away from Ray, whose library does not work in them.

A forked process has none of the threads of Ray's library. There every call of Ray waits for ever, as do the handlers
that Ray runs at an exit; without these the process crashes in the library. So a process that was forked while this one
is connected ends by `os._exit`. One that would begin a run on Ray is refused, also after the connection has ended.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from raysim.errors import ResourceError

_ADVICE = "a process that was forked during a run on Ray ends here, because it cannot use Ray: end it by os._exit"

_has_used = False
"""Whether this process has been connected to Ray by raysim."""
_is_cut_off = False
"""Whether this process was forked from one that had been connected to Ray."""


def uses_ray() -> None:
    """Remember that this process uses Ray's library, for those that are forked from it."""
    global _has_used
    _has_used = True


def is_cut_off() -> bool:
    """Return whether Ray's library does not work in this process, because it was forked from one that had used it."""
    return _is_cut_off


def check() -> None:
    """Raise ResourceError if Ray's library does not work in this process; each of its calls would wait for ever."""
    if _is_cut_off:
        raise ResourceError(
            "This process was forked from one that had used Ray, whose library works in no forked process. Train in "
            'this process (executor="local", --local, or engine.workers = 0), or start processes afresh: '
            'multiprocessing.get_context("spawn").'
        )


def _cut_off() -> None:
    global _is_cut_off
    ray = sys.modules.get("ray")
    # The script may be connected by itself. A module that is being imported has no functions yet.
    is_connected = ray is not None and hasattr(ray, "is_initialized") and ray.is_initialized()
    _is_cut_off = _is_cut_off or _has_used or is_connected


# At import: whether a fork came after the first use of Ray is known in the child alone, at that moment.
os.register_at_fork(after_in_child=_cut_off)


@contextmanager
def ended() -> Iterator[None]:
    """Call a function of the script in the block; a process that is forked there ends where it would leave the block.

    Its exit code is that of its SystemExit, or 1.
    """
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        if os.getpid() != process:
            _end(error)
        raise
    if os.getpid() != process:
        _end(None)


def end_at_exit() -> NoReturn:
    """End a forked process that exits, before Ray's handlers do it. Python tells nobody the exit code: it is 1."""
    _end(None)


def _end(error: BaseException | None) -> NoReturn:
    code = 1
    if isinstance(error, SystemExit) and (error.code is None or isinstance(error.code, int)):
        code = error.code or 0
    elif isinstance(error, SystemExit):
        print(error.code, file=sys.stderr)
    elif error is not None:
        traceback.print_exception(error)
    else:
        print(f"error: {_ADVICE}", file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        # A process may have been started without one: None.
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(code & 0xFF)
