"""Builds the page of `raysim report` from folders of runs, with the files of each picture."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

from raysim.errors import RunFolderError
from raysim.experiment.pictures import EVERY_FORMAT
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

    The page is the record of the pictures that are the report's: it comes after the older one's pictures are deleted,
    and before its own are written, so wherever a process is killed, the page links all of them.

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
    taken: dict[str, int] = {}
    by_kind = [(kind, [_apart(figure, taken) for figure in kind.make(groups)]) for kind in kinds(targets, monotone)]
    former, pictures = _former_pictures(out), inside(out, PICTURES, out, RunFolderError)
    every = [figure for _, figures in by_kind for figure in figures]
    places = {figure.name: picture_files.places(figure.name, pictures, out, report) for figure in every}
    files = (file for of_figure in places.values() for file in of_figure.values())
    picture_files.check_free(files, former, PAGE, "links")
    drawn = {figure.name: render(figure, report) for figure in every}
    with disk.writing(pictures):
        pictures.mkdir(parents=True, exist_ok=True)
    for file in former:
        # The new report may lack some of them. Other files there are not the report's.
        file.unlink()
    atomic.sweep(out)
    sections: dict[str, list[Picture]] = {}
    for kind, figures in by_kind:
        sections.setdefault(kind.section, []).extend(Picture(figure, drawn[figure.name].svg) for figure in figures)
    absent = [f"{kind.title} ({kind.needs})" for kind, figures in by_kind if not figures]
    text = page(
        _title(groups),
        groups,
        [*unread, *careful],
        sections,
        absent,
        PICTURES,
        [*(report.formats or EVERY_FORMAT), DATA],
    )
    atomic.write_text(out / PAGE, text)
    for figure in every:
        picture_files.write(figure, drawn[figure.name], places[figure.name])
    return Built(out / PAGE, sum(map(len, sections.values())), (*unread, *careful))


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


def _title(groups: Sequence[Group]) -> str:
    names = list(dict.fromkeys(run.experiment.name for group in groups for run in group.runs))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"Report: {', '.join(names[:3])}{more}"
