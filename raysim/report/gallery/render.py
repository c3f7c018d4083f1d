"""Renders figures in the formats of `[report]`, and the SVG as part of a page, with the page's colours."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from raysim.experiment.pictures import EVERY_FORMAT, PictureFormat, ReportSection
from raysim.report.drawing import blank, drawing, encoded, lay_out
from raysim.report.gallery import text_room
from raysim.report.gallery.figure import HEIGHT_IN, Figure
from raysim.report.gallery.text_room import LETTER_EM, broken
from raysim.report.looks import DARK, variable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH_IN = 5.0
"""Narrow: letters stay readable on a phone, where the picture shrinks to a third of a screen's width."""
PANELS_ACROSS, PANEL_EM = 2, 15
"""Panels of a row; the least width of one, in sizes of a letter."""
HANDLE_EM, ROW_EM = 5.8, 1.5
"""In sizes of a letter: the room of a legend's line beside its name, a row's height."""
BESIDE_PART, BELOW_PART = 0.7, 0.55
"""Of a picture's height, what a label beside the axes may take; of its width, what one below or above them may."""
USUAL_PT = 9.0
"""Letters for which a figure's `height_in` is meant."""
_COUNTED_ID = re.compile(
    r' id="(figure|patch|axes|matplotlib\.axis|line2d|xtick|ytick|text|legend|QuadMesh|[A-Z][A-Za-z]*Collection)_\d+"'
)
"""Each figure counts these ids from the start, and nothing refers to them; a page would repeat them."""


_COORDINATES = re.compile(r' (?:d|x|y)="[^"]*"')
"""Of paths and of their markers; a tenth of a point is finer than any printer."""


class Drawn(NamedTuple):
    """The picture's files; of the SVG there is always one: a document without the XML head. Grounds are white."""

    files: Mapping[PictureFormat, bytes]

    @property
    def svg(self) -> str:
        """The SVG, as text."""
        return self.files["svg"].decode()


def render(figure: Figure, report: ReportSection) -> Drawn:
    """Draw a figure in the section's formats; pyplot and its settings do not change.

    Raises:
        ExperimentError: see `drawing`.
    """
    formats = {"svg", *(report.formats or EVERY_FORMAT)}
    with drawing(report):
        canvas = laid_out(figure, report)
        files = {kind: encoded(canvas, kind) for kind in EVERY_FORMAT if kind in formats}
    files["svg"] = _small(files["svg"].decode(), figure).encode()
    return Drawn(files)


def laid_out(figure: Figure, report: ReportSection) -> Canvas:
    """Return the drawn figure, each text at its place; within `drawing`."""
    letter_in = text_room.letter_in()
    canvas = blank(report, WIDTH_IN, HEIGHT_IN)
    canvas.set_label(figure.name)
    width_in, height_in = canvas.get_size_inches()
    if figure.height_in is not None:
        height_in = figure.height_in * letter_in * 72 / USUAL_PT
    panels = figure.panels
    across = min(len(panels), PANELS_ACROSS if width_in > PANELS_ACROSS * PANEL_EM * letter_in else 1)
    down = -(-len(panels) // across)
    cells = canvas.subplots(down, across, sharex=figure.shares_x, sharey=figure.shares_y, squeeze=False).ravel()
    named: dict[str, Artist] = {}
    below_em, more_em = BELOW_PART * width_in / across / letter_in, 0.0
    for place, axes in enumerate(cells):
        if place >= len(panels):
            axes.set_visible(False)
            # The panel above is the last of its column, so it shows the ticks of a shared axis.
            cells[place - across].xaxis.set_tick_params(which="both", labelbottom=True)
            continue
        panels[place].draw(axes)
        axes.set_title(broken(panels[place].title, below_em))
        axes.set_ylabel(
            "" if place % across and figure.shares_y else broken(axes.get_ylabel(), BESIDE_PART * height_in / letter_in)
        )
        axes.set_xlabel(broken(axes.get_xlabel(), below_em))
        more_em = max(more_em, _broken_lines_em(axes))
        named |= _named(axes)
    legend_em = _legend(canvas, named, width_in / letter_in)
    canvas.set_figheight((height_in + letter_in * more_em) * down + letter_in * legend_em)
    lay_out(canvas)
    return canvas


def _broken_lines_em(axes: Axes) -> float:
    """Return the height of what was broken around axes, in sizes of a letter; rows are equally high."""
    names = [name.get_text() for name in axes.get_yticklabels()]
    around = f"{axes.get_title()}{axes.get_xlabel()}".count("\n")
    return ROW_EM * (around + len(names) * max(name.count("\n") for name in [*names, ""]))


def _named(axes: Axes) -> dict[str, Artist]:
    handles, labels = axes.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def _legend(canvas: Canvas, named: Mapping[str, Artist], width_em: float) -> float:
    """Draw the legend below in as many columns as fit, long names broken; return its height in sizes of a letter."""
    if len(named) < 2:
        return 0.0
    longest = max(map(len, named)) * LETTER_EM + HANDLE_EM
    columns = max(1, min(len(named), int(width_em / longest)))
    names = [broken(name, width_em / columns - HANDLE_EM) for name in named]
    canvas.legend(named.values(), names, loc="outside lower center", ncols=columns)
    down = -(-len(names) // columns)
    return ROW_EM * max(sum(1 + name.count("\n") for name in names[i : i + down]) for i in range(0, len(names), down))


def _short(coordinates: re.Match[str]) -> str:
    tenths = re.sub(r"(\.\d)\d+", r"\1", coordinates[0])
    return (
        re.sub(r"\s*([A-Za-z])\s+(?=[-.\d])", r"\1", tenths.replace("\n", "")) if tenths.startswith(" d=") else tenths
    )


def themed(svg: str) -> str:
    """Return the SVG with CSS variables as colours: on a dark page it is dark."""
    for colour in DARK:
        svg = re.sub(f"{colour}(?![0-9a-f])", f"var({variable(colour)})", svg, flags=re.IGNORECASE)
    return svg


def _small(svg: str, figure: Figure) -> str:
    """Return the SVG with a label for screen readers, without invisible parts."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = _COUNTED_ID.sub("", svg)
    svg = _COORDINATES.sub(_short, svg)
    svg = svg.replace("font-family: 'DejaVu Sans'", "font-family: system-ui, 'DejaVu Sans'")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure.title)}" ', 1)
