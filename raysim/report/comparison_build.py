"""Builds what `raysim compare` shows: a comparison of the methods in some folders for each metric."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from raysim.config.ipython import Printer, as_printed
from raysim.errors import RunFolderError
from raysim.report import comparison_table
from raysim.report.comparison import Comparison, Test, compare, default_metrics
from raysim.report.comparison_table import Format
from raysim.report.groups import group_runs, with_labels
from raysim.report.runs import read_all


class Comparisons(NamedTuple):
    """A comparison for each metric, and warnings. As text it is their tables; a notebook shows these as Markdown."""

    tables: tuple[Comparison, ...]
    notes: tuple[str, ...]

    def written(self, form: Format = "text") -> str:
        """Return the tables as text, Markdown or LaTeX, without the warnings."""
        return "\n\n".join(comparison_table.written(table, form) for table in self.tables)

    def __str__(self) -> str:
        return "\n".join([*(f"note: {note}" for note in self.notes), self.written()])

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        as_printed(self, printer, cycle)

    def _repr_markdown_(self) -> str:
        return "\n\n".join([*map(comparison_table.as_markdown, self.notes), self.written("markdown")])


def build(
    folders: Sequence[Path],
    metrics: Sequence[str] = (),
    test: Test = "t",
    names: Iterable[str] = (),
    last: int = 1,
) -> Comparisons:
    """Compare the methods in the folders with the first one.

    Args:
        folders: of runs, trials or sweeps, or folders that contain them.
        metrics: columns of the records; none: `default_metrics`.
        test: the paired test.
        names: see `with_labels`.
        last: see `Comparison`.

    Raises:
        RunFolderError: a folder is missing, or contains no readable run; a name is of no method; or as of `compare`.
    """
    found, unread = read_all(folders)
    groups, careful = group_runs(found)
    groups = with_labels(groups, names)
    try:
        tables = [compare(groups, metric, test, last) for metric in metrics or default_metrics(groups)]
    except RunFolderError as error:
        # What is left out may be what it lacks.
        raise RunFolderError(" ".join([str(error), *unread])) from None
    return Comparisons(tuple(tables), (*unread, *careful))
