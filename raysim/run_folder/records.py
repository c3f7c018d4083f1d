"""Reads and writes the files of a run's folder: experiment, rows, evaluated clients, checkpoints.

experiment.json          the complete experiment, fingerprint, versions
rounds.parquet           one row per finished round
clients/round-*.parquet  one row per client and evaluation
checkpoints/round-*.safetensors
checkpoints/best-*.safetensors  with checkpoint.best: the model with the best evaluation
stopped.json             if `[stop]` ended the run: why
client_state/            client states, if a correction, a transform or a personalisation keeps them
timeline.json            with profile: the times of driver and workers
.lock                    locked by the process that writes here
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysim.errors import CheckpointError, ExperimentError, RunFolderError, within
from raysim.experiment import stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import StopReason
from raysim.run_folder import checkpoint, files, not_a_run
from raysim.run_folder.checked_tables import CLIENT_SCHEMA, check_reaches, checked_clients, checked_rounds
from raysim.run_folder.files import RECORD, ROUNDS
from raysim.run_folder.passed import Passed
from raysim.run_folder.rows import Row, table
from raysim.run_folder.timeline import PREFIX
from raysim.server import manifest
from raysim.server.state import ServerState
from raysim.storage import atomic, parquet, sealed, sealed_parquet
from raysim.storage.reading import MOST_BYTES, json_object, parsing, regular
from raysim.storage.remote.folder import named

log = logging.getLogger("raysim")

STOPPED = "stopped.json"

SWEEP = "sweep.json"
"""A sweep's folder has it too, written before: {"experiment": explicit keys, "values": {key: values}}."""

_RECORDED = {
    "experiment": (dict,),
    "fingerprint": (str,),
    "data_fingerprint": (str, type(None)),
    "training_clients": (int, type(None)),
    "versions": (dict,),
    "trained_by": (dict, type(None)),
    "privacy": (dict, type(None)),
    "tensors": (dict, type(None)),
    "passed": (list, type(None)),
    "passed_params": (str, type(None)),
}
"""The entries of experiment.json. One of another kind is damage: taken for a missing one, it would turn checks off."""

STATES = "client_state"
"""The folder of client states in the run's folder."""

_COSTS = frozenset({"workers", "wall_time_s", "idle_fraction", "retries"})

_PACKAGES = ("raysim", "ray", "torch", "numpy", "pyarrow")

TRAFFIC = "ray_bytes_"
"""Prefix of columns that count bytes through the object store."""


def tells_cost(column: str) -> bool:
    """Whether the column is a cost of the round's execution; every other column has the same bits on any executor."""
    return column in _COSTS or column.startswith((PREFIX, TRAFFIC))


@dataclass(frozen=True)
class PlannedFacts:
    """What experiment.json says beside the experiment; None where no plan was made.

    data: the dataset's fingerprint.
    clients: the number of its training clients.
    trained_by: the trainer, which stays the same when the run is resumed.
    privacy: what `[server.privacy]` promises; None without it.
    tensors: names and shapes of the tensors in checkpoints.
    passed: what a script passed beside the experiment.
    """

    data: str | None = None
    clients: int | None = None
    trained_by: Mapping[str, Any] | None = None
    privacy: Mapping[str, Any] | None = None
    tensors: Mapping[str, Any] | None = None
    passed: Passed | None = None


NO_FACTS = PlannedFacts()


def write_experiment(path: Path, experiment: Experiment, fingerprint: str, facts: PlannedFacts = NO_FACTS) -> None:
    """Write experiment.json, at the start of a run or of its continuation.

    The section `tuning` is left out: a run does not use it, and a study's storage may contain a password.
    """
    record = {
        "experiment": json.loads(experiment.model_copy(update={"tuning": None}).to_json()),
        "fingerprint": fingerprint,
        "data_fingerprint": facts.data,
        "training_clients": facts.clients,
        "trained_by": facts.trained_by,
        **({} if facts.privacy is None else {"privacy": facts.privacy}),
        "tensors": facts.tensors,
        **({} if facts.passed is None else facts.passed.record),
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}},
    }
    write_json(record, path / RECORD)


