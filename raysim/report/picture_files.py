"""Writes a figure in the formats of `[report]`, and its data as CSV."""

from __future__ import annotations

from collections.abc import Mapping
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
    write(figure, drawn, places(figure, pictures, out, report))
    return drawn


def places(figure: Figure, pictures: Path, out: Path, report: ReportSection) -> dict[str, Path]:
    """Return where the files of a figure go, by their suffix; see `save`."""
    suffixes = (*(report.formats or EVERY_FORMAT), DATA)
    return {suffix: inside(pictures, f"{figure.name}.{suffix}", out, RunFolderError) for suffix in suffixes}


def write(figure: Figure, drawn: Drawn, places: Mapping[str, Path]) -> None:
    """Write the files of a figure that is drawn."""
    for kind, content in drawn.files.items():
        if (file := places.get(kind)) is not None:
            with disk.writing(file, len(content)):
                file.write_bytes(content)
    with disk.writing(places[DATA]):
        csv.write_csv(figure.data, places[DATA])
