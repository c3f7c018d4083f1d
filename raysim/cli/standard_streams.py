"""Gives the command the standard streams that it was started without, as by a shell's `>&-` or some schedulers."""

from __future__ import annotations

import os
import sys


def open_missing() -> None:
    """Open what is closed of standard input, output and error, for nothing to be read or written.

    Else the next file that is opened would be that stream: what torch or Ray writes to standard error would be in it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            _open(number)
            setattr(sys, name, open(os.devnull, "w" if number else "r", encoding="utf-8"))  # noqa: SIM115


def _open(number: int) -> None:
    try:
        os.fstat(number)
    except OSError:
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != number:
            os.dup2(opened, number)
            os.close(opened)
        # Processes that are started have it too.
        os.set_inheritable(number, True)