def write_json(record: Mapping[str, Any], path: Path) -> None:
    """Write a file of a run's folder with its checksum, completely or not at all, and flush it to the disk."""
    content = json.dumps({"checksum": sealed.BLANK, **record}, indent=2).encode() + b"\n"
    atomic.write(path, lambda file: sealed.write(file, content), flushed=True)
    checkpoint.sync_folder(path.parent)


def check_sealed(file: Path, last: bool = False) -> None:
    """Check a file of a run's folder against its checksum; see `sealed.check`.

    Raises:
        RunFolderError: it is damaged, or has no checksum.
    """
    advice = "Restore it from a copy of the folder, or start afresh (--overwrite, overwrite=True)."
    # Tables, whose mark comes last, may have any size.
    sealed.check(file, RunFolderError, advice, last, None if last else MOST_BYTES)


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


def stored_data_fingerprint(path: Path) -> str | None:
    """Read the fingerprint of the dataset of a folder's run; None if the folder does not have it."""
    fingerprint = _stored(path).get("data_fingerprint")
    return None if fingerprint is None else str(fingerprint)


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
    passed = Passed.read(_stored(path))
    # Messages and the closing table show them.
    if passed is not None and not all(name.isidentifier() for name in passed.names):
        raise RunFolderError(f"{path / RECORD} is damaged: expected keywords as its 'passed'.")
    return passed


def check_start(path: Path, passed: Passed) -> None:
    """Refuse to begin again at other initial values than those at which the run began.

    Args:
        path: a run's folder, without a checkpoint from which to go on.
        passed: what the script passes now.
    """
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


def stored_training_clients(path: Path) -> int | None:
    """Read the number of training clients of a folder's run; None if the folder does not have it."""
    clients = _stored(path).get("training_clients")
    return None if clients is None or clients < 1 else int(clients)


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


def newest_state(path: Path, fingerprint: str) -> ServerState | None:
    """Read the newest intact checkpoint, None before the first; raysim warns of a damaged one and skips it.

    Raises:
        CheckpointError: every checkpoint is damaged: to continue would begin at round 0 and drop all rows. Or one has
            another format, or belongs to another experiment.
    """
    kept = files.checkpoints(path)
    for done, file in reversed(kept.items()):
        try:
            return checkpoint.read(file, fingerprint, done)
        except checkpoint.DamagedError as error:
            log.warning("%s", error)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{other_version(path)}") from None
    if kept:
        raise CheckpointError(f"No checkpoint in {path / 'checkpoints'} can be read; start afresh with --overwrite.")
    return None


def named_states(path: Path) -> set[tuple[int, int]]:
    """Return (round, chunk) of every file of client states that a kept checkpoint names."""
    kept = files.checkpoints(path).values()
    return set().union(*(manifest.files(checkpoint.read_part(file, "clients")) for file in kept))


def read_rounds(path: Path) -> pa.Table:
    """The rounds so far; an empty table before the first are written.

    Raises:
        RunFolderError: the file is damaged, or rows are lost.
    """
    file = path / ROUNDS
    if not os.path.lexists(file):
        return table([])
    return checked_rounds(_own_table(path, file), file)


def rows_before(path: Path, done: int) -> list[Row]:
    """Read the rows of the rounds that a checkpoint has behind it.

    Raises:
        RunFolderError: as `read_rounds`; or rows are lost at the end.
    """
    rounds = read_rounds(path)
    check_reaches(rounds.num_rows, done, path / ROUNDS)
    rows: list[Row] = rounds.slice(0, done).to_pylist()
    return rows


