"""Resolves an experiment to a `Plan`: prepares the data, creates the model, and checks it all before the first round.

Warnings about unexpected or slow settings also come before the first round.
"""

from __future__ import annotations

import logging
import math
import os
from typing import Unpack

import torch

from raysim.client.objective import LocalObjective
from raysim.client.trainers.construction import rule_for
from raysim.client.trainers.minimised_loss import Minimised, minimised_loss, recognise
from raysim.client.trainers.reduced_precision import has_large_products
from raysim.client.trainers.trainer_choice import BY_HAND, TrainerChoice
from raysim.client.trainers.trainer_table import TrainingConditions
from raysim.config.torch_settings import as_on_workers
from raysim.data import lent_rows
from raysim.data.dataset import FederatedDataset
from raysim.data.pooled import pool_clients
from raysim.engine.cores import on_free_cores
from raysim.engine.numerics import choose_device, has_bf16
from raysim.engine.parts import Parts
from raysim.engine.plan import (
    amounts,
    checks,
    first_examples,
    first_objective,
    prepared_model,
    privacy_check,
    short_batches,
    trainer_trials,
)
from raysim.engine.plan.bind import bound
from raysim.engine.plan.label_similarity import pooled_labels
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.prepared_model import FirstModel
from raysim.errors import ExperimentError
from raysim.experiment.expand import dataset_of
from raysim.experiment.experiment import Experiment
from raysim.models import memory
from raysim.models.task import Task, task_for
from raysim.run_folder import part_code
from raysim.run_folder.passed_parts import Passed

log = logging.getLogger("raysim")

_HASH_SEED = "PYTHONHASHSEED"
"""The environment variable by which Python's hashes of texts are the same in every process."""


@as_on_workers()
def resolve(experiment: Experiment, shared: FederatedDataset | None = None, /, **parts: Unpack[Parts]) -> Plan:
    """Prepare the data, create the model, and check that everything fits.

    Args:
        experiment: a validated experiment.
        shared: the dataset of `[data]`, if the caller has opened it already, for several runs.
        parts: the parts that a script passes.

    Raises:
        ExperimentError, DataError, ModelError: something does not fit; the error has the given and the allowed value.
    """
    if torch.is_inference_mode_enabled():
        raise ExperimentError(
            "A run cannot be made inside torch.inference_mode(), in which no gradient can be computed: call raysim "
            "outside of it."
        )
    experiment = bound(experiment, **parts)
    own = parts.get("dataset")
    if own is not None:
        lent_rows.check(own.splits)
    dataset = _prepared_data(experiment, shared if own is None else own)
    sectioned = experiment.data if own is None else None
    drawn = prepared_model.draw_model(experiment, dataset, sectioned, parts.get("model"))
    experiment = privacy_check.with_noise_multiplier(experiment, dataset, drawn.model)
    first = prepared_model.give_values(experiment, dataset, drawn, parts.get("params"))
    loss = parts.get("loss")
    task = task_for(dataset.num_classes, loss, *_labels(dataset))
    others = first.of_other_clusters()
    # Whatever the run goes on with is computed outside: the last digits may depend on the number of threads.
    with on_free_cores():
        task, local = _minimised(experiment, dataset, first, task)
        plan = Plan(
            experiment,
            dataset,
            first.model,
            first.weights,
            task,
            local,
            label_population=_label_population(dataset) if experiment.server.diagnostics.labels else None,
            choice=_choice(experiment, dataset, first, local),
            others=others,
            passed=Passed.of(parts),
            hashing=_hashing(parts),
        )
        checks.check(plan, own_loss=loss is not None)
    # The trial of the module is over: a script that only watches workers would keep what it took.
    memory.give_back()
    return plan


def _hashing(parts: Parts) -> tuple[str, ...]:
    if os.environ.get(_HASH_SEED, "random") != "random":
        # Workers and later processes are expected to have it too.
        return ()
    given = {name: part for name, part in parts.items() if part is not None and name not in part_code.NO_CODE}
    return tuple(name for name, part in given.items() if part_code.calls_hash(part))


