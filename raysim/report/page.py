"""Fills in `page.html`: a report as one HTML page that needs no network and no script."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, StrictUndefined

from raysim.config.counted import counted
from raysim.report import number_formats
from raysim.report.column_names import headlines, spoken
from raysim.report.gallery.curves import MAX_POINTS
from raysim.report.gallery.render import themed
from raysim.report.groups import Group, written
from raysim.report.looks import DARK, variable
from raysim.report.series import over_trials

GENERATOR = '<meta name="generator" content="raysim report">'
"""It marks a page as a report of raysim."""


class Picture(NamedTuple):
    """A figure's texts, and the file of its SVG, which is read when the page comes to it."""

    name: str
    title: str
    caption: str
    file: Path

    def svg(self) -> str:
        """Return the SVG, with the page's colours."""
        return themed(self.file.read_text(encoding="utf-8"))


class Row(NamedTuple):
    """A method in the table: the colour and dashes of its curves, its settings, and its results."""

    colour: str
    dashes: str
    texts: Sequence[str]
    numbers: Sequence[str]


class PageTable(NamedTuple):
    """Headings of the text columns and of the number columns; a row per method."""

    texts: Sequence[str]
    numbers: Sequence[str]
    rows: Sequence[Row]


def page(
    title: str,
    groups: Sequence[Group],
    notes: Sequence[str],
    sections: Mapping[str, Sequence[Picture]],
    absent: Sequence[str],
    files: str,
    formats: Sequence[str],
) -> Iterator[str]:
    """Yield the report as one HTML page, in pieces of a picture at most.

    Args:
        title: of the page.
        groups: the table's rows, in order.
        notes: sentences that a reader must know first.
        sections: heading -> its pictures; a section without pictures is left out.
        absent: kinds of figures that are missing, each with its requirement.
        files: the folder, relative to the page's, with the files of each figure under the figure's name.
        formats: the suffixes of these files.
    """
    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined, keep_trailing_newline=True)
    environment.filters["anchor"] = lambda heading: heading.lower().replace(" ", "-")
    shown = {heading: pictures for heading, pictures in sections.items() if pictures}
    return environment.from_string(_packaged("page.html")).generate(
        generator=GENERATOR,
        title=title,
        style=_style(),
        counted=_counted(groups),
        notes=notes,
        table=_table(groups),
        sections=shown,
        files=files,
        formats=formats,
        absent=absent,
        max_points=MAX_POINTS,
    )


def _packaged(name: str) -> str:
    return resources.files("raysim.report").joinpath(name).read_text(encoding="utf-8")


def _style() -> str:
    light = "".join(f"{variable(colour)}:{colour};" for colour in DARK)
    dark = "".join(f"{variable(colour)}:{value};" for colour, value in DARK.items())
    return f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}{_packaged('page.css')}"


def _counted(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    methods = "with the same settings" if len(groups) == 1 else f"with {len(groups):,} different settings"
    text = f"{counted(runs, 'run')} {methods}." if runs > 1 else "One run."
    named = sum(group.look.is_named for group in groups)
    if named < len(groups):
        text += f" The {named} that ended best have a colour and a name in the pictures; the others are grey."
    return text


def _table(groups: Sequence[Group]) -> PageTable:
    keys = list(dict.fromkeys(key for group in groups for key in group.keys))
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    columns = list(headlines(names).values()) or [name for name in ("accuracy", "loss") if name in names][:1]
    ends = [_ends(group) for group in groups]
    numbers = ["trials", "rounds", *(["stopped by"] if any(ends) else []), *map(spoken, columns), "wall time"]
    rows = [_row(group, keys, columns, [end] if any(ends) else []) for group, end in zip(groups, ends, strict=True)]
    return PageTable(["", *keys] if keys else ["run"], numbers, rows)


def _ends(group: Group) -> str:
    """Return the conditions of `[stop]` that have ended its runs."""
    reasons = [run.stopped for run in group.runs]
    return ", ".join(dict.fromkeys(reason.condition for reason in reasons if reason is not None))


def _row(group: Group, keys: Sequence[str], columns: Sequence[str], end: Sequence[str]) -> Row:
    named = [written(group.keys[name]) if name in group.keys else "" for name in keys]
    done = sorted({run.rounds.num_rows for run in group.runs})
    rounds = f"{done[0]:,}" if len(done) == 1 else f"{done[0]:,} to {done[-1]:,}"
    return Row(
        colour=f"var({variable(group.look.colour)})",
        dashes=group.look.css_dashes,
        texts=["", *named] if keys else [group.label],
        numbers=[f"{len(group.runs):,}", rounds, *end, *(_final(group, column) for column in columns), _time(group)],
    )


def _final(group: Group, column: str) -> str:
    """Return mean and standard deviation of the trials' newest values, as text."""
    values = group.finals(column)
    if not values:
        return ""
    write = number_formats.loss if column.endswith("loss") else number_formats.share
    around = f" ± {write(statistics.stdev(values))}" if len(values) > 1 else ""
    return write(statistics.fmean(values)) + around


def _time(group: Group) -> str:
    """Return the trials' mean time, as text; they may have ended after different rounds."""
    each = [over_trials([run.rounds], "wall_time_s", cumulated=True) for run in group.runs]
    totals = [float(series.mean[-1]) for series in each if series is not None]
    return number_formats.duration(statistics.fmean(totals)) if totals else ""
