"""A series: several runs in one folder, carried out in one connection to Ray. Trials and sweeps are series."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy.typing as npt

from raysim import api, records
from raysim.api import ExecutorName, Result
from raysim.data.dataset import FederatedDataset
from raysim.engine.resolve import resolve
from raysim.experiment import Experiment
from raysim.loggers.logger import Log
from raysim.loggers.open import LoggerName
from raysim.models.model import ModuleFactory
from raysim.models.task import Loss
from raysim.records import RunFolder
from raysim.server.own import Maker


class Member(NamedTuple):
    """One run of a series, and its folder."""

    path: Path
    experiment: Experiment


@dataclass(frozen=True)
class Arguments:
    """What `raysim.run` is told of every run of a series alike; see there."""

    dataset: FederatedDataset | None = None
    model: ModuleFactory | None = None
    loss: Loss | None = None
    params: Mapping[str, npt.ArrayLike] | None = None
    server_optimizer: Maker | None = None
    executor: ExecutorName | None = None
    address: str | None = None
    progress: bool | None = None
    profile: bool = False
    loggers: tuple[LoggerName | Log, ...] = ()

    def check(self, members: Iterable[Member]) -> None:
        """Raise what is wrong with the members, before anything on the disk is touched."""
        for member in members:
            placed = api.with_executor(member.experiment, self.executor)
            resolve(placed, self.dataset, self.model, self.loss, self.params, self.server_optimizer)

    def run(self, member: Member, resume: bool) -> Result:
        """Run one member, or go on with it."""
        return api.run(
            member.experiment,
            dataset=self.dataset,
            model=self.model,
            loss=self.loss,
            params=self.params,
            server_optimizer=self.server_optimizer,
            executor=self.executor,
            address=self.address,
            path=member.path,
            resume=resume,
            progress=self.progress,
            profile=self.profile,
            loggers=self.loggers,
        )

    def connection(self, experiment: Experiment) -> AbstractContextManager[None]:
        """Ray starts once for all members, where it is wanted."""
        if api.with_executor(experiment, self.executor).engine.workers == 0:
            return nullcontext()
        from raysim.engine.on_ray.cluster import connected

        return connected(self.address)


def goes_on(path: Path, overwrite: bool, resume: bool, check_same: Callable[[Path], None]) -> bool:
    """Whether the series goes on with what is in the folder; touches nothing.

    Raises:
        RunFolderError: the folder cannot be made, or `check_same` refuses what is there.
    """
    if resume and path.exists():
        check_same(path)
        return True
    RunFolder.check_free(path, overwrite)
    return False


def carry_out(
    members: Iterable[Member],
    arguments: Arguments,
    resume: bool,
    started: Callable[[Member], None],
    done: Callable[[Member, Result], None],
) -> None:
    """Run the members, one after the other. `started` and `done` are told of each."""
    for member in members:
        started(member)
        done(member, arguments.run(member, resume))


def make_folder(path: Path, experiment: Experiment, resume: bool) -> None:
    """The series' folder, with its experiment; what is there is removed unless it is gone on with."""
    if path.exists() and not resume:
        records.remove(path)
    path.mkdir(parents=True, exist_ok=True)
    records.write_experiment(path, experiment, "")
