"""Reads the files of a run's folder, and writes single ones whole: what was run, rows, evaluated clients, checkpoints.

experiment.json          the complete experiment, fingerprint, versions
rounds.parquet           one row per finished round
clients/round-*.parquet  one row per client and evaluation
checkpoints/round-*.safetensors
client_state/            what clients remember from round to round, where a correction has them do so
timeline.json            with profile: what driver and workers did when
.lock                    held by the process that writes here
"""

from __future__ import annotations

import functools
import json
import logging
import platform
import shutil
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysim.errors import CheckpointError, ExperimentError, RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.run_folder import checkpoint
from raysim.run_folder.rows import table
from raysim.run_folder.timeline import PREFIX
from raysim.server import manifest
from raysim.server.state import ServerState
from raysim.storage import atomic
from raysim.storage.remote.folder import named

log = logging.getLogger("raysim")

EVALUATIONS = ("eval/", "eval_average/", "eval_tuned/")
"""How the columns begin that only evaluated rounds have."""

STATES = "client_state"
"""The folder of the clients' own states within the run's."""

_COSTS = frozenset({"workers", "wall_time_s", "idle_fraction", "retries"})

_PACKAGES = ("raysim", "ray", "torch", "numpy", "pyarrow")

TRAFFIC = "ray_bytes_"
"""Columns that start so say what went through the object store."""


def tells_cost(column: str) -> bool:
    """Whether the column says how a round was carried out; every other one has the same bits wherever it is run."""
    return column in _COSTS or column.startswith((PREFIX, TRAFFIC))


def remove(path: Path) -> None:
    """Delete a run's folder; `RunFolder.check_free` has seen that it is one."""
    shutil.rmtree(path)


def write_experiment(path: Path, experiment: Experiment, fingerprint: str, data: str | None = None) -> None:
    """Write, or after a continuation write anew, what the folder's run is; `data` is the dataset's own fingerprint.

    The section `tuning` is left out: a run takes no notice of it, and a study's storage may have a password in it.
    """
    record = {
        "experiment": json.loads(experiment.model_copy(update={"tuning": None}).to_json()),
        "fingerprint": fingerprint,
        "data_fingerprint": data,
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }
    write_text(json.dumps(record, indent=2) + "\n", path / "experiment.json")


def write_text(text: str, path: Path) -> None:
    """Write a file of a run's folder, whole or not at all, and bring it to the disk."""
    atomic.write_text(path, text, flushed=True)
    checkpoint.sync_folder(path.parent)


def stored_experiment(path: Path) -> Experiment:
    """The experiment of a run's folder.

    Raises:
        RunFolderError: the folder has no experiment.json, or a damaged one.
        ExperimentError: this version of raysim does not know all that it says.
    """
    try:
        return Experiment.model_validate(_stored(path)["experiment"])
    except ExperimentError as error:
        raise ExperimentError(f"{named(path)} cannot be read: {error}.{other_version(path)}") from None


def stored_fingerprint(path: Path) -> str:
    """The fingerprint of a run's folder."""
    return str(_stored(path)["fingerprint"])


def stored_data_fingerprint(path: Path) -> str | None:
    """The fingerprint of the dataset that a folder's run had; None where the folder does not say."""
    found = _stored(path).get("data_fingerprint")
    return None if found is None else str(found)


def other_version(path: Path) -> str:
    """For the end of an error about a folder: which other version of raysim wrote it, and what to do; else nothing."""
    try:
        written = _stored(path).get("versions", {}).get("raysim")
    except RunFolderError:
        return ""
    if written in (None, _version("raysim")):
        return ""
    return (
        f" It was written by raysim {written}, and this is raysim {_version('raysim')}, whose settings may have other "
        f"names, defaults or meanings: go on with it by that version (pip install raysim=={written}), or start afresh."
    )


def newest_state(path: Path, fingerprint: str) -> ServerState | None:
    """The newest checkpoint that can be read, None before the first; a damaged one is named and passed over.

    Raises:
        CheckpointError: every checkpoint is damaged: going on would begin at round 0 and drop all rows. Or one is of
            another format, or of another experiment.
    """
    files = sorted((path / "checkpoints").glob("round-*.safetensors"), reverse=True)
    for file in files:
        try:
            return checkpoint.read(file, fingerprint)
        except checkpoint.DamagedError as error:
            log.warning("%s", error)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{other_version(path)}") from None
    if files:
        raise CheckpointError(f"No checkpoint in {path / 'checkpoints'} can be read; start afresh with --overwrite.")
    return None


def named_states(path: Path) -> set[tuple[int, int]]:
    """(round, chunk) of every file of clients' states that a kept checkpoint names."""
    kept = (path / "checkpoints").glob("round-*.safetensors")
    return set().union(*(manifest.files(checkpoint.read_part(file, "clients")) for file in kept))


def read_rounds(path: Path) -> pa.Table:
    """The rounds so far; an empty table before the first are written."""
    file = path / "rounds.parquet"
    try:
        return pq.read_table(file) if file.exists() else table([])
    except (pa.ArrowException, OSError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None


def read_clients(path: Path) -> pa.Table:
    """One row per client and evaluation: round, split, client, examples, loss, accuracy, and metrics of one's own.

    `tuned_loss` and `tuned_accuracy`, those after fine-tuning, stand in rows whose split is "fine_tuning/<split>".
    """
    parts = [pq.read_table(part) for part in sorted((path / "clients").glob("round-*.parquet"))]
    return pa.concat_tables(parts, promote_options="default") if parts else CLIENT_SCHEMA.empty_table()


def newest_clients(path: Path) -> pa.Table:
    """The rows of the newest evaluation, as `read_clients` has them.

    Raises:
        RunFolderError: its file is damaged.
    """
    parts = sorted((path / "clients").glob("round-*.parquet"))
    try:
        return pq.read_table(parts[-1]) if parts else CLIENT_SCHEMA.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise RunFolderError(f"{parts[-1]} is damaged: {error}") from None


CLIENT_SCHEMA = pa.schema(
    [
        ("round", pa.int64()),
        ("split", pa.string()),
        ("client", pa.string()),
        ("examples", pa.int64()),
        ("loss", pa.float64()),
        ("accuracy", pa.float64()),
        ("tuned_loss", pa.float64()),
        ("tuned_accuracy", pa.float64()),
    ]
)
"""The columns of every row; those of metrics of one's own follow."""


def client_schema(metrics: Iterable[str], tuned: bool) -> pa.Schema:
    """The columns of rows with these metrics, and where clients fine-tune, with `tuned_<name>` of each."""
    names = [name for metric in metrics for name in ([metric, f"tuned_{metric}"] if tuned else [metric])]
    return pa.schema([*CLIENT_SCHEMA, *(pa.field(name, pa.float64()) for name in names)])


def write_table(content: pa.Table, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    # A checkpoint must not survive a power cut that the rows before it did not.
    atomic.write(path, lambda file: pq.write_table(content, file), flushed=True)


def _stored(path: Path) -> Mapping[str, Any]:
    file = path / "experiment.json"
    if not file.exists():
        raise RunFolderError(f"{named(path)} is not a run's folder: it has no experiment.json.")
    try:
        stored: Mapping[str, Any] = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None
    return stored


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
