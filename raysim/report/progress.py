"""What a run says while it goes on. The engine reports to a Progress; what is shown, and where, is decided here."""

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


LISTED_WORKERS = 8
"""More workers than this are counted, not listed."""


class Progress(AbstractContextManager[Any], Protocol):
    """Told of a run from its start to its end, whatever that is; a context manager around the run."""

    def started(self, workers: list[str]) -> None:
        """The workers are there; each says where it runs."""
        ...

    def joined(self, row: Mapping[str, Any]) -> None:
        """The newest round of a run that is under way already."""
        ...

    def row(self, row: Mapping[str, Any]) -> None:
        """A round is finished: its row of the records, keys absent where a figure is undefined."""
        ...


class Silent:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def started(self, workers: list[str]) -> None:
        """Nothing is said."""

    def joined(self, row: Mapping[str, Any]) -> None:
        """Nothing is said."""

    def row(self, row: Mapping[str, Any]) -> None:
        """Nothing is said."""


class Display(AbstractContextManager[Any], Protocol):
    """Where a standing is shown: a live bar, a notebook's display, or log lines."""

    def say(self, text: str) -> None:
        """Show a line that stays."""
        ...

    def show(self, standing: Standing) -> None:
        """Show how the run stands."""
        ...


class Terminal:
    """Progress for people: a live bar on a terminal or below a notebook's cell, a line a minute in a log file."""

    def __init__(self, display: Display, total_rounds: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._display, self._clock = display, clock
        self._standing = Standing.at_start(total_rounds, clock())

    @classmethod
    def where_wanted(cls, progress: bool | None, total_rounds: int) -> Terminal | None:
        """The progress, or None where nothing is to be shown; see `place` for `progress`."""
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
                # rich is imported only where something is drawn with it.
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
        """Say where the workers run, and start the clock: what came before is no measure of a round."""
        listed = workers[:LISTED_WORKERS]
        if more := len(workers) - len(listed):
            listed.append(f"... and {more:,} more")
        for label, line in zip_longest(["placement"], listed, fillvalue=""):
            self._display.say(f"{label:<9}  {line}")
        self._standing = Standing.at_start(self._standing.total, self._clock())

    def joined(self, row: Mapping[str, Any]) -> None:
        """Show the run as it stands; its pace is measured from now on."""
        self._standing = self._standing.after(row, self._clock()).unmeasured()
        self._display.show(self._standing)

    def row(self, row: Mapping[str, Any]) -> None:
        """Show the run as it stands now."""
        self._standing = self._standing.after(row, self._clock())
        self._display.show(self._standing)
