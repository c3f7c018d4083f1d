"""Reads what a folder has recorded: the result of a run, of trials or of a sweep, in a session that has not run it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from torch import Tensor

from raysim.api import series, sweeps, trials
from raysim.api.run import Result
from raysim.api.series import Member
from raysim.api.sweeps import SweepResult
from raysim.api.trials import TrialsResult
from raysim.errors import RunFolderError
from raysim.experiment import sweep
from raysim.models.layout import Layout
from raysim.run_folder import (
    client_table,
    experiment_record,
    files,
    kept_checkpoints,
    lost_checkpoint,
    round_table,
    stop_record,
)
from raysim.run_folder.series_record import stored_sweep
from raysim.storage.reading import parsing
from raysim.storage.remote.folder import named, read_only_copy

log = logging.getLogger("raysim")


def read(path: str | Path) -> Result | TrialsResult | SweepResult:
    """Read the result that a folder has so far; nothing is run or written, and no data or parts are needed.

    Args:
        path: the folder of a run, of trials or of a sweep, or its URI. `params` of a run are those of its newest
            checkpoint, which may be older than the newest row while the run is under way (once it is over, a warning
            says so), and {} before the first one. Trials and points that have not begun are left out; a point of
            several trials has begun with the last.

    Raises:
        RunFolderError: it is not such a folder, or nothing in it has begun, or a file in it is damaged, or folders were
            exchanged.
        CheckpointError: no checkpoint of a run can be read.
    """
    with read_only_copy(path) as where:
        stored = stored_sweep(where)
        if stored is not None:
            members = sweeps.members(*stored, where)
            results = {member.path: _run(member.path, of_model=False) for member in _begun(members, stored[1])}
            found = sweeps.together(sweep.points(*stored), results, where)
            if not found.points:
                all_trials = " with all of its trials" if stored[0].trials.count > 1 else ""
                raise RunFolderError(f"{named(where)} holds a sweep, no point of which has begun{all_trials}.")
            return found
        experiment = experiment_record.stored_experiment(where)
        if experiment.trials.count < 2:
            return _run(where)
        begun = _begun(trials.members_of(experiment, where))
        if not begun:
            raise RunFolderError(f"{named(where)} holds trials, none of which has begun.")
        return trials.together([_run(member.path) for member in begun], where)


def _begun(members: Sequence[Member], swept: Iterable[str] = ()) -> list[Member]:
    begun = [member for member in members if (member.path / files.RECORD).exists()]
    series.check_places(begun, swept)
    for warning in _of_other_data(begun):
        log.warning("%s", warning)
    return begun


def _of_other_data(begun: Sequence[Member]) -> Iterator[str]:
    """Yield a sentence for each run whose data are not those of a run before, which the series says are the same."""
    # Workers import raysim too.
    from raysim.report.same_data import draws_by_seed

    first: dict[tuple[str, int | None], tuple[Path, str]] = {}
    for path, experiment in begun:
        data, found = experiment.data, experiment_record.stored_data_fingerprint(path)
        if data is None or found is None:
            continue
        seed = (experiment.seed if data.seed is None else data.seed) if draws_by_seed(data) else None
        other, expected = first.setdefault((data.model_dump_json(exclude={"seed"}), seed), (path, found))
        if found != expected:
            yield (
                f"{named(path)} was run on other data than {named(other)}: its folder was exchanged, or the data's "
                f"files were changed meanwhile. Means over both mean little"
            )


def _run(path: Path, of_model: bool = True) -> Result:
    rounds = round_table.read_rounds(path)
    stopped = stop_record.stop_reason(experiment_record.stored_experiment(path), rounds)
    client_table.warn_of_lost_clients(path, rounds)
    return Result(_params(path) if of_model else {}, rounds, client_table.read_clients(path), path, stopped)


def _params(path: Path) -> dict[str, Tensor]:
    """Return the newest checkpoint's model by the names that the folder records."""
    recorded = experiment_record.stored_tensors(path)
    state = kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))
    if recorded is None or state is None:
        return {}
    lost_checkpoint.warn(path, state)
    params: dict[str, Tensor] = {}
    with parsing(path / files.RECORD, "names and shapes of the tensors in checkpoints", RunFolderError):
        for part, record in recorded.items():
            params |= Layout.recorded(record).views(getattr(state.weights, part))
    return {name: tensor.clone() for name, tensor in params.items()}
