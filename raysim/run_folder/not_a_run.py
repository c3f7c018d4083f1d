"""Says what a path is that was given as a run's folder and is none, and what to do with it."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from raysim.config.messages import near
from raysim.errors import RunFolderError
from raysim.run_folder.files import RECORD, STUDY
from raysim.storage.nearby import entries
from raysim.storage.reading import json_object
from raysim.storage.remote.folder import resume_command

RUNS = Path("runs")
"""The default place of runs' folders."""


def why(path: Path) -> str:
    """Return why a path without `experiment.json` is not a run's folder, and what continues it: the end of a sentence.

    Args:
        path: of this machine; nothing needs to lie there.
    """
    if path.is_file():
        command = f": raysim run {shlex.quote(str(path))} runs its experiment" if path.suffix == ".toml" else ""
        return f"it is a file{command}."
    if not path.exists():
        found = nearby(path)
        return f"there is no such folder{or_meant(found)}"
    if os.path.lexists(path / STUDY):
        return _of_study(path)
    if (path.absolute().parent / RECORD).exists():
        return f"it belongs to the run of {path.parent}."
    found = next((each for each in entries(path) if (each / RECORD).exists()), None)
    return f"it has no {RECORD}{or_meant(found)}"


def absent(path: Path) -> str:
    """Return what to say of a path that is no folder, as a sentence."""
    if path.is_file():
        return f"{path} is a file, and no folder with runs."
    return f"There is no folder {path}{or_meant(nearby(path))}"


def in_place_of_a_file(path: Path) -> str:
    """Return what a folder is that was given as an experiment's file, and what continues it, to end a sentence."""
    if (path / RECORD).exists():
        return f"it is the folder of a run, trials or a sweep, which {resume_command(str(path))} continues."
    if os.path.lexists(path / STUDY):
        return _of_study(path)
    files = sorted(each.name for each in entries(path) if each.suffix == ".toml")
    return f"it is a folder{f': {shlex.quote(str(path / files[0]))} is a file in it' if files else ''}."


def or_meant(meant: Path | None) -> str:
    """Return how a sentence about a folder ends: with the one that was meant, if it is known."""
    return "." if meant is None else f"; did you mean {meant}?"


def nearby(path: Path) -> Path | None:
    """Return the folder with a run, trials, a sweep or a study that a path without one is likely to mean."""
    if path.is_absolute() or ".." in path.parts:
        around = [path.parent]
    else:
        if _is_known(below := RUNS / path):
            return below
        around = [path.parent, RUNS / path.parent]
    known = {each.name: each for place in around for each in entries(place) if _is_known(each)}
    name = near(path.name, known)
    return None if name is None else known[name]


def _is_known(path: Path) -> bool:
    return (path / RECORD).exists() or (path / STUDY).exists()


def _of_study(path: Path) -> str:
    try:
        name = json_object(path / STUDY, RunFolderError).get("name")
    except RunFolderError:
        name = None
    best = path / "best.toml"
    then = f", raysim run {shlex.quote(str(best))} trains its best configuration" if best.exists() else ""
    whose = f"the study {name!r:.200}" if isinstance(name, str) else "a study"
    at = "" if path == RUNS / f"{name}-tuning" else f" --path {shlex.quote(str(path))}"
    read = f"tuning.read({str(path)!r}) reads its result"
    return f"it is that of {whose}: {read}, raysim tune FILE{at} continues it{then}."
