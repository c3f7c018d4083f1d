"""Figures of the server's diagnostics that are one column of the records against rounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from raysim.report.gallery import curves
from raysim.report.gallery.figure import Figure, Kind
from raysim.report.groups import Group


def kind(section: str, column: str, title: str, says: str) -> Kind:
    """The kind that draws one column of the records."""
    return Kind(section, title, column, partial(_make, column, title, says))


def _make(column: str, title: str, says: str, groups: Sequence[Group]) -> Iterator[Figure]:
    found = curves.lines(groups, column)
    if found:
        yield curves.figure(column.replace("/", "-"), title, says, found, column)
