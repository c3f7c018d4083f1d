"""Runs an experiment, resumes a run, replays a round of it, or steps through its rounds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa
from torch import Tensor

from raysim.api import executors, watched_code, watched_values
from raysim.api.beside_record import warn_of_others
from raysim.api.executors import Begins, begins
from raysim.api.interrupted import note_of_run, noting
from raysim.api.of_one_process import OfOneProcess
from raysim.api.preflight import (
    ITS_PARTS,
    ExecutorName,
    check_has_parts,
    check_one,
    check_same,
    folder_of,
    is_whole,
    opening_of,
    with_executor,
)
from raysim.config.ipython import as_printed
from raysim.data import lent_rows
from raysim.data.dataset import FederatedDataset
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.beginnings import log_beginning
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.opening import Opening
from raysim.engine.rounds.replay import ClientUpdate, replay_client, replay_round
from raysim.engine.rounds.run_status import Watcher
from raysim.engine.rounds.terminable import terminable
from raysim.errors import RunFolderError
from raysim.experiment import differences, stopping
from raysim.experiment.experiment import Experiment
from raysim.experiment.stopping import StopReason
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, Loggers, check
from raysim.models.model import Model, Weights
from raysim.run_folder import client_table, experiment_record, kept_checkpoints, round_table, stop_record
from raysim.storage.remote.folder import local_copy, read_only_copy

if TYPE_CHECKING:
    from raysim.report.progress import Progress

log = logging.getLogger("raysim")


@dataclass(frozen=True)
class Round:
    """A finished round.

    index: 0 for the first. metrics: by their fixed names, None where a figure is not defined, as in a round without an
    update. Absent in rounds that are not evaluated: names that begin with "eval", `distance_to_optimum` and
    `excess_loss`. Absent in rounds that `server.diagnostics.probe` does not measure: names that begin with "probe",
    `mean_norm_all_clients` and `seconds/probe`. cohort: client ids in sampling order. rejected: ids of clients whose
    update was not finite. clients: one row per evaluated client, None where nothing was evaluated. weights: after this
    round's server step; a copy. stopped: why the run ends with this round, if `[stop]` ends it before its last one.
    `print` shows index and newest figures in a line.
    """

    index: int
    metrics: Mapping[str, float | None]
    cohort: tuple[str, ...]
    rejected: tuple[str, ...]
    clients: pa.Table | None
    weights: Weights
    model: Model
    stopped: StopReason | None = None

    def __repr__(self) -> str:
        from raysim.report.standing import Standing

        row = {**self.metrics, "round": self.index, "rejected": len(self.rejected)}
        standing = Standing.at_start(0, 0.0).after(row, 0.0)
        return f"Round({', '.join([f'index={self.index}', *standing.quality(), *standing.trouble()])})"

    @property
    def params(self) -> dict[str, Tensor]:
        """The model after this round's server step, by name; what the next round broadcasts. A copy."""
        return self.weights.to_named(self.model)


@dataclass(frozen=True)
class Result:
    """The result of a run.

    params: the final model, name -> tensor. rounds: one row per round. clients: one row per evaluated client and
    evaluation. path: the run's folder. stopped: why `[stop]` ended the run before its last round; None: it did not.
    A notebook shows the closing table and the learning curve.
    """

    params: dict[str, Tensor] = field(repr=False)
    rounds: pa.Table = field(repr=False)
    clients: pa.Table = field(repr=False)
    path: Path
    stopped: StopReason | None = None

    def __str__(self) -> str:
        from raysim.report import closing

        experiment = self._experiment()
        lines = closing.lines(experiment, self.rounds, self.path) if experiment else [("folder", str(self.path))]
        return closing.text(lines)

    def _experiment(self) -> Experiment | None:
        """Return the recorded experiment; None if the folder was moved or deleted."""
        try:
            return experiment_record.stored_experiment(self.path)
        except RunFolderError:
            return None

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str | None:
        from raysim.report import closing, notebook

        experiment = self._experiment()
        if experiment is None:
            return None
        return notebook.html(closing.lines(experiment, self.rounds, self.path), self.rounds, experiment.name)


