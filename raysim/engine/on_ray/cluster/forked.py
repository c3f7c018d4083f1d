"""Ends processes that were forked while this one is connected to Ray: they must not use its connection.

A forked process has none of the threads of Ray's library. There every call of Ray waits for ever, as do the handlers
that Ray runs at an exit; without these the process crashes in the library. So such a process ends by `os._exit`.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

_ADVICE = "a process that was forked during a run on Ray ends here, because it cannot use Ray: end it by os._exit"


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
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code & 0xFF)
