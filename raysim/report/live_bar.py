"""Draws progress on a terminal: a bar that is redrawn in place, below all other output."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raysim.config.printable import printable
from raysim.report import number_formats
from raysim.report.standing import Standing

REFRESHES_PER_S = 4


class LiveBar:
    """A display for terminals: two lines, which fit 80 columns."""

    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._standing: Standing | None = None
        self._live = Live(
            get_renderable=self.render,
            console=console,
            refresh_per_second=REFRESHES_PER_S,
            # Output of user code goes above the bar, unless standard output is a file, or was closed: None.
            redirect_stdout=sys.stdout is not None and sys.stdout.isatty(),
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def print_line(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(printable(text), style="dim", markup=False, highlight=False, soft_wrap=True)

    def show(self, standing: Standing) -> None:
        """Draw this standing from now on."""
        self._standing = standing

    def render(self) -> RenderableType:
        """Return the present content of the screen."""
        standing = self._standing
        if standing is None:
            return Text("starting ...", style="dim")
        line = Table.grid(padding=(0, 2), expand=True)
        for _ in range(4):
            line.add_column(no_wrap=True)
        line.columns[1].ratio = 1
        rounds = f"round {standing.done:,}/{standing.total:,}"
        bar = ProgressBar(total=standing.total, completed=standing.done)
        line.add_row(Text(rounds, style="bold"), bar, Text(self._speed(standing)), Text(self._left(standing)))
        return Group(line, _figures(standing))

    def _left(self, standing: Standing) -> str:
        if standing.done >= standing.total:
            return "done"
        left_s = standing.left_s(self._clock())
        return "" if left_s is None else f"{number_formats.duration(round(left_s))} left"

    def _speed(self, standing: Standing) -> str:
        return "" if standing.clients_per_s is None else f"{number_formats.rate(standing.clients_per_s)} clients/s"


def _figures(standing: Standing) -> Text:
    text = Text("   ".join(standing.quality()), no_wrap=True, overflow="ellipsis")
    for part in standing.trouble():
        text.append(f"   {part}", style="yellow")
    return text
