"""Reads a recorded run's model, the newest or the best: writes it for other programs, and scores it again."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Unpack

import pyarrow as pa
import torch
from safetensors.torch import save
from torch import nn

from raysim.api import other_examples
from raysim.api.beside_record import warn_of_others
from raysim.api.preflight import ITS_PARTS, check_has_parts, check_one, check_same, with_executor
from raysim.config.counted import counted
from raysim.config.plain import shown
from raysim.config.section import replaced
from raysim.data import lent_rows
from raysim.data.dataset import FederatedDataset
from raysim.engine.in_process import InProcess
from raysim.engine.numerics import choose_device, fixed
from raysim.engine.parts import Parts, takes_parts
from raysim.engine.plan import empty_splits
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import scoring
from raysim.engine.rounds.auto_trainer import with_kept_trainer
from raysim.errors import DataError, ExperimentError, ModelError, RunFolderError
from raysim.experiment.experiment import Experiment
from raysim.models import lora
from raysim.models.model import bind, replace_frozen
from raysim.run_folder import (
    best_models,
    checkpoint,
    experiment_record,
    files,
    frozen,
    kept_checkpoints,
    lost_checkpoint,
    round_table,
)
from raysim.run_folder.checkpoint_check import check_fits
from raysim.server.state import ServerState
from raysim.storage import atomic, disk, safetensors_texts, sealed
from raysim.storage.named_file import check_takes_a_file
from raysim.storage.remote.folder import named, read_only_copy
from raysim.storage.remote.uri import check_is_path
from raysim.storage.scratch import scratch_folder

log = logging.getLogger("raysim")

_TENSORS = "adapter_model.safetensors"
"""Of peft, beside `adapter_config.json`."""


@dataclass(frozen=True)
class ModelScores:
    """The scores of a recorded run's model.

    rounds: finished rounds of the model. metrics: as a round's, by "eval/<split>/...". clients: one row per evaluated
    client. `print` shows the metrics, a line each.
    """

    rounds: int
    metrics: dict[str, float]
    clients: pa.Table = field(repr=False)

    def __str__(self) -> str:
        width = max(map(len, self.metrics), default=0)
        lines = [f"{name:<{width}}  {value:.4g}" for name, value in self.metrics.items()]
        return "\n".join([f"the model after {counted(self.rounds, 'round')}", *lines])


@takes_parts
def export(
    path: str | Path,
    out: str | Path,
    *,
    best: bool = False,
    adapter: bool = False,
    merged: bool = False,
    **parts: Unpack[Parts],
) -> int:
    """Write a run's model as safetensors, for `module.load_state_dict(load_file(out))`; returns its rounds.

    Args:
        path: the run's folder, or its URI.
        out: the file; of adapters, the folder.
        best: the model that `checkpoint.best` keeps; else that of the newest checkpoint.
        adapter: write the adapters of `model.lora` only, for `peft.PeftModel.from_pretrained(base, out)`.
        merged: add the adapters of `model.lora` to the layers that they adapt, and write the module without adapters.
            Else the names are those of the module with adapters, as peft makes it.
        parts: the same parts as for `run`; params= is not needed, because the folder holds the whole model.

    Raises:
        ExperimentError: both `adapter` and `merged`.
        RunFolderError: the folder has no such model, or data or model differ from those of the run; or `out` is no
            path, or a file in which a run records itself, or no place for a file (for adapters, for a folder).
        ModelError: the module has state that is not a tensor; or it has no adapters.
    """
    if adapter and merged:
        raise ExperimentError("adapter writes the adapters alone, and merged adds them to their layers: choose one.")
    check_is_path(out, "The exported model (--out, out=)")
    files.check_is_no_record(Path(out))
    if not adapter:
        check_takes_a_file(Path(out), RunFolderError)
    elif Path(out).exists() and not Path(out).is_dir():
        raise RunFolderError(f"{out} is no folder, and adapters are written into one: choose another place.")
    with read_only_copy(path) as where:
        plan, state = _opened(where, best, parts, "raysim.export(path, out")
    module = bind(plan.model, state.weights, torch.device("cpu"))
    if adapter:
        _warn_of_statistics(plan, state, _write_adapter(module, plan.experiment, Path(out)))
        return state.round
    if merged:
        _lora(plan.experiment)
    _warn_of_left_out(plan, module)
    held = lora.merged(module) if merged else module.state_dict()
    if others := [name for name, value in held.items() if not isinstance(value, torch.Tensor)]:
        raise ModelError(f"The module's state {others[0]!r} is not a tensor, so safetensors cannot hold it.")
    # Tensors that share memory are written once for each name, which strict loading wants.
    tensors = {name: value.detach().clone().contiguous() for name, value in held.items()}
    metadata = {"checksum": sealed.BLANK, "format": "pt", "experiment": plan.experiment.name}
    content = save(tensors, {**metadata, "rounds": str(state.round)})
    file = Path(out)
    disk.make_folder(file.parent)
    atomic.write(file, partial(_write_sealed, content))
    return state.round


def _write_sealed(content: bytes, file: Path) -> None:
    file.write_bytes(content)
    safetensors_texts.put_in_order(file)
    sealed.seal(file)


def _write_adapter(module: nn.Module, experiment: Experiment, out: Path) -> Sequence[str]:
    """Write the adapters; returns the layers that are there whole."""
    made = lora.adapter_of(module, _lora(experiment))
    with disk.writing(out), scratch_folder() as aside:
        made.config.save_pretrained(aside)
        out.mkdir(parents=True, exist_ok=True)
        if any(_differs(out / file.name, file) for file in aside.iterdir()):
            # peft would scale the old tensors by the new settings, if this process is killed before the new ones.
            (out / _TENSORS).unlink(missing_ok=True)
        # A file takes the place of a link, and is not written through it.
        for file in aside.iterdir():
            atomic.write(out / file.name, partial(shutil.copyfile, file))
    content = save({name: tensor.clone() for name, tensor in made.tensors.items()}, {"format": "pt"})
    atomic.write(out / _TENSORS, lambda place: place.write_bytes(content))
    return made.whole


def _differs(old: Path, new: Path) -> bool:
    return not old.is_file() or old.read_bytes() != new.read_bytes()


def _lora(experiment: Experiment) -> lora.Lora:
    if experiment.model is None or experiment.model.lora is None:
        raise ModelError("The run trains no adapters: model.lora puts them on layers.")
    return experiment.model.lora


def _warn_of_left_out(plan: Plan, module: nn.Module) -> None:
    """Warn of buffers that `state_dict` leaves out, if a new module has others: training or chance made these."""
    saved = module.state_dict().keys()
    left_out = {name: buffer for name, buffer in module.named_buffers() if name not in saved}
    if not left_out:
        return
    new = dict(replace(plan.model, seed=plan.model.seed + 1).module().named_buffers())
    if lost := [name for name, buffer in left_out.items() if not torch.equal(new[name].to(buffer), buffer)]:
        log.warning(
            "the module registers %s with persistent=False, so its state_dict, and the file, do not hold what the run "
            "has there; a module that loads the file has other numbers there, and may have other outputs",
            ", ".join(lost),
        )


def _warn_of_statistics(plan: Plan, state: ServerState, whole: Sequence[str]) -> None:
    """Warn of buffers that changed in training: the base, into which peft loads the adapters, has its own.

    Those of layers that are trained whole lie beside the adapters.
    """
    before, after = (plan.model.buffers.views(weights.buffers) for weights in (plan.initial, state.weights))
    lacking = [name for name in after if not lora.is_whole(name, whole)]
    changed = [name for name in lacking if not torch.equal(after[name], before[name])]
    if changed:
        log.warning(
            "an adapter holds no running statistics, and training has changed %s: with those of the base, outputs "
            "differ. Export the whole model, without --adapter; client.hold_frozen_norms = true holds those of frozen "
            "norms still",
            ", ".join(changed),
        )


@takes_parts
def evaluate(
    path: str | Path,
    *,
    best: bool = False,
    data: FederatedDataset | None = None,
    split: str | Sequence[str] = (),
    **parts: Unpack[Parts],
) -> ModelScores:
    """Score a run's model again, in this process: on the same data with the bits of the record.

    A warning says if the record has other figures. Where clients have models of their own, it is the model of all that
    is scored.

    Args:
        path: the run's folder, or its URI; it is not changed.
        best: the model that `checkpoint.best` keeps; else that of the newest checkpoint.
        data: other data, with examples and classes as the run's; None: the run's.
        split: a split, or several; none: those that the experiment evaluates.
        parts: the same parts as for `run`.

    Raises:
        RunFolderError: the folder has no such model, or data or model differ from those of the run.
        DataError: the data have no such split, or nothing to score in it, or examples of another form.
        ExperimentError: `split` is no name, and no list of names.
    """
    splits = (split,) if isinstance(split, str) else split
    if not isinstance(splits, Sequence) or not all(isinstance(each, str) for each in splits):
        raise ExperimentError(f"split must be the name of a split, or a list of names, but got {shown(split)}.")
    with read_only_copy(path) as where:
        plan, state = _opened(where, best, parts, "raysim.evaluate(path")
    section = replaced(plan.experiment.evaluation, fine_tuning=None)
    if splits:
        section = replaced(section, split=tuple(splits))
    plan = replace(plan, experiment=replaced(plan.experiment, evaluation=section))
    if data is not None:
        lent_rows.check(data.splits)
        other_examples.check_form(plan.dataset, data)
        for remark in other_examples.remarks(plan.experiment, plan.dataset, data):
            log.warning("%s", remark)
        plan = replace(plan, dataset=data)
    for remark in empty_splits.remarks(plan):
        log.warning("%s", remark)
    engine = plan.experiment.engine
    with fixed(engine.threads, choose_device(engine.gpus_per_worker), engine.precision):
        # The model of all: clients' own come from their states.
        units = scoring.plan_units(plan)._replace(personal={})
        if not units.evaluate:
            raise DataError(f"{named(Path(path))} evaluates no split with examples: name one (--split, split=).")
        executor, algorithm = InProcess(plan), plan.algorithm()
        tickets = scoring.submit(plan, algorithm, executor, state, None, units)
        metrics, clients, _ = scoring.collect(plan, algorithm, executor, state.round - 1, tickets)
    assert clients is not None
    if data is None:
        warn_of_others(where, state.round - 1, metrics)
    return ModelScores(state.round, metrics, clients)


def _opened(where: Path, best: bool, parts: Parts, call: str) -> tuple[Plan, ServerState]:
    """Return the plan of a recorded run, and the state with the model that is asked for."""
    experiment = experiment_record.stored_experiment(where)
    check_one(experiment, where)
    check_has_parts(experiment, where, parts, call)
    plan = with_kept_trainer(resolve(with_executor(experiment, "local"), **parts), where)
    if plan.clusters is not None:
        raise RunFolderError(
            f"{named(where)} has the models of {plan.clusters.count} clusters, and this takes one: "
            f"raysim.resume(...).params has them by name, as 0/<group>."
        )
    # The folder holds the whole model; a script may have given its frozen parameters by params=.
    model, _ = replace_frozen(plan.model, frozen.read(where))
    plan = replace(plan, model=model)
    check_same(plan, where, ITS_PARTS)
    state = _best(where, plan) if best else kept_checkpoints.newest_state(where, experiment_record.stored_owner(where))
    if state is None:
        missing = "best model: checkpoint.best keeps one, from the first evaluation on" if best else "checkpoint"
        raise RunFolderError(f"{named(where)} has no {missing}.")
    check_fits(state, plan.initial, where)
    if not best:
        lost_checkpoint.warn(where, state)
    return plan, state


def _best(where: Path, plan: Plan) -> ServerState | None:
    """Return the kept model of the best evaluation on record; None if there is none."""
    rows = round_table.read_rounds(where).to_pylist()
    kept = best_models.improvements(rows, plan.experiment.checkpoint.best)
    if not kept:
        return None
    done = max(kept)
    try:
        return checkpoint.read(best_models.file_of(where, done), experiment_record.stored_owner(where), done)
    except checkpoint.DamagedError as error:
        raise RunFolderError(f"The best model of {named(where)} cannot be read: {error}") from None
