"""Decides what a study is, before its storage is opened: what is tuned, measured and held out, and where."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from raysim import Experiment, ExperimentError, FederatedDataset, Parts, Section, dataset_of
from raysim.experiment.experiment import check_kind
from raysim.storage.remote.folder import path_here
from raysim.storage.remote.uri import check_is_path
from tuning import folder, protocol
from tuning import section as sections
from tuning.budget import CLIENT_UPDATES
from tuning.errors import StudyError
from tuning.pruners import too_few_trials
from tuning.section import TuningSection
from tuning.space import Space
from tuning.storage import absolute, default_url, portable_address

log = logging.getLogger("raysim")


@dataclass(frozen=True)
class StudyPlan:
    """A study.

    experiment: as it was given. tuning: its `[tuning]`, with the keys of the call. parts: what the script passed.
    folder: of the study, and url: of its storage, absolute, because a part may change the working folder; its user
    names the folder `named`. way_out: what to do where the storage has another study of this name. space: of `tuning`.
    measured: the experiment that trials run. held: the script's dataset with validation clients; None: `measured` says
    the data. tests: whether the data have test examples.
    """

    experiment: Experiment
    tuning: TuningSection
    parts: Parts
    folder: Path
    named: Path
    url: str
    way_out: str
    space: Space
    measured: Experiment
    held: FederatedDataset | None
    tests: bool

    @property
    def portable_url(self) -> str:
        """The address of the storage, the same wherever the folder lies."""
        return portable_address(self.url, self.folder)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What a storage keeps to know the study again."""
        return protocol.identity(self.measured, self.tuning, self.space, self.held, self.parts)


def plan(
    experiment: Experiment,
    space: Mapping[str, Any] | None,
    path: str | Path | None,
    parts_and_settings: Mapping[str, Any],
) -> StudyPlan:
    """Decide what a study is; arguments as for `tune`.

    Raises:
        ExperimentError: a key, a value, or a combination that is not defined.
        StudyError: the folder is a run's, or of another study.
    """
    parts, tuning = parts_and_section(experiment, space, parts_and_settings)
    dataset = parts.get("dataset")
    if path is not None:
        # Several processes may write to its database. The best run can be put elsewhere: raysim run best.toml --path
        # URI.
        check_is_path(path, "A study's folder (--path, path=)", StudyError)
    named = Path(path) if path is not None else default_folder(experiment)
    where = path_here(named).absolute()
    url = absolute(tuning.storage or default_url(where))
    protocol.check_vary(experiment, tuning, parts)
    for remark in _remarks(experiment, tuning):
        log.warning("%s", remark)
    measured = protocol.evaluated_on_validation(experiment, tuning, dataset)
    held = protocol.with_validation_clients(experiment, tuning, dataset)
    whole = dataset if dataset is not None else dataset_of(experiment)
    way_out = folder.way_out(tuning.storage is not None, path is not None)
    planned = StudyPlan(
        experiment,
        tuning,
        parts,
        where,
        named,
        url,
        way_out,
        tuning.parsed_space(),
        measured,
        held,
        whole.test is not None,
    )
    folder.check_links(where)
    folder.check(where, planned.portable_url, experiment.name)
    return planned


def _remarks(experiment: Experiment, tuning: TuningSection) -> Iterator[str]:
    """Yield a sentence for each key without effect in a study."""
    if experiment.trials.count > 1:
        yield (
            f"trials = {experiment.trials.count} has no part in a study: tuning.seeds = {tuning.seeds} is the number "
            f"of runs of a configuration"
        )
    if tuning.final == 0 and (unused := protocol.of_final_runs(experiment, tuning)):
        yield (
            f"{', '.join(unused)}: set for final runs, and this study has none; trials are scored on validation clients"
        )
    if (few := too_few_trials(tuning.pruner, tuning.num_trials())) is not None:
        yield f"tuning.pruner stops no trial: {few}"


TABLES = MappingProxyType({"sampler": "tpe", "objective": "accuracy"})
"""A name for an example of each table that a study and a run both have."""


def parts_and_section(
    experiment: Experiment, space: Mapping[str, Any] | None, parts_and_settings: Mapping[str, Any]
) -> tuple[Parts, TuningSection]:
    """Return a script's parts, and `[tuning]` with its keys, checked; arguments as for `tune`."""
    check_kind(experiment)
    # A sampler of cohorts is a function, the study's a table.
    tables = {name for name, value in parts_and_settings.items() if isinstance(value, Mapping | Section)}
    both = Parts.__annotations__.keys() & TuningSection.model_fields.keys()
    for name in both:
        if isinstance(word := parts_and_settings.get(name), str):
            raise ExperimentError(
                f"{name}= of a study is a table, such as {{'name': {TABLES[name]!r}}}, but got the text {word!r:.40}."
            )
    named = Parts.__annotations__.keys() - (tables & both)
    parts = cast("Parts", {name: part for name, part in parts_and_settings.items() if name in named})
    settings = {name: value for name, value in parts_and_settings.items() if name not in named}
    keys = {**(experiment.tuning or {}), **({"space": dict(space)} if space is not None else {}), **settings}
    tuning = sections.checked_section(keys, experiment) if keys else sections.section_of(experiment)
    protocol.check_metric(tuning.objective, experiment, parts.get("metrics") or {})
    return parts, tuning


def entered(experiment: Experiment, settings: Mapping[str, Any]) -> tuple[Experiment, dict[str, Any]]:
    """Return the experiment with the keys of `[tuning]` among a call's settings entered, and the other settings.

    A function named `sampler` is a part, and none of these keys.
    """
    keys = {
        name: value.model_dump(exclude_unset=True) if isinstance(value, Section) else value
        for name, value in settings.items()
        if name in TuningSection.model_fields and not callable(value)
    }
    if keys:
        experiment = experiment.changed({"tuning": {**(experiment.tuning or {}), **keys}})
    return experiment, {name: value for name, value in settings.items() if name not in keys}


def default_folder(experiment: Experiment) -> Path:
    """Return the default folder of a study of the experiment."""
    return Path("runs") / f"{experiment.name}-tuning"


def unit_of(tuning: TuningSection) -> str:
    """Return what the study's budget counts, or would count."""
    return CLIENT_UPDATES if tuning.budget is None else tuning.budget.unit
