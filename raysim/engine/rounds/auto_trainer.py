"""Settles which trainer a run keeps: the one that its folder records, and on a card what was measured there first.

On a CPU "auto" is a table that was learned from measurements (`trainer_table.py`). No such table fits all cards, and
the trainers differ there by more. Trainer and chunk size fix the bits, so the choice is made once for a run, by the
process that plans it, and never depends on the number of workers. A run that goes on takes what its folder says.
Another run takes what the cache says for the same model, local step, card and versions of torch and raysim.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, get_args

import torch

from raysim import card
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.trainer_choice import ShortBatches
from raysim.engine.numerics import choose_device
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.resolve import training_conditions
from raysim.engine.plan.trainer_trials import chosen
from raysim.engine.rounds.calibrate import TRAINERS, best, calibrate
from raysim.errors import DiskError, ModelError, RaysimError, RunFolderError, within
from raysim.run_folder import experiment_record
from raysim.storage import atomic, reading
from raysim.storage.cache import cache_root

log = logging.getLogger("raysim")

SIZES = (16, 64, 256)
"""Numbers of clients in a stack that are measured, beside the table's."""

BUDGET_S = 0.3
"""Seconds of a trainer in a pass: with two passes after one that warms up, the first use takes some ten seconds."""


def with_kept_trainer(plan: Plan, folder: Path | None = None) -> Plan:
    """Return the plan with the trainer that it keeps: that of a run that goes on, and on a card what was measured.

    Args:
        plan: by the table.
        folder: of a run that goes on; None where a run begins.
    """
    recorded = None if folder is None else experiment_record.stored_trained_by(folder)
    plan = _of_trainer(plan, recorded, folder)
    if folder is None or recorded is None:
        return plan
    return _with_last_digits(plan, experiment_record.stored_fingerprint(folder))


def _with_last_digits(plan: Plan, fingerprint: str) -> Plan:
    """Return the plan with what the run began with, of all that decides last digits beside its trainer.

    An earlier version had no kernels for convolutions, LSTMs and cross entropy, took short batches in other ways,
    and began steps by autograd with the loss.
    """
    choice = plan.choice
    ways = dict.fromkeys((choice.short_batches, *get_args(ShortBatches)))
    kernels = [KernelsUsed(*each) for each in product(*({is_used, False} for is_used in choice.kernels))]
    for used, short, begins in product(kernels, ways, {choice.from_outputs, False}):
        changed = replace(choice, kernels=used, short_batches=short, from_outputs=begins)
        other = replace(plan, choice=changed)
        if other.fingerprint == fingerprint:
            return other
    return plan


def _of_trainer(plan: Plan, recorded: Mapping[str, Any] | None, folder: Path | None) -> Plan:
    """Return the plan with the trainer that it keeps."""
    engine = plan.experiment.engine
    is_open = engine.trainer == "auto" and engine.cuda_graphs is not True and plan.minimised.obstacle is None
    is_open &= not plan.choice.changed
    if not is_open:
        return plan
    kind = choose_device(engine.gpus_per_worker).type
    if folder is not None and recorded is not None:
        with reading.parsing(folder, "the trainer of a run in experiment.json", RunFolderError):
            begun = checked(recorded)
        if kind == "cuda" or begun["trainer"] != plan.choice.trainer:
            return _as_it_began(plan, begun, kind)
    if kind != "cuda":
        return plan
    file = cache_root() / "trainers" / f"{_key(plan)}.json"
    record = cached_choice(file)
    if record is None:
        try:
            keep(_measured(plan), file)
        except RaysimError as error:
            # Not what was measured: it would be something else the next time.
            log.warning("which trainer is fastest on this card was not measured, or cannot be kept: %s", error)
            return plan
        # Another process may have been quicker.
        record = cached_choice(file)
    if record is None:
        return plan
    try:
        return _trained_by(plan, record, kind, f"it was the fastest when it was measured on {card.name()}")
    except ModelError as error:
        # Another module with layers of these shapes, which the cache cannot tell, was measured.
        log.warning("the trainer that was measured for such a model cannot be had, so the table decides: %s", error)
        return plan


