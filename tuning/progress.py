"""Shows the progress of a study: a line for each finished trial, and on a terminal a bar below."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from raysim.config.printable import printable
from raysim.report.progress import place
from tuning.objective import Objective
from tuning.writing import figure, settings


class StudyProgress(AbstractContextManager["StudyProgress"]):
    """Receives the events of a study and prints them to standard error."""

    def __init__(self, objective: Objective, console: Console, has_bar: bool) -> None:
        self._objective, self._best = objective, objective.worst
        # A file has no width, so its lines are not folded.
        self._console = console
        self._bar = Bar(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not has_bar,
        )
        self._task = self._bar.add_task("rounds", total=0)

    @classmethod
    def where_wanted(cls, progress: bool | None, objective: Objective) -> StudyProgress:
        """Return progress with a bar, in lines, or silent; `objective` chooses the format of values."""
        where = place(progress)
        has_bar = where == "terminal"
        # A notebook shows lines below the cell, as a file: rich's bar would need widgets.
        console = Console(stderr=True, soft_wrap=not has_bar, force_jupyter=False, quiet=where == "nowhere")
        return cls(objective, console, has_bar)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def expects(self, rounds: int) -> None:
        """Add rounds of new runs to the total."""
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + rounds)

    def finished(self, rounds: int) -> None:
        """Count rounds as finished, or as never to be run."""
        self._bar.advance(self._task, rounds)

    def begun_with(self, best: float) -> None:
        """Receive the best objective of the trials that ended before, of a study that goes on."""
        self._best = best

    def ended(self, number: int, outcome: str, value: float | None, values: Mapping[str, Any]) -> None:
        """Print a line for an ended trial: its outcome, its settings, and whether it is the best so far."""
        outcome_text = outcome if value is None else figure(self._objective, value)
        is_best = value is not None and (value > self._best if self._objective.is_maximised else value < self._best)
        if is_best and value is not None:
            self._best = value
        best = "  (best so far)" if is_best else ""
        self.print_line(f"trial {number:<4} {outcome_text:<9}  {settings(values)}{best}")

    def print_line(self, text: str) -> None:
        """Print a line."""
        self._console.print(printable(text), markup=False, highlight=False)