@takes_parts
def run(
    experiment: Experiment,
    *,
    executor: ExecutorName | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    profile: bool = False,
    loggers: Sequence[LoggerName | Log] = (),
    **parts: Unpack[Parts],
) -> Result:
    """Run an experiment to its last round and record it.

    Args:
        experiment: from `load` or `Experiment.model_validate`.
        executor: "local" runs in this process, without Ray, like `engine.workers = 0`; "ray" runs on Ray from the
            start, also where `engine.workers = "auto"` would begin in this process.
        address: None uses this machine; "auto" joins the running Ray cluster, and leaves it at the end. There the run
            continues if this process is killed: `raysim.attach` follows it, `raysim.stop` ends it.
        path: the run's folder, by default runs/<name>; or its URI, such as s3://bucket/runs/name: then the run works in
            a copy on this machine, and uploads it during the run (docs/storage.md).
        overwrite: replace the folder if it exists.
        resume: continue the folder's run if it exists; rounds, placement and checkpoints may differ from it.
        progress: a live progress bar; by default on a terminal and in a notebook.
        profile: write timeline.json, the times of driver and workers, for https://ui.perfetto.dev.
        loggers: "tensorboard", "mlflow", "wandb", or functions; each is called with every round's row.
        parts: the script's parts, each by its name in `raysim.Parts`.

    Raises:
        RaysimError: see `raysim.errors`; the run can be resumed from its last checkpoint.
        KeyboardInterrupt: after Ctrl-C, SIGTERM or `raysim stop`, once the last finished round is checkpointed. Its
            note says after which round, and how the run goes on.
    """
    check_one(experiment)
    check(loggers)
    with executors.ahead(experiment.engine, executor, address):
        plan = resolve(with_executor(experiment, executor), **parts)
        with local_copy(folder_of(experiment, path)) as where, noting(partial(note_of_run, where.absolute())):
            plan = with_kept_trainer(plan, where if resume else None)
            opening = opening_of(plan, where, resume, overwrite, profile)
            place = begins(plan.experiment.engine, executor, address)
            return _carry_out(plan, opening, place, address, progress, loggers, parts)


@takes_parts
def resume(
    path: str | Path,
    *,
    rounds: int | None = None,
    executor: ExecutorName | None = None,
    address: str | None = None,
    progress: bool | None = None,
    loggers: Sequence[LoggerName | Log] = (),
    **parts: Unpack[Parts],
) -> Result:
    """Continue a run from its newest checkpoint, with the same bits as without the stop.

    Args:
        path: the run's folder, or its URI.
        rounds: a new number of rounds, to run beyond the old last round.
        executor, address, progress, loggers: as for `run`; they may differ from the first time.
        parts: the same parts as for `run`.

    Raises:
        RunFolderError: the folder has no run, or data or settings differ, or what a module, a loss or an objective
            gives. Of other parts changed code is a warning, as far as raysim can see it (docs/results.md).
    """
    with local_copy(path) as where, noting(partial(note_of_run, where.absolute())):
        experiment = experiment_record.stored_experiment(where)
        check_one(experiment, where)
        check_has_parts(experiment, where, parts, "raysim.resume(path")
        check(loggers)
        if rounds is not None:
            experiment = experiment.changed([f"rounds={rounds}"])
        with executors.ahead(experiment.engine, executor, address):
            plan = with_kept_trainer(resolve(with_executor(experiment, executor), **parts), where)
            place = begins(plan.experiment.engine, executor, address)
            opening = opening_of(plan, where, resume=True)
            return _carry_out(plan, opening, place, address, progress, loggers, parts)


@takes_parts
def replay(
    path: str | Path,
    round: int,
    *,
    client: str | None = None,
    **parts: Unpack[Parts],
) -> Round | ClientUpdate:
    """Repeat a recorded round, or one client's update in it, in this process, with the same bits.

    A warning says if the record of the round has other figures.

    Args:
        path: the run's folder, or its URI; it is not changed.
        round: 0 for the first.
        client: an id in that round's cohort, for its update; None for the whole round.
        parts: the same parts as for `run`.

    Raises:
        RunFolderError: it has no such round or client, or data or model differ from those of the run.
    """
    with read_only_copy(path) as where:
        experiment = experiment_record.stored_experiment(where)
        check_one(experiment, where)
        check_has_parts(experiment, where, parts, "raysim.replay(path, round")
        plan = with_kept_trainer(resolve(with_executor(experiment, "local"), **parts), where)
        check_same(plan, where, ITS_PARTS)
        if client is not None:
            return replay_client(plan, where, round, client)
        again = _as_round(plan, replay_round(plan, where, round))
        warn_of_others(where, round, again.metrics)
        return again


