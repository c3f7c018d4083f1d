"""Writes a figure in the formats of `[report]`, and its data as CSV."""

from __future__ import annotations

from pathlib import Path

import pyarrow.csv as csv

from raysim.errors import RunFolderError
from raysim.experiment.pictures import EVERY_FORMAT, ReportSection
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import Drawn, render
from raysim.storage import disk
from raysim.storage.inside import inside

DATA = "csv"


def save(figure: Figure, pictures: Path, out: Path, report: ReportSection) -> Drawn:
    """Draw a figure and write its files into `pictures`, which lies in `out` or is it.

    Raises:
        RunFolderError: a file there is a symbolic link to another folder.
        ExperimentError: see `drawing`.
    """
    drawn = render(figure, report)
    for kind in report.formats or EVERY_FORMAT:
        file = inside(pictures, f"{figure.name}.{kind}", out, RunFolderError)
        with disk.writing(file, len(drawn.files[kind])):
            file.write_bytes(drawn.files[kind])
    data = inside(pictures, f"{figure.name}.{DATA}", out, RunFolderError)
    with disk.writing(data):
        csv.write_csv(figure.data, data)
    return drawn
