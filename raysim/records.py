"""A run's folder: what was run, a row a round, a row per evaluated client, the last checkpoints.

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
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raysim import checkpoint, lock, whole
from raysim.elsewhere.folder import named
from raysim.errors import CheckpointError, RunFolderError
from raysim.experiment import Experiment
from raysim.rows import Row, Rows, table
from raysim.server import manifest
from raysim.server.state import ServerState
from raysim.timeline import PREFIX, Span, Timeline

log = logging.getLogger("raysim")

FLUSH_S = 5.0
"""Rounds reach the disk at least this often, so that a run can be looked at while it goes on."""

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


class RunFolder:
    """Writes one run's folder: `create` makes it, `reopen` opens it for a run or its continuation."""

    def __init__(self, path: Path, fingerprint: str, keep: int, profile: bool = False) -> None:
        self.path = path
        self._fingerprint = fingerprint
        self._keep = keep
        self._rows = Rows()
        self._flushed_s = time.monotonic()
        self._timeline = Timeline(path / "timeline.json") if profile else None
        self.checkpointed = 0

    @staticmethod
    def create(
        path: Path, experiment: Experiment, fingerprint: str, overwrite: bool = False, data: str | None = None
    ) -> None:
        """Make a new folder; see `check_free` for the errors, `write_experiment` for what is written.

        Whoever calls this holds the folder's lock, or knows that nobody else writes there.
        """
        RunFolder._check_empty(path, overwrite)
        if path.exists():
            _clear(path)
        (path / "checkpoints").mkdir(parents=True)
        (path / "clients").mkdir()
        write_experiment(path, experiment, fingerprint, data)

    @staticmethod
    def check_free(path: Path, overwrite: bool = False) -> None:
        """Touch nothing, but see whether a folder may be made.

        Raises:
            RunFolderError: there is a run already, and `overwrite` was not asked for; or it is something else; or
                another process writes to it.
        """
        if (path / "experiment.json").exists():
            lock.check_free(path)
        RunFolder._check_empty(path, overwrite)

    @staticmethod
    def _check_empty(path: Path, overwrite: bool) -> None:
        if path.exists() and not path.is_dir():
            raise RunFolderError(f"{path} is a file, so no run's folder can be made there.")
        if path.exists() and any(entry.name != lock.FILE for entry in path.iterdir()):
            if not overwrite:
                raise RunFolderError(
                    f"{named(path)} exists already. Go on with it (--resume, raysim.resume({named(path)!r})), start "
                    f"afresh (--overwrite, overwrite=True), or give the run another name."
                )
            if not (path / "experiment.json").exists():
                raise RunFolderError(
                    f"{path} is not a run's folder (it has no experiment.json), so it is not overwritten."
                )

    @classmethod
    def reopen(cls, path: Path, experiment: Experiment, profile: bool = False) -> tuple[RunFolder, ServerState | None]:
        """Open a run's folder to go on with it: the newest intact checkpoint, and the rows of the rounds before it.

        Rows of later rounds are dropped: those rounds will be run, and written, again. With `profile`, what driver and
        workers do from here on goes to timeline.json.
        """
        folder = cls(path, stored_fingerprint(path), experiment.checkpoint.keep, profile)
        state = newest_state(path, folder._fingerprint)
        done = state.round if state else 0
        folder.checkpointed = done
        rows = [row for row in read_rounds(path).to_pylist() if row["round"] < done]
        if done % experiment.evaluation.every and done < experiment.rounds:
            # The round was evaluated because it was to be the last, which it no longer is.
            rows[-1:] = [
                {name: value for name, value in row.items() if not name.startswith(EVALUATIONS)} for row in rows[-1:]
            ]
            _client_part(path, done - 1).unlink(missing_ok=True)
        for part in (path / "clients").glob("round-*.parquet"):
            if _round_of(part) >= done:
                part.unlink()
        folder._rows = Rows(rows)
        folder.flush()
        return folder, state

    @property
    def rows(self) -> Sequence[Row]:
        """A row per finished round, those before a resume included; it grows while the run goes on."""
        return self._rows

    def add(self, row: Row, clients: pa.Table | None, spans: Iterable[Span] = ()) -> None:
        """Record a finished round, and its evaluated clients where there are some."""
        self._rows.append(row)
        if self._timeline is not None:
            self._timeline.add(spans)
        if clients is not None:
            write_table(clients, _client_part(self.path, row["round"]))
        if time.monotonic() - self._flushed_s > FLUSH_S:
            self.flush()

    def flush(self) -> None:
        """Write the rows so far.

        Raises:
            CheckpointError: the disk is full, or the folder cannot be written; what was there is untouched.
        """
        file = self.path / "rounds.parquet"
        try:
            write_table(self._rows.packed(), file)
        except OSError as error:
            raise CheckpointError(
                f"{file} could not be written: {error.strerror}. The last checkpoint and its rows are untouched: make "
                f"room, then resume."
            ) from error
        self._flushed_s = time.monotonic()

    def checkpoint(self, state: ServerState) -> None:
        """Write rows and state; then let go of all but the newest `keep` checkpoints."""
        self.flush()
        folder = self.path / "checkpoints"
        checkpoint.write(state, folder / f"round-{state.round:06d}.safetensors", self._fingerprint)
        self.checkpointed = state.round
        for old in sorted(folder.glob("round-*.safetensors"))[: -self._keep]:
            old.unlink()

    def named_states(self) -> set[tuple[int, int]]:
        """(round, chunk) of every file of clients' states that a kept checkpoint names."""
        kept = (self.path / "checkpoints").glob("round-*.safetensors")
        return set().union(*(manifest.files(checkpoint.read_part(file, "clients")) for file in kept))


