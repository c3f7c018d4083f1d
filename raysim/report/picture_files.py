"""Writes a figure in the formats of `[report]`, and its data as CSV; replaces no file that is not raysim's own."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path

import pyarrow.csv as csv

from raysim.errors import RunFolderError
from raysim.experiment.pictures import EVERY_FORMAT, ReportSection
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import Drawn, render
from raysim.storage import atomic, disk, lock
from raysim.storage.inside import inside

DATA = "csv"

OWN = ".pictures.json"
"""Beside pictures that no page links: the names of their files, so that another file of such a name is not replaced."""


def save(figure: Figure, folder: Path, report: ReportSection) -> None:
    """Draw a figure and write its files into a folder, where a picture of that name may be replaced.

    Raises:
        RunFolderError: a file there is none of a picture, or a symbolic link to another folder.
        ExperimentError: see `drawing`.
    """
    found = free_places(figure.name, folder, report)
    drawn = render(figure, report)
    # First the record: a process that is killed between the files leaves none that is not named.
    with lock.of_folder(folder):
        names = sorted({file.name for file in (*_own(folder), *found.values())})
        atomic.write_text(inside(folder, OWN, folder, RunFolderError), json.dumps(names))
    _replace(figure, drawn, found)


def redraw(figure: Figure, folder: Path, report: ReportSection) -> None:
    """Draw a figure and write its files into a folder that is raysim's as a whole, such as a study's.

    Raises:
        RunFolderError: a file there is a symbolic link to another folder.
        ExperimentError: see `drawing`.
    """
    _replace(figure, render(figure, report), places(figure.name, folder, folder, report))


def free_places(name: str, folder: Path, report: ReportSection) -> dict[str, Path]:
    """Return where `save` writes the files of a figure of this name, by their suffix.

    Raises:
        RunFolderError: see `save`.
    """
    found = places(name, folder, folder, report)
    check_free(found.values(), _own(folder), OWN, "names")
    return found


def check_free(files: Iterable[Path], own: Collection[Path], record: str, records: str) -> None:
    """Check that no file lies where a picture goes, but raysim's own.

    Args:
        files: where the picture's files go.
        own: which may be replaced.
        record: what says so, for the error: a file beside them.
        records: the verb for that.

    Raises:
        RunFolderError: a file does; names it.
    """
    replaced = frozenset(own)
    for file in files:
        if os.path.lexists(file) and file not in replaced:
            raise RunFolderError(
                f"{file} is none of the pictures that {record} {records}, so it is not replaced: move it away, or "
                f"choose another folder."
            )


def _own(folder: Path) -> list[Path]:
    """Return the files that the folder's record names; none if there is no record that can be read."""
    try:
        names = json.loads((folder / OWN).read_bytes())
    except (OSError, ValueError):
        return []
    return [folder / name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def places(name: str, pictures: Path, out: Path, report: ReportSection) -> dict[str, Path]:
    """Return where the files of a figure go, by their suffix: in `pictures`, which lies in `out` or is it.

    Raises:
        RunFolderError: a file there is a symbolic link to another folder.
    """
    suffixes = (*(report.formats or EVERY_FORMAT), DATA)
    return {suffix: inside(pictures, f"{name}.{suffix}", out, RunFolderError) for suffix in suffixes}


def write(figure: Figure, drawn: Drawn, places: Mapping[str, Path]) -> None:
    """Write the files of a figure that is drawn, to places where nothing is."""
    for kind, content in drawn.files.items():
        if (file := places.get(kind)) is not None:
            with disk.writing(file, len(content)):
                file.write_bytes(content)
    with disk.writing(places[DATA]):
        csv.write_csv(figure.data, places[DATA])


def move(aside: Path, places: Mapping[str, Path]) -> None:
    """Move the files of a figure, which were written into the folder `aside` under their names, to their places."""
    for file in places.values():
        with disk.writing(file):
            (aside / file.name).replace(file)


def _replace(figure: Figure, drawn: Drawn, places: Mapping[str, Path]) -> None:
    """Write the files of a figure that is drawn, each of them whole or not at all."""
    for folder in {file.parent for file in places.values()}:
        atomic.sweep(folder)
    with ExitStack() as held:
        write(figure, drawn, {kind: held.enter_context(atomic.aside(file)) for kind, file in places.items()})
