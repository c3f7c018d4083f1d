"""A report as one HTML page that needs no network and no script: its pictures and its style are inside."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from importlib import resources
from typing import NamedTuple

from raysim.report import figures
from raysim.report.evaluations import headlines, spoken
from raysim.report.gallery.curves import MAX_POINTS
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import themed
from raysim.report.groups import Group, written
from raysim.report.palette import DARK, variable

GENERATOR = '<meta name="generator" content="raysim report">'
"""By which a page is known to be one of ours."""


class Picture(NamedTuple):
    """A figure and its SVG."""

    figure: Figure
    svg: str


def page(
    title: str,
    groups: Sequence[Group],
    notes: Sequence[str],
    sections: Mapping[str, Sequence[Picture]],
    absent: Sequence[str],
    files: str,
) -> str:
    """The page.

    Args:
        title: what is reported on.
        groups: in order; what the table lists.
        notes: what a reader must know first, each a sentence.
        sections: heading -> its pictures; those without any are left out.
        absent: kinds of figures that are not there, each with what it would need.
        files: the folder, relative to the page's, with PNG, SVG and CSV of each figure under the figure's name.
    """
    shown = {heading: pictures for heading, pictures in sections.items() if pictures}
    parts = [
        f"<!doctype html><html lang=en><head><meta charset=utf-8>{GENERATOR}",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        # A browser asks for an icon unless it is told that there is none.
        f'<link rel="icon" href="data:,"><title>{escape(title)}</title><style>{_style()}</style></head><body>',
        f"<header><h1>{escape(title)}</h1><p>{_counted(groups)}</p><nav>",
        *(f'<a href="#{_anchor(heading)}">{escape(heading)}</a>' for heading in ("Runs", *shown)),
        "</nav></header><main>",
        *_warnings(notes),
        f'<section id="{_anchor("Runs")}"><h2>Runs</h2>{_table(groups)}</section>',
        *(part for heading, pictures in shown.items() for part in _section(heading, pictures, files)),
        f"<footer>{''.join(_end(absent))}</footer></main></body></html>\n",
    ]
    return "".join(parts)


def _style() -> str:
    light = "".join(f"{variable(colour)}:{colour};" for colour in DARK)
    dark = "".join(f"{variable(colour)}:{value};" for colour, value in DARK.items())
    sheet = resources.files("raysim.report").joinpath("page.css").read_text(encoding="utf-8")
    return f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}{sheet}"


def _counted(groups: Sequence[Group]) -> str:
    runs = sum(len(group.runs) for group in groups)
    methods = "with the same settings" if len(groups) == 1 else f"with {len(groups):,} different settings"
    said = f"{figures.counted(runs, 'run')} {methods}." if runs > 1 else "One run."
    named = sum(group.look.is_named for group in groups)
    if named < len(groups):
        said += f" The {named} that ended best have a colour and a name in the pictures; the others are grey."
    return escape(said)


def _warnings(notes: Sequence[str]) -> Iterator[str]:
    if notes:
        yield f'<aside role="note"><ul>{"".join(f"<li>{escape(note)}</li>" for note in notes)}</ul></aside>'


def _table(groups: Sequence[Group]) -> str:
    keys = list(dict.fromkeys(key for group in groups for key in group.keys))
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    columns = list(headlines(names).values()) or [name for name in ("accuracy", "loss") if name in names][:1]
    called = [spoken(column) for column in columns]
    head = ["", *keys] if keys else ["run"]
    cells = "".join(f"<th>{escape(name)}</th>" for name in head)
    cells += "".join(f"<th class=number>{escape(name)}</th>" for name in ("trials", "rounds", *called, "wall time"))
    rows = "".join(_row(group, keys, columns) for group in groups)
    return f"<div class=wide><table><thead><tr>{cells}</tr></thead><tbody>{rows}</tbody></table></div>"


def _row(group: Group, keys: Sequence[str], columns: Sequence[str]) -> str:
    style = "dashed" if group.look.dash == "--" else "solid"
    colour = f"var({variable(group.look.colour)})"
    key = f'<span class=key style="border-color:{colour};border-style:{style} none none"></span>'
    named = [written(group.keys[name]) if name in group.keys else "" for name in keys]
    texts = ["", *named] if keys else [group.label]
    cells = "".join(f"<td>{key if i == 0 else ''}{escape(text)}</td>" for i, text in enumerate(texts))
    done = sorted({run.rounds.num_rows for run in group.runs})
    rounds = f"{done[0]:,}" if len(done) == 1 else f"{done[0]:,} to {done[-1]:,}"
    numbers = [f"{len(group.runs):,}", rounds, *(_final(group, column) for column in columns), _time(group)]
    return f"<tr>{cells}{''.join(f'<td class=number>{escape(number)}</td>' for number in numbers)}</tr>"


def _final(group: Group, column: str) -> str:
    """Mean and standard deviation of the trials' newest values."""
    values = group.finals(column)
    if not values:
        return ""
    write = figures.loss if column.endswith("loss") else figures.share
    around = f" ± {write(statistics.stdev(values))}" if len(values) > 1 else ""
    return write(statistics.fmean(values)) + around


def _time(group: Group) -> str:
    series = group.series("wall_time_s", cumulated=True)
    return "" if series is None else figures.duration(float(series.mean[-1]))


def _section(heading: str, pictures: Sequence[Picture], files: str) -> Iterator[str]:
    yield f'<section id="{_anchor(heading)}"><h2>{escape(heading)}</h2><div class=figures>'
    for figure, svg in pictures:
        name = f"{files}/{figure.name}"
        links = " · ".join(f'<a href="{escape(name)}.{kind}">{kind.upper()}</a>' for kind in ("png", "svg", "csv"))
        yield (
            f'<figure id="{escape(figure.name)}"><figcaption><h3>{escape(figure.title)}</h3>'
            f"<p>{escape(figure.says)}</p></figcaption>{themed(svg)}<p class=files>{links}</p></figure>"
        )
    yield "</div></section>"


def _end(absent: Sequence[str]) -> Iterator[str]:
    yield (
        f"<p>Means and standard deviations (divisor n - 1) are over trials: runs with the same settings and other "
        f"seeds. A line shows at most {MAX_POINTS} rounds at even distances, fewer where there are many lines, the "
        f"first and the last always; the CSV files hold what is drawn.</p>"
    )
    if absent:
        yield f"<p>Not shown, because these runs lack what they need: {escape('; '.join(absent))}.</p>"


def _anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")
