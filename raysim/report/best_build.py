"""Builds what `raysim best` shows: a table of the choices, and a picture for each score and number of rounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from raysim.config.counted import counted
from raysim.config.ipython import Printer, as_printed
from raysim.errors import RunFolderError
from raysim.report import notebook, number_formats
from raysim.report.best import Chosen, Scored, choose, methods, until
from raysim.report.column_names import is_share, spoken
from raysim.report.gallery import best_methods
from raysim.report.picture_files import save
from raysim.storage import disk

TEST = "eval/test/accuracy"


class BestMethods(NamedTuple):
    """Lines for the terminal, the paths of the pictures among them; warnings; and the pictures, without their endings.

    As text it is its lines; a notebook shows the pictures too.
    """

    lines: tuple[str, ...]
    notes: tuple[str, ...]
    pictures: tuple[Path, ...]

    def __str__(self) -> str:
        return "\n".join([*(f"note: {note}" for note in self.notes), *self.lines])

    def _repr_pretty_(self, printer: Printer, cycle: bool) -> None:
        as_printed(self, printer, cycle)

    def _repr_html_(self) -> str:
        return notebook.html_of_text(str(self), [path.with_name(f"{path.name}.png") for path in self.pictures])


def build(
    folders: Sequence[Path],
    by: Sequence[str],
    after: Sequence[int | None],
    shown: str | None,
    out: Path,
    changes: Iterable[str] = (),
) -> BestMethods:
    """Choose in every folder by each score after each number of rounds (None: all), and write pictures into `out`.

    shown: the column that is drawn; None: the test accuracy where all best methods have it, else the score.
    changes: of keys of the first run's `[report]`, such as "report.width_cm=8".

    Raises:
        RunFolderError: a folder has no readable run, has not recorded a score, or has finished fewer rounds; no run
            has recorded `shown`.
        ExperimentError: a change does not fit.
    """
    found, unread = zip(*map(methods, folders), strict=True)
    if shown is not None and not any(shown in each.columns for each in found):
        raise RunFolderError(f"{shown!r} cannot be shown: no run of {', '.join(each.folder for each in found)} has it.")
    every = [[choose(each, column, rounds) for each in found] for column, rounds in itertools.product(by, after)]
    report = found[0].groups[0].runs[0].experiment.report.changed(changes)
    notes = list(dict.fromkeys(note for of_folder in unread for note in of_folder))
    disk.make_folder(out)
    lines: list[str] = []
    pictures: list[Path] = []
    for choices in every:
        lines += [line for chosen in choices for line in _lines(chosen)]
        notes += [note for chosen in choices for note in _notes(chosen)]
        column = shown or _drawn_column(choices)
        picture = best_methods.figure(choices, column)
        if picture is None:
            notes.append(f"No best method has {column!r}, so there is no picture.")
        else:
            save(picture, out, report)
            pictures.append(out / picture.name)
            lines.append(str(pictures[-1]))
    return BestMethods(tuple(lines), tuple(dict.fromkeys(notes)), tuple(pictures))


def _drawn_column(choices: Sequence[Chosen]) -> str:
    has_test = all(until(chosen.best.group, TEST, chosen.after) is not None for chosen in choices)
    return TEST if has_test else choices[0].by


def _lines(chosen: Chosen) -> Iterator[str]:
    write = number_formats.share if is_share(chosen.by) else number_formats.loss
    yield f"{chosen.folder}, by {spoken(chosen.by)} after {counted(chosen.after, 'round')}"
    for place, scored in (("best", chosen.best), ("second best", chosen.second)):
        if scored is not None:
            named = best_methods.settings(scored) or scored.group.label
            yield f"  {place:<11}  {write(scored.score)}  {named}{_test(chosen, scored)}"


def _test(chosen: Chosen, scored: Scored) -> str:
    test = until(scored.group, TEST, chosen.after) if chosen.by != TEST else None
    return "" if test is None else f"  (test accuracy {number_formats.share(float(test.mean[-1]))})"


def _notes(chosen: Chosen) -> Iterator[str]:
    if chosen.second is None:
        yield f"{chosen.folder} has one method only with {chosen.by!r}: there is no second best."
    if chosen.left_out:
        yield (
            f"{chosen.folder}: {counted(chosen.left_out, 'method')} without {chosen.by!r} after "
            f"{counted(chosen.after, 'round')} not considered."
        )
