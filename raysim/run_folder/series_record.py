"""Knows which run belongs where in a folder of trials or of a sweep: sweep.json, and whether a folder is in its place.

Folders of a series can be exchanged, or copied over one another: figures would be taken for those of another point.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from raysim.errors import ExperimentError, RaysimError, RunFolderError, within
from raysim.experiment import differences, sweep
from raysim.experiment.expand import trials_of
from raysim.experiment.experiment import Experiment
from raysim.experiment.sweep import Sweep
from raysim.run_folder import experiment_record, files
from raysim.run_folder.sealed_record import check_sealed, write_json
from raysim.storage.reading import json_object, parsing


class SeriesPlace(NamedTuple):
    """What a series says of one of its folders: its experiment, and the keys that tell the folders apart."""

    experiment: Experiment
    swept: tuple[str, ...] = ()


_TRIAL = "trial-"


def trial_folder(number: int) -> str:
    """Return the name of a trial's folder."""
    return f"{_TRIAL}{number}"


def trial_number(folder: Path) -> int:
    """Return the number of the trial in a folder, which `trial_folder` has named."""
    return int(folder.name.removeprefix(_TRIAL))


def stored_sweep(path: Path) -> tuple[Experiment, dict[str, list[Any]]] | None:
    """Read the experiment and the values of a sweep's folder; None if it holds no sweep."""
    file = path / files.SWEEP
    if not os.path.lexists(file):
        return None
    check_sealed(file)
    stored = json_object(file, RunFolderError)
    try:
        with parsing(file, "an experiment and lists of values by key", RunFolderError):
            values = stored["values"]
            if not (isinstance(values, dict) and all(isinstance(each, list) for each in values.values())):
                raise ValueError(f"its values are {values!r:.60}")
            return Experiment.model_validate(stored["experiment"]), values
    except ExperimentError as error:
        raise ExperimentError(
            f"{file} cannot be read: {within(error)}.{experiment_record.other_version(path)}"
        ) from None


def write_sweep(path: Path, experiment: Experiment, values: Sweep) -> None:
    """Write the experiment and the values of a sweep into its folder."""
    asked = {"experiment": experiment.said(), "values": {key: list(each) for key, each in values.items()}}
    write_json(asked, path / files.SWEEP)


def check_place(path: Path, place: SeriesPlace) -> None:
    """Check that a folder of a series has the record that the series says.

    Args:
        path: of a run, or of the trials of a point.
        place: what the series says of it.

    Raises:
        RunFolderError: it holds another run; names both, and how they differ.
    """
    if found := differences.of_run(experiment_record.stored_experiment(path), place.experiment, place.swept):
        raise RunFolderError(
            f"{path} holds another run than {path.parent} has as {path.name!r}: {'; '.join(found)}. Folders were "
            f"exchanged, or copied over one another: put back the one that was there."
        )


class Places:
    """The places in all series that were looked at; each series is read once."""

    def __init__(self) -> None:
        self._known: dict[Path, Mapping[str, SeriesPlace]] = {}

    def check(self, path: Path) -> None:
        """Check a folder by the series in which it lies; one that lies in none passes.

        Raises:
            RunFolderError: as of `check_place`.
        """
        path = path.absolute()
        place = self._of(path.parent).get(path.name)
        if place is not None:
            self.check(path.parent)
            check_place(path, place)

    def lacking(self) -> dict[Path, list[str]]:
        """Return, of each series that was looked at, the names of its folders that hold no run and no trials."""
        found = {
            folder: [name for name in places if not os.path.lexists(folder / name / files.RECORD)]
            for folder, places in self._known.items()
        }
        return {folder: names for folder, names in found.items() if names}

    def _of(self, folder: Path) -> Mapping[str, SeriesPlace]:
        if folder not in self._known:
            try:
                self._known[folder] = _places(folder)
            except RaysimError:
                # The runs of a series whose own record is damaged can still be read.
                self._known[folder] = {}
        return self._known[folder]


def _places(folder: Path) -> dict[str, SeriesPlace]:
    """Return the places in a folder by name; none if it holds no series."""
    if (stored := stored_sweep(folder)) is not None:
        experiment, values = stored
        return {
            point.folder: SeriesPlace(point.experiment, tuple(values)) for point in sweep.points(experiment, values)
        }
    if not os.path.lexists(folder / files.RECORD):
        return {}
    experiment = experiment_record.stored_experiment(folder)
    if experiment.trials.count < 2:
        return {}
    return {trial_folder(number): SeriesPlace(trial) for number, trial in enumerate(trials_of(experiment))}