def _as_it_began(plan: Plan, record: dict[str, Any], kind: str) -> Plan:
    """Return the plan with the trainer that the run began with; as it is where this machine cannot have that one."""
    try:
        return _trained_by(plan, record, kind, "the run began with it")
    except ModelError:
        return plan


def _measured(plan: Plan) -> dict[str, Any]:
    log.info("measuring which trainer is fastest on %s, once for this model", card.name())
    # One worker, however many there will be: the choice must not depend on them.
    timings = calibrate(plan, workers=1, repeats=2, budget_s=BUDGET_S, sizes=SIZES)
    card.release_memory()
    fastest = best(timings)
    seconds = {f"{one.trainer} {one.chunk_size}": round(one.median_s, 6) for one in timings}
    return {"trainer": fastest.trainer, "chunk_size": fastest.chunk_size, "seconds": seconds}


def _trained_by(plan: Plan, record: dict[str, Any], kind: str, why: str) -> Plan:
    engine = plan.experiment.engine
    size = record["chunk_size"] if engine.chunk_size == "auto" else engine.chunk_size
    conditions = training_conditions(plan.experiment, plan.dataset, kind)
    conditions = replace(conditions, trainer=record["trainer"], chunk_size=size)
    choice = chosen(conditions, plan.experiment, plan.dataset, plan.model, plan.initial, plan.minimised)
    return replace(plan, choice=replace(choice, why=why))


def _key(plan: Plan) -> str:
    """Digest of what the fastest trainer depends on."""
    conditions, task = training_conditions(plan.experiment, plan.dataset, "cuda"), plan.minimised.task
    of = {
        "shapes": dict(zip(plan.model.params.names, plan.model.params.shapes, strict=True)),
        "module": [type(child).__qualname__ for child in plan.model.module().modules()],
        "example": plan.dataset.x.shape,
        "loss": getattr(task.losses, "__qualname__", type(task.losses).__qualname__),
        "local step": [
            conditions.precision,
            conditions.dtype,
            conditions.batch_size,
            conditions.by_kernel,
            conditions.gradients,
            plan.experiment.engine.cuda_graphs,
        ],
        "on": [card.name(), torch.__version__, experiment_record.version()],
    }
    return hashlib.blake2b(json.dumps(of, sort_keys=True).encode(), digest_size=16).hexdigest()


def cached_choice(file: Path) -> dict[str, Any] | None:
    """What the file says; None where there is none, or a damaged one."""
    if not file.exists():
        return None
    try:
        record = reading.json_object(file, RunFolderError)
        with reading.parsing(file, "a trainer and a chunk size", RunFolderError):
            return checked(record)
    except RunFolderError as error:
        log.warning("%s It is measured again.", error)
        with suppress(OSError):
            file.unlink(missing_ok=True)
        return None


def checked(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trainer and a chunk size; else raise ValueError.

    >>> checked({"trainer": "fused", "chunk_size": 4, "seconds": {}})
    {'trainer': 'fused', 'chunk_size': 4}
    """
    trainer, size = record["trainer"], record["chunk_size"]
    if trainer not in TRAINERS:
        raise ValueError(f"there is no trainer {trainer!r}")
    if size != "auto" and (type(size) is not int or size < 1):
        raise ValueError(f"chunk_size is {size!r}")
    return {"trainer": trainer, "chunk_size": size}


def keep(measured: dict[str, Any], file: Path) -> None:
    """Write the file unless there is one: the first that is written counts for all.

    Raises:
        DiskError: it cannot be written.
    """
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = atomic.beside(file)
        beside.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")
        try:
            file.hardlink_to(beside)
        except FileExistsError:
            pass
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise DiskError(
            f"{file.parent} cannot be written: {within(error)}. Set RAYSIM_CACHE to a folder of your own."
        ) from None
