"""Reads and writes experiment.json: the complete experiment of a run's folder, and the facts of its plan."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any

from raysim.config.section import replaced
from raysim.errors import ExperimentError, RunFolderError, within
from raysim.experiment.experiment import Experiment
from raysim.run_folder import not_a_run
from raysim.run_folder.files import RECORD
from raysim.run_folder.passed_parts import Passed
from raysim.run_folder.sealed_record import UnreadableRecordError, check_sealed, write_json
from raysim.storage.reading import json_object, parsing
from raysim.storage.remote.folder import named

_RECORDED = MappingProxyType(
    {
        "experiment": (dict,),
        "fingerprint": (str,),
        "owner": (str, type(None)),
        "data_fingerprint": (str, type(None)),
        "training_clients": (int, type(None)),
        "versions": (dict,),
        "trained_by": (dict, type(None)),
        "privacy": (dict, type(None)),
        "tensors": (dict, type(None)),
        "passed": (list, type(None)),
        "passed_params": (str, type(None)),
        "passed_answers": (dict, type(None)),
        "passed_code": (dict, type(None)),
        "goes_on_after": (int, type(None)),
    }
)
"""The entries of experiment.json. One of another kind is damage: taken for a missing one, it would turn checks off."""


_PACKAGES = ("raysim", "ray", "torch", "numpy", "pyarrow")
_NOT_INSTALLED = "not installed"
_COMPUTING = ("raysim", "torch", "numpy")
"""Those of which a run's numbers depend, at least in their last digits."""


@dataclass(frozen=True)
class PlannedFacts:
    """What experiment.json says beside the experiment; None where no plan was made.

    data: the dataset's fingerprint.
    clients: the number of its training clients.
    trained_by: the trainer, which stays the same when the run is resumed.
    privacy: what `[server.privacy]` promises; None without it.
    tensors: names and shapes of the tensors in checkpoints.
    passed: what a script passed beside the experiment.
    owner: whose the files of the folder are; None: the run's of the fingerprint.
    goes_on_after: the number of first rounds that are another run's, from whose state the run goes on; None: it has
        begun at initial values.
    """

    data: str | None = None
    clients: int | None = None
    trained_by: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    tensors: Mapping[str, Any] | None = None
    passed: Passed | None = None
    owner: str | None = None
    goes_on_after: int | None = None


NO_FACTS = PlannedFacts()


def write_experiment(path: Path, experiment: Experiment, fingerprint: str, facts: PlannedFacts = NO_FACTS) -> None:
    """Write experiment.json, at the start of a run or of its continuation.

    The section `tuning` is left out: a run does not use it, and a study's storage may contain a password.
    """
    record = {
        "experiment": json.loads(replaced(experiment, tuning=None).to_json()),
        "fingerprint": fingerprint,
        "data_fingerprint": facts.data,
        "training_clients": facts.clients,
        "trained_by": facts.trained_by,
        **({} if facts.privacy is None else {"privacy": facts.privacy}),
        "tensors": facts.tensors,
        **({} if facts.passed is None else facts.passed.record),
        **({} if facts.owner in (None, fingerprint) else {"owner": facts.owner}),
        **({} if facts.goes_on_after is None else {"goes_on_after": facts.goes_on_after}),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }
    write_json(record, path / RECORD)


def stored_experiment(path: Path) -> Experiment:
    """Read the experiment of a run's folder.

    Raises:
        RunFolderError: the folder has no experiment.json, or a damaged one.
        ExperimentError: this version of raysim does not know all of its keys or values.
    """
    try:
        with parsing(path / RECORD, "the record of an experiment", RunFolderError):
            return Experiment.model_validate(_stored(path)["experiment"])
    except ExperimentError as error:
        raise ExperimentError(f"{named(path)} cannot be read: {within(error)}.{other_version(path)}") from None


def stored_fingerprint(path: Path) -> str:
    """Read the fingerprint of a run's folder."""
    return str(_stored(path)["fingerprint"])


def stored_owner(path: Path) -> str:
    """Read whose the files of a run's folder are: checkpoints, tables and client states say it, too.

    It tells runs apart that have the same fingerprint: see `Passed.owner`, and `branch.branch`. An earlier version took
    the fingerprint.
    """
    stored = _stored(path)
    return str(stored.get("owner") or stored["fingerprint"])


def stored_data_fingerprint(path: Path) -> str | None:
    """Read the fingerprint of the dataset of a folder's run; None if the folder does not have it."""
    fingerprint = _stored(path).get("data_fingerprint")
    return None if fingerprint is None else str(fingerprint)


def stored_training_clients(path: Path) -> int | None:
    """Read the number of training clients of a folder's run; None if the folder does not have it."""
    clients = _stored(path).get("training_clients")
    return None if clients is None or clients < 1 else int(clients)


