"""Builds the page of `raysim report` from folders of runs, with the files of each picture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

from raysim.errors import RunFolderError
from raysim.experiment.pictures import EVERY_FORMAT, ReportSection
from raysim.report import picture_files
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.gallery import kinds
from raysim.report.gallery.render import render
from raysim.report.groups import Group, group_runs, with_labels
from raysim.report.page import GENERATOR, Picture, page
from raysim.report.picture_files import DATA
from raysim.report.runs import read_all
from raysim.storage import atomic, disk
from raysim.storage.inside import flaw, inside
from raysim.storage.remote.uri import uri_of

PAGE, PICTURES = "index.html", "figures"

_LINK = re.compile(rf'href="{PICTURES}/([^"/]+\.(?:{"|".join((*EVERY_FORMAT, DATA))}))"')
"""A picture's file in a page."""


class Built(NamedTuple):
    """The page's path, its number of figures, and its warnings. A notebook shows a link to the page."""

    page: Path
    figures: int
    notes: tuple[str, ...]

    def _repr_html_(self) -> str:
        notes = "".join(f"<p>{escape(note)}</p>" for note in self.notes)
        return f'<p><a href="{escape(str(self.page))}">{escape(str(self.page))}</a>, {self.figures} figures</p>{notes}'


def build(
    folders: Sequence[Path],
    out: Path,
    targets: Sequence[float] = (),
    monotone: bool = False,
    changes: Iterable[str] = (),
    names: Iterable[str] = (),
) -> Built:
    """Write `out`/index.html and `out`/figures/; an older report there is replaced, other files stay.

    Page and pictures are written aside, these one by one: if any cannot be made, the older report stays. The page is
    the record of the pictures that are the report's: it comes after the older one's pictures are deleted, and before
    its own come to their place, so wherever a process is killed, the page links all of them.

    Args:
        folders: of runs, trials or sweeps, or folders that contain them.
        out: the report's folder.
        targets: the accuracies, from 0 to 1, of rounds to target; none for a share of the best.
        monotone: learning curves show the best value so far.
        changes: of keys of the first run's `[report]`, such as "report.width_cm=8".
        names: see `with_labels`.

    Raises:
        RunFolderError: a folder is missing, or contains no readable run; or a name is of no method; or `out` has a page
            that is none of a report, or a file where a picture goes that is none of its page's.
        ExperimentError: a change does not fit.
    """
    runs, unread = read_all(folders)
    report = runs[0].experiment.report.changed(changes)
    groups, careful = group_runs(runs)
    groups = with_labels(groups, names)
    former, pictures = _former_pictures(out), inside(out, PICTURES, out, RunFolderError)
    suffixes = [*(report.formats or EVERY_FORMAT), DATA]

    def places_of(figure: Figure) -> Mapping[str, Path]:
        found = picture_files.places(figure.name, pictures, out, report)
        picture_files.check_free(found.values(), former, PAGE, "links")
        return found

    if _others(pictures, former):
        # Which may be in the way: before what takes long.
        taken: dict[str, int] = {}
        for kind in kinds(targets, monotone):
            for each in kind.make(groups):
                places_of(_apart(each, taken))
    with _aside(out) as aside:
        sections: dict[str, list[Picture]] = {}
        places: list[Mapping[str, Path]] = []
        absent: list[str] = []
        taken = {}
        for kind in kinds(targets, monotone):
            drawn = sections.setdefault(kind.section, [])
            before = len(drawn)
            # One after the other: together they may take more memory than there is.
            for each in kind.make(groups):
                figure = _apart(each, taken)
                places.append(found := places_of(figure))
                drawn.append(_draw(figure, report, found, aside))
            if len(drawn) == before:
                absent.append(f"{kind.title} ({kind.needs})")
        pieces = page(_title(groups), groups, [*unread, *careful], sections, absent, PICTURES, suffixes)
        with disk.writing(out / PAGE), (aside / PAGE).open("w", encoding="utf-8") as text:
            text.writelines(pieces)
        disk.make_folder(pictures)
        for file in former:
            # The new report may lack some of them. Other files there are not the report's.
            file.unlink()
        atomic.sweep(out)
        with disk.writing(out / PAGE):
            (aside / PAGE).replace(out / PAGE)
        for of_figure in places:
            picture_files.move(aside, of_figure)
    return Built(out / PAGE, len(places), (*unread, *careful))


@contextmanager
def _aside(out: Path) -> Iterator[Path]:
    """Yield a folder in `out` for files that are not complete as a whole; it is deleted at the end."""
    is_new = not out.exists()
    atomic.sweep_folders(out / PICTURES)
    try:
        with atomic.folder_aside(out / PICTURES) as folder:
            yield folder
    finally:
        if is_new:
            with suppress(OSError):
                # Nothing was built.
                out.rmdir()


def _draw(figure: Figure, report: ReportSection, places: Mapping[str, Path], aside: Path) -> Picture:
    """Draw a figure, and write its files aside under the names that they will have, with the SVG of the page."""
    files = {suffix: aside / f"{figure.name}.{suffix}" for suffix in (*places, "svg")}
    picture_files.write(figure, render(figure, report), files)
    return Picture(figure.name, figure.title, figure.caption, files["svg"])


def default_folder(folders: Sequence[Path]) -> Path:
    """Return a folder inside the reported folder; for several, or for a URI, one in the working folder.

    Raises:
        RunFolderError: a symbolic link there leads to another folder.
    """
    if len(folders) == 1 and uri_of(folders[0]) is None:
        return inside(folders[0], "report", folders[0], RunFolderError)
    return Path("report")


def _apart(figure: Figure, taken: dict[str, int]) -> Figure:
    """Return a figure whose files have names of their own, also where small and capital letters are the same.

    Args:
        figure: which gets a number where its name is taken.
        taken: the last number of each name in small letters; the figure's are added.
    """
    found, own = figure, figure.name.casefold()
    number = taken.get(own, 1)
    while found.name.casefold() in taken:
        number += 1
        # A figure cuts a long name, but not its end.
        found = replace(figure, name=f"{figure.name}-{number}")
    taken[own] = number
    taken.setdefault(found.name.casefold(), 1)
    return found


def _former_pictures(out: Path) -> list[Path]:
    """Return the files of pictures that an older report there has: those that its page links.

    Raises:
        RunFolderError: the page is none of a report.
    """
    older = out / PAGE
    if not os.path.lexists(older):
        return []
    text = older.read_text(encoding="utf-8", errors="replace") if older.is_file() else ""
    if GENERATOR not in text:
        raise RunFolderError(
            f"{older} is no page of `raysim report`, so it is not replaced: choose another folder (--out, out=)."
        )
    named = (unescape(name) for name in _LINK.findall(text))
    return [out / PICTURES / name for name in named if flaw(name) is None and (out / PICTURES / name).is_file()]


def _others(pictures: Path, former: Sequence[Path]) -> bool:
    """Return whether files lie among the pictures that are not the older report's."""
    return pictures.is_dir() and bool({file.name for file in pictures.iterdir()} - {file.name for file in former})


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(run.experiment.name for group in groups for run in group.runs))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"Report: {', '.join(names[:3])}{more}"
