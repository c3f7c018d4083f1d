"""Shows the progress of a run. The engine reports to a Progress, which chooses what to show and where."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from itertools import zip_longest
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from raysim.report.standing import Standing

Place = Literal["notebook", "terminal", "lines", "nowhere"]


def place(progress: bool | None) -> Place:
    """Return the place of the progress display.

    Args:
        progress: False: nowhere. True: always, as log lines without notebook and terminal, but for a process without
            standard error. None: only in a notebook or on a terminal.
    """
    if progress is False:
        return "nowhere"
    if is_notebook():
        return "notebook"
    if is_terminal():
        return "terminal"
    return "lines" if progress and sys.stderr is not None else "nowhere"


def is_terminal() -> bool:
    """Return whether standard error is a terminal that can redraw a bar in place: a dumb one cannot move its cursor."""
    # None where the process was started with it closed.
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def is_notebook() -> bool:
    """Return whether this process is a kernel, whose output appears below a cell; IPython in a terminal is none."""
    # A kernel has imported it; without a kernel it may not be installed.
    loaded = sys.modules.get("IPython")
    return loaded is not None and hasattr(loaded.get_ipython(), "kernel")


LISTED_WORKERS = 8
"""More workers than this are counted, not listed, as they start."""


class Progress(AbstractContextManager[Any], Protocol):
    """Receives the events of a run; a context manager around the run."""

    def started(self, workers: list[str]) -> None:
        """Receive the places of workers that have started; others may follow."""
        ...

    def joined(self, row: Mapping[str, Any]) -> None:
        """Receive the newest round of a run that is already under way."""
        ...

    def row(self, row: Mapping[str, Any]) -> None:
        """Receive the row of a finished round; undefined figures have no key."""
        ...


class Silent:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def started(self, workers: list[str]) -> None:
        """Show nothing."""

    def joined(self, row: Mapping[str, Any]) -> None:
        """Show nothing."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Show nothing."""


class Display(AbstractContextManager[Any], Protocol):
    """Shows a standing: a live bar, a notebook's display, or log lines."""

    def print_line(self, text: str) -> None:
        """Print a line that stays."""
        ...

    def show(self, standing: Standing) -> None:
        """Show the run's standing."""
        ...


class Terminal:
    """Progress for people: a live bar on a terminal or below a notebook's cell, a line per minute in a log file."""

    def __init__(self, display: Display, total_rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock = display, clock
        self._standing = Standing.at_start(total_rounds, clock())
        self._listed = 0

    @classmethod
    def where_wanted(cls, progress: bool | None, total_rounds: int) -> Terminal | None:
        """Return the progress, or None if nothing is to be shown; see `place` for `progress`."""
        match place(progress):
            case "nowhere":
                return None
            case "lines":
                from raysim.report.log_lines import LogLines

                return cls(LogLines(sys.stderr), total_rounds)
            case "notebook":
                from raysim.report.notebook import NotebookBar

                return cls(NotebookBar(), total_rounds)
            case "terminal":
                # rich is imported only when it is used.
                from rich.console import Console

                from raysim.report.live_bar import LiveBar

                return cls(LiveBar(Console(stderr=True), time.monotonic), total_rounds)

    def __enter__(self) -> Self:
        self._display.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._display.__exit__(kind, error, trace)

    def started(self, workers: list[str]) -> None:
        """List the workers' places, and start the clock: the pace before was that of other workers, or of none."""
        listed = workers[: max(0, LISTED_WORKERS - self._listed)]
        if more := len(workers) - len(listed):
            listed.append(f"... and {more:,} more")
        for label, line in zip_longest(["placement"], listed, fillvalue=""):
            self._display.print_line(f"{label:<9}  {line}")
        self._listed += len(workers)
        self._standing = self._standing.unmeasured(self._clock())
        if self._standing.done:
            self._display.show(self._standing)

    def joined(self, row: Mapping[str, Any]) -> None:
        """Show the run's standing; its pace is measured from now on."""
        self._standing = self._standing.after(row, self._clock()).unmeasured(self._clock())
        self._display.show(self._standing)

    def row(self, row: Mapping[str, Any]) -> None:
        """Show the run's new standing."""
        self._standing = self._standing.after(row, self._clock())
        self._display.show(self._standing)
