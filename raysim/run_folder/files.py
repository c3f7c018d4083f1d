"""Names the files of a run's folder, and lists those with numbers: checkpoints, best models, evaluated clients.

experiment.json          the complete experiment, fingerprint, versions
rounds.parquet           one row per finished round
clients/round-*.parquet  one row per client and evaluation
checkpoints/round-*.safetensors
checkpoints/best-*.safetensors  with checkpoint.best: the model with the best evaluation
stopped.json             if `[stop]` ended the run: why
client_state/            client states, if a correction, a transform or a personalisation keeps them
timeline.json            with profile: the times of driver and workers
.lock                    locked by the process that writes here

Only names that raysim writes count. A file manager's copy ("round-000003 (copy).parquet") is left alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from raysim.errors import RunFolderError
from raysim.storage.reading import listed

RECORD, ROUNDS = "experiment.json", "rounds.parquet"
"""The experiment and the rows of a run's folder; a folder with the first holds a run, trials or a sweep."""

STUDY = "study.json"
"""What a study's folder has, in place of an experiment."""

SWEEP = "sweep.json"
"""A sweep's folder has it too, written before: {"experiment": explicit keys, "values": {key: values}}."""

STATES = "client_state"
"""The folder of client states in the run's folder."""

_NUMBER = r"round-(\d{6}|[1-9]\d{6,17})"
_CHECKPOINT = re.compile(rf"{_NUMBER}\.safetensors", re.ASCII)
_CLIENTS = re.compile(rf"{_NUMBER}\.parquet", re.ASCII)
_BEST = re.compile(r"best-(\d{6}|[1-9]\d{6,17})\.safetensors", re.ASCII)


_FOLDERS = ("checkpoints", "clients", STATES)
_ENDINGS = (".json", ".parquet", ".db", ".lock")


def check_is_no_record(file: Path) -> None:
    """Raise RunFolderError if a file is one that a run, a sweep or a study records itself in."""
    # `Path.resolve` raises an error for links that go round in a circle.
    place = Path(os.path.realpath(file))
    for folder in place.parents:
        if not any((folder / name).exists() for name in (RECORD, STUDY)):
            continue
        within = place.relative_to(folder)
        in_folder = len(within.parts) > 1 and within.parts[0] in _FOLDERS
        if in_folder or (len(within.parts) == 1 and place.exists() and place.name.endswith(_ENDINGS)):
            raise RunFolderError(f"{file} is a file of what {folder} records: choose another place.")


def checkpoint_file(path: Path, done: int) -> Path:
    """Return the place of the checkpoint after `done` rounds."""
    return path / "checkpoints" / f"round-{done:06d}.safetensors"


def best_file(path: Path, done: int) -> Path:
    """Return the place of the model after `done` rounds, if it was the best so far."""
    return path / "checkpoints" / f"best-{done:06d}.safetensors"


def client_file(path: Path, index: int) -> Path:
    """Return the place of the clients that were evaluated after round `index`."""
    return path / "clients" / f"round-{index:06d}.parquet"


def checkpoints(path: Path) -> dict[int, Path]:
    """Return the checkpoints of a run's folder by number of rounds, in order."""
    return _numbered(path / "checkpoints", _CHECKPOINT)


def best_models(path: Path) -> dict[int, Path]:
    """Return the kept best models of a run's folder by number of rounds, in order."""
    return _numbered(path / "checkpoints", _BEST)


def client_files(path: Path) -> dict[int, Path]:
    """Return the tables of evaluated clients by round, in order."""
    return _numbered(path / "clients", _CLIENTS)


def _numbered(folder: Path, name: re.Pattern[str]) -> dict[int, Path]:
    # Not `is_dir`: a file in its place, or a link that leads nowhere, would be taken for a run without any.
    if not os.path.lexists(folder):
        return {}
    matches = ((name.fullmatch(file.name), file) for file in listed(folder, RunFolderError))
    return dict(sorted((int(match[1]), file) for match, file in matches if match))
