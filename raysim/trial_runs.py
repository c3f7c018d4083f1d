"""Run the trials of an experiment, and put their results together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import numpy.typing as npt
import pyarrow as pa

from raysim import api, differences, records, summary
from raysim.api import ExecutorName, Result
from raysim.data.dataset import FederatedDataset
from raysim.engine.resolve import resolve
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName, check
from raysim.models.model import ModuleFactory
from raysim.models.task import Loss
from raysim.records import RunFolder
from raysim.trials import trials_of


@dataclass(frozen=True)
class TrialsResult:
    """What the trials of an experiment leave.

    trials: each one's result, in order; their folders are `path / "trial-0"` and so on. summary: mean and standard
    deviation of every figure, one row per round (raysim/summary.py). path: the folder of all. A notebook shows it as
    the closing table and the learning curve.
    """

    trials: tuple[Result, ...]
    summary: pa.Table = field(repr=False)
    path: Path

    def _repr_html_(self) -> str | None:
        from raysim.report import closing_trials, notebook

        try:
            experiment = records.stored_experiment(self.path)
        except RunFolderError:
            return None
        lines = closing_trials.lines(experiment, self.summary, self.path)
        means, deviations = summary.part(self.summary, summary.MEAN), summary.part(self.summary, summary.DEVIATION)
        return notebook.html(lines, means, experiment.name, deviations)

    @property
    def rounds(self) -> pa.Table:
        """All trials' rounds, with the column `trial` first."""
        return _numbered([result.rounds for result in self.trials])

    @property
    def clients(self) -> pa.Table:
        """All trials' evaluated clients, with the column `trial` first."""
        return _numbered([result.clients for result in self.trials])


def run_trials(
    experiment: Experiment,
    *,
    dataset: FederatedDataset | None = None,
    model: ModuleFactory | None = None,
    loss: Loss | None = None,
    params: Mapping[str, npt.ArrayLike] | None = None,
    executor: ExecutorName | None = None,
    address: str | None = None,
    path: str | Path | None = None,
    overwrite: bool = False,
    resume: bool = False,
    progress: bool | None = None,
    profile: bool = False,
    loggers: Sequence[LoggerName | Log] = (),
    started: Callable[[int, Experiment], None] = lambda number, trial: None,
) -> TrialsResult:
    """Run all trials of an experiment, one after the other, in one connection to Ray.

    Args:
        experiment: its `trials` say how many, and what varies.
        dataset, model, loss, params: as for `run`, the same for every trial; passed in, they do not vary.
        executor, address, progress, profile: as for `run`.
        loggers: as for `run`; those named are opened for each trial, in its own folder.
        path: the folder of all, by default runs/<name>.
        overwrite: start afresh where the folder exists.
        resume: go on with the folder: finished trials are read, others continued, and there may be more than before.
        started: told the number of a trial, from 0, and its experiment, when it begins.

    Raises:
        RaysimError: as `run`; trials that were finished before are kept.
    """
    if experiment.trials.count < 2:
        raise ExperimentError("The experiment asks for one trial: set `trials` to a number, or call raysim.run.")
    check(loggers)
    where = Path(path) if path is not None else Path("runs") / experiment.name
    goes_on = resume and where.exists()
    if goes_on:
        _check_same(experiment, where)
    else:
        RunFolder.check_free(where, overwrite)
    placed = api.with_executor(experiment, executor)
    # What is wrong with the first trial is wrong before anything on the disk is touched.
    resolve(trials_of(placed)[0], dataset, model, loss, params)
    results = []
    with _one_connection(placed, address):
        if where.exists() and not goes_on:
            records.remove(where)
        where.mkdir(parents=True, exist_ok=True)
        records.write_experiment(where, experiment, "")
        for number, trial in enumerate(trials_of(experiment)):
            started(number, trial)
            result = api.run(
                trial,
                dataset=dataset,
                model=model,
                loss=loss,
                params=params,
                executor=executor,
                address=address,
                path=where / f"trial-{number}",
                resume=goes_on,
                progress=progress,
                profile=profile,
                loggers=loggers,
            )
            results.append(result)
            # After every trial: what there is can be looked at while the others run.
            table = summary.summarise([done.rounds for done in results])
            records.write_table(table, where / "summary.parquet")
            _draw(table, where, f"{experiment.name}, {len(results)} trials")
    return TrialsResult(tuple(results), table, where)


def _check_same(experiment: Experiment, path: Path) -> None:
    """The folder holds trials of this experiment, no more of them than it asks for."""
    stored = records.stored_experiment(path)
    if stored.trials.count < 2:
        raise RunFolderError(f"{path} holds one run and no trials: give the trials another folder (--path, path=).")
    found = differences.settings(stored, experiment)
    if stored.trials.vary != experiment.trials.vary:
        found.append(f"trials.vary was {list(stored.trials.vary)}, and is {list(experiment.trials.vary)}")
    if found:
        raise RunFolderError(
            f"{path} holds trials with other settings: {'; '.join(found)}. Give the trials another folder (--path, "
            f"path=), or start afresh (--overwrite, overwrite=True)."
        )
    if experiment.trials.count < stored.trials.count:
        raise RunFolderError(
            f"{path} holds {stored.trials.count} trials, so it cannot go on with {experiment.trials.count} only."
        )


def _one_connection(experiment: Experiment, address: str | None) -> AbstractContextManager[None]:
    """Ray starts once for all trials, where it is wanted."""
    if experiment.engine.workers == 0:
        return nullcontext()
    from raysim.engine.on_ray.cluster import connected

    return connected(address)


def _draw(table: pa.Table, where: Path, title: str) -> None:
    from raysim.report import curve

    means, deviations = summary.part(table, summary.MEAN), summary.part(table, summary.DEVIATION)
    curve.draw(means, where / "curve.png", title, deviations)


def _numbered(tables: list[pa.Table]) -> pa.Table:
    numbered = [t.add_column(0, "trial", pa.array([i] * t.num_rows, pa.int64())) for i, t in enumerate(tables)]
    return pa.concat_tables(numbered, promote_options="default")
