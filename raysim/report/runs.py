"""Finds runs below a folder and reads their records, for reports and comparisons."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from raysim.config.counted import counted
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import StopReason
from raysim.report import series
from raysim.run_folder import client_table, experiment_record, files, not_a_run, round_table, stop_record, timeline
from raysim.run_folder.rows import table
from raysim.run_folder.series_record import Places
from raysim.run_folder.timeline import Span
from raysim.storage import atomic
from raysim.storage.remote.folder import read_only_copy, with_uri

log = logging.getLogger("raysim")

NAMED = 3
"""With more columns or runs a note would be too long."""

_PARTS = frozenset({"checkpoints", "clients", files.STATES})
"""A run's folders that contain no other run; they may hold very many files."""


class Note(NamedTuple):
    """A sentence that a reader must know of a run: what comes before the name of its folder, and what behind it."""

    before: str
    after: str

    def of(self, paths: Sequence[Path]) -> str:
        """Return the sentence about these runs."""
        if len(paths) == 1:
            return f"{self.before}{paths[0]}{self.after}"
        more = len(paths) - NAMED
        *named, last = [*map(str, paths[:NAMED]), *([counted(more, "more run")] if more > 0 else [])]
        each = "each of" if self.before else "Each of"
        return f"{self.before}{each} {', '.join(named)} and {last}{self.after}"


@dataclass(frozen=True)
class Run:
    """The present record of one run.

    rounds: a row per finished round. clients: a row per client of the newest evaluation. data_fingerprint: of its
    dataset, None if an older raysim did not record it. cautions: notes that a reader must know. training_clients: of
    its dataset, None likewise. passed: keywords of the parts that a script passed. code: digests of the code of those
    that have such. goes_on_after: how many of its first rounds are another run's; 0: none. origin: of such a run, what
    tells the state from which it goes on from others.
    """

    path: Path
    experiment: Experiment
    fingerprint: str
    data_fingerprint: str | None
    rounds: pa.Table
    clients: pa.Table
    cautions: tuple[Note, ...] = ()
    training_clients: int | None = None
    passed: tuple[str, ...] = ()
    code: Mapping[str, str] = field(default_factory=dict)
    goes_on_after: int = 0
    origin: str | None = None

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know, as sentences."""
        return tuple(note.of([self.path]) for note in self.cautions)

    @property
    def stopped(self) -> StopReason | None:
        """Why `[stop]` has ended it before its last round; None: it has not."""
        return stop_record.stop_reason(self.experiment, self.rounds)

    @property
    def seeds(self) -> tuple[int, int, int, int]:
        """The seeds of run, data, model and cohort, which trials vary."""
        e = self.experiment
        of_sections = (None if section is None else section.seed for section in (e.data, e.model, e.cohort))
        data, model, cohort = (e.seed if seed is None else seed for seed in of_sections)
        return e.seed, data, model, cohort

    def spans(self) -> list[Span]:
        """Return the timeline of driver and workers if the run was profiled, else an empty list."""
        file = self.path / "timeline.json"
        try:
            return timeline.read(file) if os.path.lexists(file) else []
        except RunFolderError as error:
            log.warning("the timeline of %s is left out: %s", self.path, error)
            return []


def read_all(folders: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Return the runs in these folders, in order, each once, and notes: on unreadable runs and lost ones, then others.

    What is true of several runs is one note.

    A folder is a run's, or holds any number of them at any depth: trials, the points of a sweep, a `runs` folder. It
    may be the URI of a run, of trials or of a sweep.

    Raises:
        RunFolderError: a folder is missing or contains no run, or no run can be read.
    """
    runs, unread, places = list[Run](), list[str](), Places()
    if list(folders) == sorted(folders):
        # A shell lists what a pattern matches by letters: m10 before m5.
        folders = sorted(folders, key=_natural)
    found = dict(_found(folder) for folder in folders)
    for path in dict.fromkeys(path for paths in found.values() for path in paths):
        shown = _short(path)
        try:
            run = read(shown)
            places.check(path)
        except (RunFolderError, ExperimentError) as error:
            unread.append(with_uri(f"{shown} is left out: {error}", path))
            continue
        runs.append(run)
    if not runs:
        raise RunFolderError("No run can be read. " + " ".join(unread))
    # Who asks for some of a series only knows that it has others.
    whole = {top: names for top, names in places.lacking().items() if any(top.is_relative_to(asked) for asked in found)}
    lost = [with_uri(_lacks(top, names), top) for top, names in whole.items()]
    return runs, [*unread, *lost, *_told(runs)]


def _lacks(series: Path, names: Sequence[str]) -> str:
    """Return what a folder of trials or of a sweep has not got; means and pictures are of the rest."""
    more = [counted(len(names) - NAMED, "more folder")] if len(names) > NAMED else []
    return f"{_short(series)} lacks {', '.join([*names[:NAMED], *more])}: not begun yet, or lost."


def _told(runs: Sequence[Run]) -> list[str]:
    """Return the notes on these runs, in the order of the first run that each is about."""
    about: dict[Note, list[Path]] = {}
    for run in runs:
        for note in run.cautions:
            about.setdefault(note, []).append(run.path)
    return [with_uri(note.of(paths), paths[0]) for note, paths in about.items()]


def _found(folder: Path) -> tuple[Path, list[Path]]:
    """Return the folder, or the copy of it, and the folders of runs there."""
    with read_only_copy(folder) as copy:
        return copy.resolve(), [path.resolve() for path in find(copy)]