def _clear(path: Path) -> None:
    """Delete what is in a run's folder, but for its lock: a lock that others may look at stays the same file."""
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != lock.FILE:
            entry.unlink()


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
    whole.write_text(path, text, flushed=True)
    checkpoint.sync_folder(path.parent)


def stored_experiment(path: Path) -> Experiment:
    """The experiment of a run's folder."""
    return Experiment.model_validate(_stored(path)["experiment"])


def stored_fingerprint(path: Path) -> str:
    """The fingerprint of a run's folder."""
    return str(_stored(path)["fingerprint"])


def stored_data_fingerprint(path: Path) -> str | None:
    """The fingerprint of the dataset that a folder's run had; None where the folder does not say."""
    found = _stored(path).get("data_fingerprint")
    return None if found is None else str(found)


def newest_state(path: Path, fingerprint: str) -> ServerState | None:
    """The newest checkpoint that can be read, None before the first; a damaged one is named and passed over.

    Raises:
        CheckpointError: every checkpoint is damaged: going on would begin at round 0 and drop all rows.
    """
    files = sorted((path / "checkpoints").glob("round-*.safetensors"), reverse=True)
    for file in files:
        try:
            return checkpoint.read(file, fingerprint)
        except checkpoint.DamagedError as error:
            log.warning("%s", error)
    if files:
        raise CheckpointError(f"No checkpoint in {path / 'checkpoints'} can be read; start afresh with --overwrite.")
    return None


def read_rounds(path: Path) -> pa.Table:
    """The rounds so far; an empty table before the first are written."""
    file = path / "rounds.parquet"
    try:
        return pq.read_table(file) if file.exists() else table([])
    except (pa.ArrowException, OSError) as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None


def read_clients(path: Path) -> pa.Table:
    """One row per client and evaluation: round, split, client, examples, loss, accuracy.

    `tuned_loss` and `tuned_accuracy`, those after fine-tuning, stand in rows whose split is "fine_tuning/<split>".
    """
    parts = [pq.read_table(part) for part in sorted((path / "clients").glob("round-*.parquet"))]
    return pa.concat_tables(parts) if parts else CLIENT_SCHEMA.empty_table()


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


def write_table(content: pa.Table, path: Path) -> None:
    """Write a table as Parquet, whole or not at all."""
    # A checkpoint must not survive a power cut that the rows before it did not.
    whole.write(path, lambda file: pq.write_table(content, file), flushed=True)


def _stored(path: Path) -> Mapping[str, Any]:
    file = path / "experiment.json"
    if not file.exists():
        raise RunFolderError(f"{named(path)} is not a run's folder: it has no experiment.json.")
    try:
        stored: Mapping[str, Any] = json.loads(file.read_text())
    except json.JSONDecodeError as error:
        raise RunFolderError(f"{file} is damaged: {error}") from None
    return stored


def _client_part(path: Path, index: int) -> Path:
    return path / "clients" / f"round-{index:06d}.parquet"


def _round_of(part: Path) -> int:
    return int(part.stem.removeprefix("round-"))


@functools.cache
def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