def stop_reason(experiment: Experiment, rounds: pa.Table) -> StopReason | None:
    """Return why a run with these rows has stopped; None if it has not."""
    if not stopping.may_stop(experiment):
        return None
    known = [name for name in stopping.columns(experiment.stop) if name in rounds.column_names]
    return stopping.after_all(experiment, rounds.select(known).to_pylist()).stopped


def read_clients(path: Path) -> pa.Table:
    """Read one row per client and evaluation: round, split, client, examples, loss, accuracy, user-defined metrics.

    Rows with the split "fine_tuning/<split>" have `tuned_loss` and `tuned_accuracy`, after fine-tuning. Those with the
    split "personal/<split>" are of personal models, and have `global_loss` and `global_accuracy`, of the model of all.
    Both have the client's `training_examples`, and `label_similarity`, of its labels to those of all training clients;
    the latter also `seen`, whether the client took part.

    Raises:
        RunFolderError: a file is damaged.
    """
    parts = [clients_after(path, index) for index in files.client_files(path)]
    with parsing(path / "clients", "files with the same columns", RunFolderError):
        return pa.concat_tables(parts, promote_options="default") if parts else CLIENT_SCHEMA.empty_table()


def newest_clients(path: Path) -> pa.Table:
    """Read the rows of the newest evaluation, like `read_clients`.

    Raises:
        RunFolderError: its file is damaged.
    """
    kept = files.client_files(path)
    return clients_after(path, max(kept)) if kept else CLIENT_SCHEMA.empty_table()


def clients_after(path: Path, index: int) -> pa.Table:
    """Read the rows of the evaluation after round `index`, like `read_clients`."""
    file = files.client_file(path, index)
    return checked_clients(_own_table(path, file), file, index)


def _own_table(path: Path, file: Path) -> pa.Table:
    """Read a table of a folder's run; RunFolderError if it says that it is another run's."""
    found = read_table(file)
    if (owner := sealed_parquet.owner(file)) and owner != (own := stored_fingerprint(path)):
        raise RunFolderError(
            f"{file} belongs to a run with fingerprint {owner}, but this folder's has {own}: put back its own file, or "
            f"start afresh (--overwrite, overwrite=True)."
        )
    return found


def client_schema(metrics: Iterable[str], others: Collection[str] = ()) -> pa.Schema:
    """Return the columns of rows with these metrics; with models of clients' own, also figures under other names.

    `others`: the beginnings of these names, such as "tuned_".
    """
    names = [f"{other}{metric}" for metric in metrics for other in ("", *others)]
    figures = [f"{other}{figure}" for other in others for figure in ("loss", "accuracy")]
    facts = [("training_examples", pa.int64()), ("label_similarity", pa.float64()), ("seen", pa.bool_())]
    fields = [*CLIENT_SCHEMA, *(pa.field(name, pa.float64()) for name in (*figures, *names))]
    fields += [pa.field(name, kind) for name, kind in (facts if others else [])]
    return pa.schema(list({field.name: field for field in fields}.values()))


def write_table(content: pa.Table, path: Path, owner: str = "") -> None:
    """Write a table as Parquet with its checksum, completely or not at all. `owner` is its run's fingerprint."""
    # After a power cut, a checkpoint must not exist without the rows before it.
    atomic.write(path, lambda file: sealed_parquet.write(content, file, owner), flushed=True, then=checkpoint.THEN)


def read_table(file: Path) -> pa.Table:
    """Read a table that `write_table` wrote.

    Raises:
        RunFolderError: it is damaged, or has no checksum.
    """
    regular(file, RunFolderError)
    check_sealed(file, last=True)
    return parquet.read(file, RunFolderError)


def _stored(path: Path) -> Mapping[str, Any]:
    """Read experiment.json; every entry that it must have is there, and of its kind."""
    file = path / RECORD
    if not os.path.lexists(file):
        raise RunFolderError(f"{named(path)} is not a run's folder: {not_a_run.why(path)}")
    try:
        check_sealed(file)
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
        return "not installed"