def find(folder: Path) -> list[Path]:
    """Return the folders of single runs at or below `folder`; numbers in their names sort as numbers.

    Raises:
        RunFolderError: there is no such folder, or no run in it.
    """
    if not folder.is_dir():
        raise RunFolderError(not_a_run.absent(folder))
    found = sorted(_recorded(folder), key=_natural)
    if not found:
        raise RunFolderError(f"No run lies in {folder}: neither it nor a folder below it has an {files.RECORD}.")
    return found


def read(path: Path) -> Run:
    """Read one run; damaged parts are left out, with a note.

    Raises:
        RunFolderError, ExperimentError: its experiment.json is damaged, or not of this version.
    """
    experiment, notes = experiment_record.stored_experiment(path), list[Note]()
    passed = experiment_record.stored_passed(path)
    try:
        rounds = round_table.read_rounds(path)
    except RunFolderError as error:
        rounds = table([])
        notes.append(Note("The rounds of ", f" are left out: {error}"))
    else:
        reason = stop_record.stop_reason(experiment, rounds)
        if reason is not None:
            notes.append(Note("", f" has stopped {stopping.text(experiment, reason)}."))
        elif rounds.num_rows < experiment.rounds:
            finished = f"{rounds.num_rows:,} of {experiment.rounds:,} rounds"
            going = "it is still going, or was stopped, and is shown as far as it is."
            notes.append(Note("", f" has finished {finished}: {going}"))
    goes_on_after = experiment_record.stored_goes_on_after(path) or 0
    if goes_on_after:
        first = "round is" if goes_on_after == 1 else f"{goes_on_after:,} rounds are"
        notes.append(
            Note("", f" goes on from another run: its first {first} that run's, whose settings may be others.")
        )
    if (privacy := experiment_record.stored_privacy(path)) is not None:
        notes.append(_private(privacy, rounds))
    try:
        clients = client_table.newest_clients(path, rounds)
    except RunFolderError as error:
        clients = client_table.CLIENT_SCHEMA.empty_table()
        notes.append(Note("The clients of ", f" are left out: {error}"))
    clients, large = series.without_large(clients)
    lacking = series.left_out(rounds) | {f"the clients' {name}": count for name, count in large.items()}
    if lacking:
        notes.append(_left_out(lacking))
    return Run(
        path,
        experiment,
        experiment_record.stored_fingerprint(path),
        experiment_record.stored_data_fingerprint(path),
        rounds,
        clients,
        tuple(notes),
        experiment_record.stored_training_clients(path),
        () if passed is None else passed.names,
        {} if passed is None else passed.code,
        goes_on_after,
        experiment_record.stored_owner(path) if goes_on_after else None,
    )


def _left_out(lacking: Mapping[str, int]) -> Note:
    """Return which values pictures and tables lack."""
    named = [f"{counted(lacking[name], 'value')} of {name}" for name in list(lacking)[:NAMED]]
    others = [counted(len(lacking) - NAMED, "more column")] if len(lacking) > NAMED else []
    return Note(
        "Pictures and tables of ",
        f" leave out values that are not finite, or larger than {series.LARGEST:g} in size: "
        f"{', '.join([*named, *others])}.",
    )


def _private(privacy: Mapping[str, Any], rounds: pa.Table) -> Note:
    """Return what is private of a run, and what is not."""
    private, others = (", ".join(map(str, privacy.get(key, ()))) for key in ("private", "not_private"))
    if not private:
        return Note("Nothing of ", f" is private: {others}.")
    spent = rounds["epsilon"].drop_null().to_pylist() if "epsilon" in rounds.column_names else []
    after = f" after round {rounds.num_rows:,}, at epsilon = {spent[-1]:g} and" if spent else ", at"
    return Note(
        "Of ",
        f" this is private{after} delta = {privacy.get('delta')} ({privacy.get('neighbours')}; "
        f"all planned rounds: {privacy.get('event')}): {private}. This is not: {others}.",
    )


def _recorded(top: Path) -> list[Path]:
    """Return folders with a record and no record below: the folder of trials, or of a sweep, also has a record.

    Each folder is visited once: links may lead back to a folder above.
    """
    found: list[Path] = []
    seen: set[tuple[int, int]] = set()
    left = [top]
    while left:
        folder = left.pop()
        try:
            here = folder.stat()
            if (here.st_dev, here.st_ino) in seen:
                continue
            seen.add((here.st_dev, here.st_ino))
            has_record = os.path.lexists(folder / files.RECORD)
            # Not `DirEntry.is_dir`, which raises an error for a link that leads to itself.
            names = [name for name in os.listdir(folder) if not atomic.is_beside(Path(name))]
            below = [name for name in names if os.path.isdir(folder / name)]
        except OSError as error:
            log.warning("%s is left out, because it cannot be read: %s", folder, error.strerror)
            continue
        if has_record:
            found.append(folder)
        left += [folder / name for name in sorted(below) if not (has_record and name in _PARTS)]
    above = {parent for folder in found for parent in folder.parents}
    return [folder for folder in found if folder not in above]


def _natural(path: Path) -> list[tuple[float, str]]:
    """Sort key: m5 before m10."""
    parts = re.split(r"(\d+(?:\.\d+)?)", str(path))
    return [(float(part), "") if i % 2 else (-1.0, part) for i, part in enumerate(parts)]


def _short(path: Path) -> Path:
    """Return the path relative to the working folder if it lies below it."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) and path != here else path
