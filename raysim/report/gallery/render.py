"""Renders figures as SVG and PNG, and the SVG as part of a page, with the page's colours."""

from __future__ import annotations

import html
import io
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from raysim.report.gallery.figure import Figure
from raysim.report.looks import DARK, FAINT, INK, PAPER, variable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure as Canvas

WIDTH_IN = 5.0
"""Narrow: letters stay readable on a phone, where the picture shrinks to a third of a screen's width."""
PANELS_ACROSS = 2
PNG_DPI, SVG_DPI = 180, 72
LEGEND_ROW_IN = 0.19
_COUNTED_ID = re.compile(
    r' id="(figure|patch|axes|matplotlib\.axis|line2d|xtick|ytick|text|legend|QuadMesh|[A-Z][A-Za-z]*Collection)_\d+"'
)
"""Each figure counts these ids from the start, and nothing refers to them; a page would repeat them."""
LONG_LABEL = 26
"""Legends with labels of more letters than this have one column."""

_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "hatch.linewidth": 0.6,
    "path.simplify_threshold": 0.3,
    # Letters stay letters: smaller, searchable, and in the reader's font.
    "svg.fonttype": "none",
    # The same figure has the same ids, so the same bytes.
    "svg.hashsalt": "raysim",
}


class Drawn(NamedTuple):
    """`svg`: a complete document, without the XML head. Both have a white ground."""

    svg: str
    png: bytes


def render(figure: Figure) -> Drawn:
    """Draw a figure; pyplot and its settings do not change."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    with matplotlib.rc_context(_STYLE):
        canvas = _canvas(figure)
        png, svg = io.BytesIO(), io.StringIO()
        # Not `savefig`: it would draw everything once more for each format, to measure it.
        bitmap: Any = FigureCanvasAgg(canvas)
        bitmap.print_png(png, pil_kwargs={"compress_level": 3})
        canvas.set_layout_engine("none")
        canvas.dpi = SVG_DPI
        letters: Any = FigureCanvasSVG(canvas)
        letters.print_svg(svg, metadata={"Date": None, "Creator": None})
    return Drawn(_small(svg.getvalue(), figure), png.getvalue())


def _canvas(figure: Figure) -> Canvas:
    from matplotlib.figure import Figure as Canvas

    panels = figure.panels
    across = min(len(panels), PANELS_ACROSS)
    down = -(-len(panels) // across)
    height_in = figure.height_in * down
    canvas = Canvas(figsize=(WIDTH_IN, height_in), dpi=PNG_DPI, layout="constrained")
    cells = canvas.subplots(down, across, sharey=True, squeeze=False).ravel()
    named: dict[str, Artist] = {}
    for place, axes in enumerate(cells):
        if place >= len(panels):
            axes.set_visible(False)
            continue
        panels[place].draw(axes)
        axes.set_title(panels[place].title.replace(", ", ",\n"), fontsize=8.5)
        if place % across:
            axes.set_ylabel("")
        handles, labels = axes.get_legend_handles_labels()
        named |= dict(zip(labels, handles, strict=True))
    if len(named) > 1:
        columns = 1 if max(map(len, named)) > LONG_LABEL else 2
        canvas.set_figheight(height_in + LEGEND_ROW_IN * -(-len(named) // columns))
        canvas.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize=8.5
        )
    return canvas


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
    svg = re.sub(r"(\d+\.\d\d)\d+", r"\1", svg)
    svg = svg.replace("font-family: 'DejaVu Sans'", "font-family: system-ui, 'DejaVu Sans'")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{html.escape(figure.title)}" ', 1)
