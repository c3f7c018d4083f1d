"""Writes progress to a log file: whole lines, one per minute, no control codes."""

from __future__ import annotations

from types import TracebackType
from typing import Self, TextIO

from raysim.config.printable import printable
from raysim.report.standing import Standing

EVERY_S = 60.0
"""Least seconds between two lines; the first and the last round are always written."""


class LogLines:
    """A display for streams that are not terminals. The last round is always written."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._written_s: float | None = None
        self._unwritten: Standing | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unwritten is not None:
            self._write(self._unwritten)

    def print_line(self, text: str) -> None:
        """Write a line."""
        print(printable(text), file=self._stream, flush=True)

    def show(self, standing: Standing) -> None:
        """Write the standing if enough time has passed."""
        now_s = standing.finishes[-1].at_s
        is_last = standing.done >= standing.total
        if self._written_s is None or is_last or now_s - self._written_s >= EVERY_S:
            self._write(standing)
        else:
            self._unwritten = standing

    def _write(self, standing: Standing) -> None:
        now_s = standing.finishes[-1].at_s
        parts = [*standing.quality(), *standing.trouble(), *standing.pace()]
        self.print_line(f"round {standing.done:,}/{standing.total:,}: {', '.join(parts)}")
        self._written_s, self._unwritten = now_s, None
