"""Draws what configurations are worth on other data against what the proxy said; writes the numbers beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import csv

from raysim.report import curve
from raysim.report.looks import GREY, INK, SERIES, plain
from raysim.run_folder.tables import column
from raysim.storage.atomic import write as write_file
from tuning.pictures.values import write_values
from tuning.proxy.study import ProxyStudy

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def write(found: ProxyStudy) -> list[Path]:
    """Write proxy.csv and proxy.png into the folder of the evaluations."""
    columns: dict[str, pa.Array] = {"trial": pa.array([each.number for each in found.tried])}
    for key in found.tried[0].values:
        columns[key] = column([each.values[key] for each in found.tried])
    columns["proxy"] = pa.array([each.value for each in found.tried])
    columns["here"] = pa.array(found.here, pa.float64())
    data, picture = found.study.path / "proxy.csv", found.study.path / "proxy.png"
    write_file(data, lambda file: csv.write_csv(pa.table(columns), file))
    curve.save(figure(found), picture.with_suffix(""))
    return [data, picture]


def figure(found: ProxyStudy) -> Figure:
    """Return the picture: a point for each configuration; the proxy's choice and the best here have a colour."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(6.4, 5.2), dpi=150, layout="constrained")
    axes = picture.add_subplot()
    plain(axes)
    known = [place for place, here in enumerate(found.here) if here is not None]
    axes.scatter([found.tried[i].value for i in known], [found.here[i] or 0.0 for i in known], s=28, color=GREY)
    for place, name, colour in ((0, "chosen by proxy", SERIES[0]), (found.best, "best here", SERIES[1])):
        here = found.here[place]
        if here is not None:
            axes.scatter([found.tried[place].value], [here], s=60, color=colour, label=name, zorder=3)
    axes.legend(frameon=False)
    write_values(axes.xaxis, found.objective)
    write_values(axes.yaxis, found.study.objective)
    axes.set_xlabel(f"proxy: {found.objective.label}", color=INK)
    axes.set_ylabel(f"here: {found.study.objective.label}", color=INK)
    said = "" if found.correlation is None else f", rank correlation {found.correlation:.2f}"
    axes.set_title(f"{found.study.name}{said}", loc="left", fontsize=12, color=INK)
    return picture
