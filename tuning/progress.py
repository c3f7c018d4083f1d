"""What a study says while it goes on: a line for each trial that ends, and on a terminal a bar below them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from raysim.report.progress import place
from tuning.objective import Objective
from tuning.writing import figure, settings


class StudyProgress(AbstractContextManager["StudyProgress"]):
    """Told of a study from its first trial to its last; says it on standard error."""

    def __init__(self, objective: Objective, console: Console, has_bar: bool) -> None:
        self._objective, self._best = objective, objective.worst
        # A file has no width at which lines would have to be folded.
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
        """With a bar, in lines, or silent; `objective` says how values are written."""
        where = place(progress)
        has_bar = where == "terminal"
        # In a notebook these are lines below the cell, as in a file: rich would ask for widgets.
        console = Console(stderr=True, soft_wrap=not has_bar, force_jupyter=False, quiet=where == "nowhere")
        return cls(objective, console, has_bar)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self._bar.stop()

    def expects(self, rounds: int) -> None:
        """So many rounds are to come, in all runs of all trials, beyond those said before."""
        self._bar.update(self._task, total=(self._bar.tasks[0].total or 0) + rounds)

    def finished(self, rounds: int) -> None:
        """So many rounds are done, or will not be run."""
        self._bar.advance(self._task, rounds)

    def ended(self, number: int, outcome: str, value: float | None, values: Mapping[str, Any]) -> None:
        """A trial has ended. A line: what it came to, its settings, and whether it is the best so far."""
        said = outcome if value is None else figure(self._objective, value)
        is_best = value is not None and (value > self._best if self._objective.is_maximised else value < self._best)
        if is_best and value is not None:
            self._best = value
        self.say(f"trial {number:<4} {said:<9}  {settings(values)}{'  (best so far)' if is_best else ''}")

    def say(self, text: str) -> None:
        """A line."""
        self._console.print(text, markup=False, highlight=False)