def _prepared_data(experiment: Experiment, opened: FederatedDataset | None) -> FederatedDataset:
    """The data that are open, or else those of `[data]`; as one client, if the experiment pools them."""
    dataset = dataset_of(experiment) if opened is None else opened
    amounts.check(experiment, dataset)
    return pool_clients(dataset) if experiment.pooled else dataset


def _label_population(dataset: FederatedDataset) -> torch.Tensor:
    """Label counts over all training clients, padding left out."""
    if dataset.num_classes is None:
        raise ExperimentError(
            "server.diagnostics.labels compares label distributions, but the targets of these data are real numbers."
        )
    return pooled_labels(dataset)


def _labels(dataset: FederatedDataset) -> tuple[int | None, tuple[int, ...], bool]:
    return dataset.y.padding, dataset.y.uncounted, dataset.y.by_place


def _minimised(
    experiment: Experiment, dataset: FederatedDataset, first: FirstModel, task: Task
) -> tuple[Task, Minimised]:
    """The task, or the built-in one that a script's loss repeats; and what clients minimise.

    Raises:
        ModelError: the objective cannot be used; says why.
    """
    built_in = task_for(dataset.num_classes, None, *_labels(dataset))
    section = experiment.client.objective
    if section is None and task == built_in:
        return task, Minimised(task)
    x, y = first_examples.load(experiment, dataset, first.weights)
    outputs, objective = first_examples.outputs(first.model, first.weights, x), None
    if section is not None:
        objective = LocalObjective(section)
        if outputs is not None:
            seed, id_of = experiment.seed, dataset.train.id_of
            first_objective.check(first_objective.Trial(objective, first.model, first.weights, (x, y), seed, id_of))
    task = recognise(task, built_in, outputs, y)
    return task, minimised_loss(task, built_in, objective, outputs, y)


def _choice(experiment: Experiment, dataset: FederatedDataset, first: FirstModel, local: Minimised) -> TrainerChoice:
    engine = experiment.engine
    # The kind of device that this process sees stands for all: workers are expected to be alike.
    kind = choose_device(engine.gpus_per_worker).type

    conditions = training_conditions(experiment, dataset, kind)
    choice = trainer_trials.chosen(conditions, experiment, dataset, first.model, first.weights, local)
    if engine.cuda_graphs is True and (kind != "cuda" or choice.trainer not in ("stacked", "recorded")):
        raise ExperimentError(
            f"engine.cuda_graphs = true records local steps of the trainers 'stacked' and 'recorded' on NVIDIA cards, "
            f"but here clients are trained by {choice.trainer!r} on {kind}: leave it out."
        )
    return choice


def training_conditions(experiment: Experiment, dataset: FederatedDataset, device_kind: str) -> TrainingConditions:
    """Return what of experiment and data the choice of a trainer depends on, for a kind of device."""
    engine, client = experiment.engine, experiment.training
    trained = experiment.configurations or (client,)
    sizes = {one.batch_size for one in trained}
    return TrainingConditions(
        trainer=engine.trainer,
        chunk_size=engine.chunk_size,
        precision=engine.precision,
        dtype=engine.dtype,
        threads=engine.threads,
        device_kind=device_kind,
        batch_size="full" if "full" in sizes else max(sizes),
        by_kernel=all(rule_for(one, sums_gradients=False, product_makes_step=True).by_kernel for one in trained),
        short_steps=short_batches.steps_of_each(experiment, dataset),
        places=next(iter(dataset.x.shape), 1),
        classes=dataset.num_classes or 0,
        labels=math.prod(dataset.y.shape),
        gradients="one" if client.personalisation is None else client.personalisation.gradients,
        accumulate=client.accumulate,
    )


def precision_remark(plan: Plan) -> str | None:
    """Return why the chosen precision is slow on this machine, or without effect; None if it is neither."""
    engine, trainer = plan.experiment.engine, plan.choice.trainer
    if engine.precision != "bf16":
        return None
    device = choose_device(engine.gpus_per_worker)
    if trainer in BY_HAND and not has_large_products(plan.model.module(), device.type):
        return f"the trainer {trainer} makes large products in bf16, and this model has none: it computes in float32"
    # A worker refuses a card without such products.
    if device.type == "cpu" and not has_bf16(device):
        return "this processor has no bf16 products: bf16 is slower than float32, but correct"
    return None
