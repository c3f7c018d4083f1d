"""Scores the models on the line through two models, and draws their loss: McMahan et al. (2017), figure 1."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Unpack

import numpy.typing as npt
import pyarrow as pa
import torch

from raysim.api.preflight import ITS_PARTS, check_has_parts, check_one, check_same, other_tensors, with_executor
from raysim.data.partitioned import Partitioned
from raysim.data.populated import Populated
from raysim.data.section import paths
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.interpolation import THETAS, score_models
from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment import differences
from raysim.experiment.experiment import Experiment
from raysim.models.model import Weights, replace_params
from raysim.report.gallery import interpolated
from raysim.report.picture_files import free_places, save
from raysim.run_folder import checkpoint, experiment_record, frozen, kept_checkpoints, lost_checkpoint
from raysim.server.state import ServerState
from raysim.storage import disk
from raysim.storage.remote.folder import read_only_copy
from raysim.storage.remote.uri import check_is_path

log = logging.getLogger("raysim")

Place = str | Path
"""A run's folder, for its newest checkpoint, or its URI; or a checkpoint's file."""

_OF_VALUES = {"seed", "init"}
"""Keys of `[model]` that say at which values a run begins."""

UNUSED = MappingProxyType({"checkpoint.best": None, "stop": None})
"""Conditions by figures, which may be of splits that are not scored here."""

SCHEMA = pa.schema([(name, pa.float64()) for name in ("theta", "loss", "accuracy")])


@takes_parts
def interpolate(
    experiment: Experiment,
    a: Mapping[str, npt.ArrayLike] | Place,
    b: Mapping[str, npt.ArrayLike] | Place,
    thetas: Iterable[float] = THETAS,
    **parts: Unpack[Parts],
) -> pa.Table:
    """Return a table of theta, loss and accuracy of theta a + (1 - theta) b, over all examples of `evaluation.split`.

    Args:
        experiment: says data, model and split.
        a, b: models of one kind: values by name, such as `Result.params`; or a run's folder or its URI, for its newest
            checkpoint; or a checkpoint's file.
        thetas: any numbers; by default McMahan et al.'s.

    Raises:
        ExperimentError: the experiment evaluates no split, or several; a theta is not finite; or the models are equal.
        ModelError: a mapping does not have the model's tensors.
        RunFolderError: a folder has no checkpoint, or a model of another kind, or with other frozen parameters.
        DataError: the split has no examples.
    """
    # An array of NumPy has no truth value.
    given = list(thetas)
    if not given or not all(map(math.isfinite, given)):
        raise ExperimentError(f"thetas must be finite numbers, at least one, but got {given!r}.")
    check_one(experiment)
    whole = experiment.changed({"evaluation.clients": "all", "evaluation.examples": "all", **UNUSED})
    plan = resolve(with_executor(whole, "local"), **parts)
    splits = evaluated_splits(plan)
    if len(splits) != 1:
        raise ExperimentError(
            f"An interpolation is over one split, but evaluation.split has {' and '.join(splits) or 'none'}: name one "
            f"of {', '.join(plan.dataset.splits)}."
        )
    w, other = (_weights(plan, each) for each in (a, b))
    if all(map(torch.equal, (w.params, w.buffers), (other.params, other.buffers))):
        raise ExperimentError("a and b have the same values, so there is no line through them: name another model.")
    return pa.Table.from_pylist(score_models(plan, w, other, splits[0], [float(theta) for theta in given]), SCHEMA)


@takes_parts
def between_runs(
    first: Place, second: Place, *, split: str, out: Path, changes: Iterable[str] = (), **parts: Unpack[Parts]
) -> pa.Table:
    """Score the models between those of two runs on a split of the first one's data; write picture and CSV to `out`.

    changes: of keys of the first run's `[report]`, such as "report.width_cm=8".

    Raises:
        RunFolderError: see `interpolate`; or the first run had other parts; or a file that is none of a picture lies
            where the picture goes.
    """
    check_is_path(out, "The folder of picture and CSV (--out, out=)")
    with _folder(first) as where:
        experiment = experiment_record.stored_experiment(where)
        check_one(experiment, where)
        check_has_parts(experiment, where, parts, "raysim.interpolate(experiment, a, b")
        report = experiment.report.changed(changes)
        check_same(resolve(with_executor(experiment, "local"), **parts), where, ITS_PARTS)
        # Before what takes long.
        free_places(interpolated.NAME, out, report)
        rows = interpolate(experiment.changed({"evaluation.split": split, **UNUSED}), first, second, **parts)
        with _folder(second) as other:
            names = _name(where, first), _name(other, second)
        disk.make_folder(out)
        save(interpolated.figure(rows.to_pylist(), names, split), out, report)
        return rows


def _weights(plan: Plan, given: Mapping[str, npt.ArrayLike] | Place) -> Weights:
    if isinstance(given, Mapping):
        return replace_params(plan.model, plan.initial, given)
    with _folder(given) as folder:
        check_one(experiment_record.stored_experiment(folder), folder)
        state = _state(folder, given)
        if state is None:
            raise RunFolderError(f"{folder} has no checkpoint, so there is no model of it.")
        for name in ("params", "buffers", "counters"):
            found, expected = getattr(state.weights, name), getattr(plan.initial, name)
            if (found.shape, found.dtype) != (expected.shape, expected.dtype):
                raise RunFolderError(
                    f"{given} must have a model of the experiment's kind, with {len(expected):,} {name} of "
                    f"{expected.dtype}, but has {len(found):,} of {found.dtype}."
                )
        # Vectors have room between tensors, so tensors of other shapes may have vectors of one length.
        if tensors := other_tensors(plan, folder):
            raise RunFolderError(f"{given} must have a model of the experiment's kind, but there {tensors} here.")
        for remark in _other_module(plan, folder):
            log.warning("%s: %s; its values are scored in the experiment's module", given, remark)
        if prepared := _other_data(plan, folder):
            log.warning(
                "%s was trained on data that were prepared otherwise: %s; its values are scored on the experiment's "
                "data",
                given,
                "; ".join(prepared),
            )
        if other := frozen.other_values(folder, plan.model.constants):
            raise RunFolderError(
                f"{given}: {other[0]} than in the experiment's module. Take runs of the same frozen parameters "
                f"(model.seed, model.init, params=)."
            )
        return state.weights


def _other_module(plan: Plan, folder: Path) -> Iterator[str]:
    """Yield in what the module of a folder's run, of the same tensors, may compute otherwise than the experiment's."""
    sections = [each.model for each in (experiment_record.stored_experiment(folder), plan.experiment)]
    was, now = ({} if each is None else each.model_dump(mode="json", exclude=_OF_VALUES) for each in sections)
    if was and now and (found := differences.differing(was, now, "model.")):
        yield "; ".join(found)
    had = experiment_record.stored_passed(folder)
    if had is not None and "model" in had.other_code(plan.passed):
        yield "model= has other code than when the run began"


def _other_data(plan: Plan, folder: Path) -> list[str]:
    """Return in what the source of the data of a folder's run differs, whatever of it the clients had."""
    was, now = (each.data for each in (experiment_record.stored_experiment(folder), plan.experiment))
    if was is None or now is None:
        return []
    dealing = {*Partitioned.model_fields, *Populated.model_fields, *paths(was), *paths(now)}
    had, have = (each.model_dump(mode="json", exclude=dealing) for each in (was, now))
    if was.name != now.name:
        had, have = {"name": was.name}, {"name": now.name}
    return differences.differing(had, have, "data.")


def _state(folder: Path, given: Place) -> ServerState | None:
    owner = experiment_record.stored_owner(folder)
    if _is_file(given):
        return checkpoint.read(Path(given), owner)
    state = kept_checkpoints.newest_state(folder, owner)
    if state is not None:
        lost_checkpoint.warn(folder, state)
    return state


@contextmanager
def _folder(place: Place) -> Iterator[Path]:
    """Yield the run's folder; a checkpoint's file lies in a folder of it."""
    if not _is_file(place):
        with read_only_copy(place) as folder:
            yield folder
        return
    check_is_path(place, "A checkpoint, in place of a run's folder,")
    yield Path(place).resolve().parents[1]


def _is_file(place: Place) -> bool:
    return str(place).endswith(".safetensors")


def _name(folder: Path, place: Place) -> str:
    return f"{folder.resolve().name}, {Path(place).stem}" if _is_file(place) else Path(place).resolve().name
