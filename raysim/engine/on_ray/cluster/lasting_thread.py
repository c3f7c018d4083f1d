"""Starts processes in a thread that lasts: Linux ends Ray's processes together with the thread that started them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager


@contextmanager
def lasting() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Yield a function that calls another one, in the main thread or in one that lasts as long as the block.

    The thread that enters the block may end before the block does: runs of several threads share a Ray, and an iterator
    over rounds may go on in another thread.
    """
    left = threading.Event()

    def call(work: Callable[[], None]) -> None:
        if threading.current_thread() is threading.main_thread():
            work()
            return
        ended: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                ended.set_exception(error)
            else:
                ended.set_result(None)
            left.wait()

        # A daemon: the interpreter's end does not wait for a block that is never left.
        threading.Thread(target=run, daemon=True).start()
        ended.result()

    try:
        yield call
    finally:
        left.set()