@takes_parts
def rounds(
    experiment: Experiment,
    *,
    executor: ExecutorName | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    **parts: Unpack[Parts],
) -> Iterator[Round]:
    """Step through an experiment round by round, never more than one round ahead of the reader.

    The arguments are those of `run`; without `path` nothing is written. The experiment is checked before the iterator
    is returned, Ray's resources at the first round. Leaving the loop early stops the run. A process that is forked
    meanwhile cannot go on with it.
    """
    check_one(experiment)
    with ExitStack() as checked:
        checked.enter_context(executors.ahead(experiment.engine, executor, address))
        plan = with_kept_trainer(resolve(with_executor(experiment, executor), **parts))
        opening = None if path is None else opening_of(plan, checked.enter_context(local_copy(path)), False, overwrite)
        until_left = checked.pop_all()
    log_beginning(plan)
    place = begins(plan.experiment.engine, executor, address)
    opening = None if opening is None else opening.absolute()
    steps = executors.steps(plan, opening, place, address)
    check_code, values = watched_code.watch(plan, parts), watched_values.Watch(parts)
    return OfOneProcess(_public(plan, steps, until_left, check_code, values, parts.get("dataset")), "raysim.rounds")


def _public(
    plan: Plan,
    steps: Generator[Finished],
    until_left: ExitStack,
    check_code: Callable[[], None],
    values: watched_values.Watch,
    dataset: FederatedDataset | None,
) -> Generator[Round]:
    with until_left, closing(steps):
        try:
            for finished in steps:
                with values.around():
                    yield _as_round(plan, finished)
                check_code()
        finally:
            lent_rows.warn({} if dataset is None else dataset.splits)


def _as_round(plan: Plan, f: Finished) -> Round:
    # A copy: the run goes on with the weights, whatever its reader does to them.
    return Round(f.index, f.metrics, f.cohort, f.rejected, f.clients, f.weights.clone(), plan.stated, f.stopped)


def _warn_of_unused(experiment: Experiment, opening: Opening) -> None:
    """Say what is asked of a run that is over, and changes nothing: its folder stays as it is."""
    if opening.stopped is not None:
        log.warning("%s stays stopped: it ended %s", opening.named, stopping.text(experiment, opening.stopped))
    unused = differences.of_record(experiment_record.stored_experiment(opening.path), experiment)
    unused += ["profile has no rounds to show"] if opening.profile else []
    if unused:
        said = "; ".join(unused)
        log.warning("the run of %s is over and stays as recorded, without effect of: %s", opening.named, said)


def _result(plan: Plan, opening: Opening, path: Path, weights: Weights) -> Result:
    """Read the result of the opened folder; `path` is how the caller names it."""
    rounds, clients = round_table.read_rounds(opening.path), client_table.read_clients(opening.path)
    stopped = stop_record.stop_reason(plan.experiment, rounds)
    return Result(weights.to_named(plan.stated), rounds, clients, path, stopped)


def _carry_out(
    plan: Plan,
    opening: Opening,
    place: Begins,
    address: str | None,
    progress: bool | None,
    loggers: Sequence[LoggerName | Log],
    parts: Parts,
) -> Result:
    # Workers import raysim too: import plotting code only where it is used.
    from raysim.report import curve
    from raysim.report.progress import Silent, Terminal

    experiment, path = plan.experiment, opening.path
    # A logger, or another part of the script, may change the working folder.
    opening = opening.absolute()
    if (
        is_whole(plan, opening)
        and (state := kept_checkpoints.newest_state(path, experiment_record.stored_owner(path))) is not None
    ):
        _warn_of_unused(experiment, opening)
        with terminable(), Loggers(loggers, path, experiment) as logs:
            logs.no_more()
        if not curve.is_of_all_rounds(path, experiment):
            curve.of_run(path, experiment)
        return _result(plan, opening, path, state.weights)
    log_beginning(plan)
    show: Progress = Terminal.where_wanted(progress, experiment.rounds) or Silent()
    logs = Loggers(loggers, path, experiment)
    # Nothing else here calls code of the script.
    watched = parts if any(map(callable, loggers)) else Parts()
    check_code, values = watched_code.watch(plan, watched), watched_values.Watch(watched)

    def tell(row: Mapping[str, Any]) -> None:
        show.row(row)
        with values.around():
            logs.row(row)
        check_code()

    watcher = Watcher(show.started, tell)
    with terminable(), show, logs:
        weights = executors.run(plan, opening, place, address, watcher, curve.of_run)
    return _result(plan, opening, path, weights)
