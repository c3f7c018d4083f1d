"""Draws what configurations are worth on other data against what the proxy said; writes the numbers beside it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.experiment.pictures import EVERY_FORMAT, ReportSection
from raysim.report.gallery.figure import Figure
from raysim.report.looks import GREY, nth
from raysim.report.picture_files import DATA, redraw
from raysim.run_folder.tables import column
from tuning.pictures.values import write_values
from tuning.proxy.study import ProxyStudy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def write(found: ProxyStudy, report: ReportSection | None = None) -> list[Path]:
    """Write proxy.csv and the picture into the folder of the evaluations; return their files.

    Args:
        found: the configurations, here and by the proxy.
        report: the formats, size and letters of the picture.
    """
    report, folder, picture = report or ReportSection(), found.study.path, figure(found)
    redraw(picture, folder, report)
    return [folder / f"{picture.name}.{kind}" for kind in (DATA, *(report.formats or EVERY_FORMAT))]


def figure(found: ProxyStudy) -> Figure:
    """Return the picture: a point for each configuration; the proxy's choice and the best here have a colour."""
    columns: dict[str, pa.Array] = {"trial": pa.array([each.number for each in found.tried])}
    for key in found.tried[0].values:
        columns[key] = column([each.values[key] for each in found.tried])
    columns["proxy"] = pa.array([each.value for each in found.tried])
    columns["here"] = pa.array(found.here, pa.float64())
    note = "" if found.correlation is None else f" The rank correlation is {found.correlation:.2f}."
    title = f"{found.study.name}: configurations here against the proxy"
    return Figure("proxy", title, f"A point for each configuration.{note}", pa.table(columns), partial(_draw, found))


def _draw(found: ProxyStudy, axes: Axes) -> None:
    known = [place for place, here in enumerate(found.here) if here is not None]
    axes.plot([found.tried[i].value for i in known], [found.here[i] or 0.0 for i in known], "o", color=GREY)
    for series, (place, name) in enumerate(((0, "chosen by proxy"), (found.best, "best here"))):
        here = found.here[place]
        if here is not None:
            look = {**nth(series).points(name), "linestyle": "", "markersize": 7 - 2 * series}
            axes.plot([found.tried[place].value], [here], **look)
    write_values(axes, found.objective.is_share, f"proxy: {found.objective.label}", "x")
    write_values(axes, found.study.objective.is_share, f"here: {found.study.objective.label}")
