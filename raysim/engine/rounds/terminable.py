"""Makes SIGTERM act like Ctrl-C, so a run that a scheduler ends leaves a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn


@contextmanager
def terminable() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM inside the block; a script's handler is left alone."""
    at_its_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not at_its_default or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _interrupt(*_: object) -> NoReturn:
    raise KeyboardInterrupt