def stored_trained_by(path: Path) -> Mapping[str, Any] | None:
    """Read the trainer of a folder's run; None if there is no folder yet, or it does not say."""
    return _stored(path).get("trained_by") if (path / RECORD).exists() else None


def stored_privacy(path: Path) -> Mapping[str, Any] | None:
    """Read what is private of a folder's run; None if nothing is to be."""
    return _stored(path).get("privacy")


def stored_tensors(path: Path) -> Mapping[str, Any] | None:
    """Read the names and shapes in a folder's checkpoints; None if there is no folder, or it does not say."""
    return _stored(path).get("tensors") if (path / RECORD).exists() else None


def stored_passed(path: Path) -> Passed | None:
    """Read what a script passed to a folder's run; None if it does not say."""
    if not (path / RECORD).exists():
        return None
    with parsing(path / RECORD, "the record of what was passed", RunFolderError):
        passed = Passed.read(_stored(path))
    # Messages and the closing table show them.
    if passed is not None and not all(name.isidentifier() for name in passed.names):
        raise RunFolderError(f"{path / RECORD} is damaged: expected keywords as its 'passed'.")
    return passed


def stored_goes_on_after(path: Path) -> int | None:
    """Read how many first rounds of a folder's run are those of another run, from whose state it goes on."""
    return _stored(path).get("goes_on_after")


def check_start(path: Path, passed: Passed) -> None:
    """Refuse to begin again at other initial values than those at which the run began, or at another run's state.

    Args:
        path: a run's folder, without a checkpoint from which to go on.
        passed: what the script passes now.
    """
    if (others := stored_goes_on_after(path)) is not None:
        raise RunFolderError(
            f"The run of {path} goes on from another run's state after {others} rounds, whose settings were other "
            f"ones, and there is no checkpoint to go on from: put back its checkpoints, or make the folder again from "
            f"the other run. Its first {others} rounds are those of the other run's folder."
        )
    had = stored_passed(path)
    if had is None or had.begins_as(passed):
        return
    if had.has_params:
        other = ", which are not those passed now" if passed.has_params else ""
        raise RunFolderError(
            f"The run of {path} began at the params= of its script{other}, and there is no checkpoint to go on from: "
            f"pass the same again."
        )
    raise RunFolderError(
        f"The run of {path} began at the experiment's initial values, and there is no checkpoint to go on from: leave "
        f"params= out, or start afresh (--overwrite, overwrite=True)."
    )


def version() -> str:
    """Return the version of raysim."""
    return _version("raysim")


def other_version(path: Path) -> str:
    """Return the end of an error about a folder that another version of raysim wrote, with advice; else nothing."""
    try:
        written = _stored(path)["versions"].get("raysim")
    except RunFolderError:
        return ""
    if written in (None, _version("raysim")):
        return ""
    return (
        f" It was written by raysim {written}, and this is raysim {_version('raysim')}, whose settings may have other "
        f"names, defaults or meanings: go on with it by that version (pip install raysim=={written}), or start afresh."
    )


def other_versions(path: Path) -> list[str]:
    """Return the packages by which a run's rounds are computed, and which had other versions when it was last begun.

    Each with both versions, as part of a sentence.
    """
    written = _stored(path)["versions"]
    had = {name: written.get(name, _NOT_INSTALLED) for name in _COMPUTING}
    # A checkout has no version: whether it is another one, nobody knows.
    return [
        f"{name} {before} before, {now} now"
        for name, before in had.items()
        if (now := _version(name)) != before and _NOT_INSTALLED not in (before, now)
    ]


def _stored(path: Path) -> Mapping[str, Any]:
    """Read experiment.json; every entry that it must have is there, and of its kind."""
    file = path / RECORD
    if not os.path.lexists(file):
        raise RunFolderError(f"{named(path)} is not a run's folder: {not_a_run.why(path)}")
    try:
        check_sealed(file)
    except UnreadableRecordError:
        raise
    except RunFolderError as error:
        raise RunFolderError(f"{error}{_written_by(file)}") from None
    stored = json_object(file, RunFolderError)
    stored.setdefault("versions", {})
    for key, kinds in _RECORDED.items():
        if not isinstance(stored.get(key), kinds):
            kind_there = f"a {type(stored[key]).__name__}" if key in stored else "none"
            raise RunFolderError(f"{file} is damaged: expected {kinds[0].__name__} as its {key!r}, found {kind_there}.")
    return stored


def _written_by(file: Path) -> str:
    """Return which version a damaged experiment.json names, as the end of an error; nothing if it names none."""
    try:
        written = json_object(file, RunFolderError)["versions"]["raysim"]
    except (RunFolderError, LookupError, TypeError):
        return ""
    return f" As far as it can be read, raysim {written} wrote it, and this is raysim {_version('raysim')}."


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return _NOT_INSTALLED
