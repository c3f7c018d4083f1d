"""Draws canvases of matplotlib by `[report]`, and encodes them as PNG, SVG and PDF; pyplot does not change."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from raysim.errors import ExperimentError
from raysim.experiment.pictures import PictureFormat, ReportSection
from raysim.report.looks import FAINT, INK, PAPER

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

log = logging.getLogger("raysim")

_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""What no XML may contain, in UTF-8."""

PNG_DPI, PRINTED_DPI, SVG_DPI = 180, 300, 72

_BASE: Mapping[Any, Any] = MappingProxyType(
    {
        "font.size": 9.0,
        "axes.edgecolor": INK,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "grid.color": FAINT,
        "grid.linewidth": 0.7,
        "lines.linewidth": 1.5,
        "lines.markersize": 4.0,
        "legend.frameon": False,
        "legend.handlelength": 3.2,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.facecolor": PAPER,
        "axes.facecolor": "none",
        "hatch.linewidth": 0.6,
        "path.simplify_threshold": 0.3,
    }
)
_ALWAYS: Mapping[Any, Any] = MappingProxyType(
    {
        "axes.titlesize": "medium",
        # A "$" in the name of a run, a client or a method is a letter, and begins no formula.
        "text.parse_math": False,
        # Letters stay letters: smaller, searchable, and in the reader's font.
        "svg.fonttype": "none",
        # Publishers refuse the outlines that matplotlib writes otherwise, Type 3.
        "pdf.fonttype": 42,
        # The same figure has the same ids, so the same bytes.
        "svg.hashsalt": "raysim",
    }
)
_NOT_OF_STYLES = ("figure.", "savefig.", "backend", "text.usetex", "text.latex", "svg.", "pdf.", "ps.", "pgf.")
"""Settings of a style that a picture does not take: its size and files are `[report]`'s, and nothing starts LaTeX."""


@contextmanager
def drawing(report: ReportSection) -> Iterator[None]:
    """Draw by the section within a `with`.

    Raises:
        ExperimentError: matplotlib has no such style or font.
    """
    import matplotlib

    with matplotlib.rc_context(_settings(report)):
        yield


def blank(report: ReportSection, width_in: float, height_in: float) -> Canvas:
    """Return an empty canvas of this size, unless the section says otherwise."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    dpi = PNG_DPI if report.width_cm is None else PRINTED_DPI
    painter = Canvas(figsize=report.size_in(width_in, height_in), dpi=dpi, layout="constrained")
    FigureCanvasAgg(painter)
    return painter


def encoded(canvas: Canvas, kind: PictureFormat) -> bytes:
    """Return the picture's file; the first one lays the canvas out, others take its layout."""
    lay_out(canvas)
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    file, dpi = io.BytesIO(), canvas.dpi
    # Not `savefig`: it would draw everything once more for each format, to measure it.
    on: Any
    if kind == "png":
        on = FigureCanvasAgg(canvas)
        on.print_png(file, pil_kwargs={"compress_level": 3})
    elif kind == "pdf":
        on = FigureCanvasPdf(canvas)
        on.print_pdf(file, metadata={"CreationDate": None, "Creator": None, "Producer": None})
    else:
        on, canvas.dpi = FigureCanvasSVG(canvas), SVG_DPI
        on.print_svg(file, metadata={"Date": None, "Creator": None})
    canvas.dpi = dpi
    return _as_xml(file.getvalue()) if kind == "svg" else file.getvalue()


def _as_xml(svg: bytes) -> bytes:
    r"""Write control characters of texts as Python writes them: with one of them a file is no XML, and no SVG.

    >>> _as_xml(b"<text>a\x1bb</text>")
    b'<text>a\\x1bb</text>'
    """
    return _CONTROL.sub(lambda found: ascii(found[0].decode())[1:-1].encode(), svg)


def lay_out(canvas: Canvas) -> None:
    """Give each text its place, once; a picture without room for them is drawn as it is, and named in the log."""
    engine = canvas.get_layout_engine()
    if engine is None:
        return
    _with_powers(canvas)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "constrained_layout not applied")
            engine.execute(canvas)
    except UserWarning:
        log.warning(
            "Picture %s has no room for its texts: raise report.width_cm, lower report.font_size, or shorten names by "
            "--label.",
            canvas.get_label(),
        )
    # Axes of another size may have more ticks.
    _with_powers(canvas)
    canvas.set_layout_engine("none")


def _with_powers(canvas: Canvas) -> None:
    """Let the ticks of logarithmic axes be formulas where matplotlib writes them as powers."""
    from matplotlib.ticker import LogFormatterMathtext

    for axes in canvas.axes:
        for axis in (axes.xaxis, axes.yaxis):
            for which in ("major", "minor"):
                if isinstance(getattr(axis, f"get_{which}_formatter")(), LogFormatterMathtext):
                    for label in axis.get_ticklabels(which=which):
                        label.set_parse_math(True)


def _settings(report: ReportSection) -> dict[Any, Any]:
    settings = {**_BASE, **_of_style(report.style), **_ALWAYS}
    if report.font_size is not None:
        settings["font.size"] = report.font_size
    if report.font is not None:
        _check_font(report.font)
        settings["font.family"] = [report.font]
    return settings


def _of_style(name: str | None) -> dict[str, Any]:
    if name is None:
        return {}
    from matplotlib import get_configdir, style

    if name not in style.library:
        raise ExperimentError(
            f"report.style: matplotlib has no style {name!r}, but {', '.join(style.available)}. One of your own is a "
            f"file {name}.mplstyle in {get_configdir()}/stylelib."
        )
    return {key: value for key, value in style.library[name].items() if not key.startswith(_NOT_OF_STYLES)}


def _check_font(name: str) -> None:
    from matplotlib import font_manager

    try:
        font_manager.findfont(name, fallback_to_default=False)
    except ValueError:
        raise ExperimentError(
            f"report.font: there is no font {name!r} on this machine. Name one that `fc-list` shows, or serif, "
            f"sans-serif or monospace."
        ) from None
