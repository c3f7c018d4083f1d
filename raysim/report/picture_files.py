"""Writes a figure as PNG and SVG, and its data as CSV."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as csv

from raysim.errors import RunFolderError
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import Drawn, render
from raysim.storage import disk
from raysim.storage.inside import inside

FORMATS = ("png", "svg", "csv")


def save(figure: Figure, pictures: Path, out: Path) -> Drawn:
    """Draw a figure and write its files into `pictures`, which lies in `out` or is it.

    Raises:
        RunFolderError: a file there is a symbolic link to another folder.
    """
    drawn = render(figure)
    png, svg, data = (inside(pictures, f"{figure.name}.{kind}", out, RunFolderError) for kind in FORMATS)
    with disk.writing(png, len(drawn.png)):
        png.write_bytes(drawn.png)
    with disk.writing(svg, len(drawn.svg)):
        svg.write_text(drawn.svg, encoding="utf-8")
    with disk.writing(data):
        csv.write_csv(figure.data, data)
    return drawn
