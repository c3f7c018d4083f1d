"""Resolves an experiment to a `Plan`: prepares the data, creates the model, and checks it all before the first round.

Warnings about unexpected or slow settings also come before the first round.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import Unpack

import torch

from raysim.client.objective import LocalObjective
from raysim.client.trainers.construction import rule_for
from raysim.client.trainers.kernel.kernels import Used
from raysim.client.trainers.minimised_loss import Minimised, minimised_loss, recognise
from raysim.client.trainers.reduced_precision import has_large_products
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import BY_HAND, TrainerChoice, TrainingConditions, choose
from raysim.config.global_draws import draws
from raysim.config.torch_settings import as_on_workers
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
    own_models,
    prepared_model,
    privacy_check,
    short_batches,
)
from raysim.engine.plan.bind import bound
from raysim.engine.plan.label_similarity import pooled_labels
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.engine.plan.prepared_model import FirstModel
from raysim.errors import ExperimentError
from raysim.experiment import idle_keys
from raysim.experiment.expand import dataset_of
from raysim.experiment.experiment import Experiment
from raysim.models import holdable
from raysim.models.bilstm import VECTORS, Bilstm
from raysim.models.causal_lm import CausalLm
from raysim.models.distilbert import Classifier, Distilbert
from raysim.models.frozen_norms import frozen_norms
from raysim.models.name_patterns import matching
from raysim.models.section import ModelSection
from raysim.models.task import Task, task_for
from raysim.run_folder.passed_parts import Passed

log = logging.getLogger("raysim")


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
        )
        checks.check(plan, own_loss=loss is not None)
    return plan


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

    def steps(interprets: bool, kernels: Used) -> StepObstacles:
        return first_examples.step_obstacles(
            experiment, dataset, first.model, first.weights, local.task, interprets=interprets, kernels=kernels
        )

    conditions = training_conditions(experiment, dataset, kind)
    layers = partial(first_examples.recognised, experiment, dataset, first.model, first.weights)
    choice = choose(conditions, first.model.module(), local.task, local.obstacle, steps, layers)
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
        plain=all(rule_for(one, sums_gradients=False, product_makes_step=True).by_kernel for one in trained),
        short_steps=short_batches.steps_of_each(experiment, dataset),
        gradients="one" if client.personalisation is None else client.personalisation.gradients,
        accumulate=client.accumulate,
    )


def precision_remark(plan: Plan) -> str | None:
    """Return why the chosen precision is slow on this machine, or without effect; None if it is neither."""
    engine, trainer = plan.experiment.engine, plan.choice.trainer
    if engine.precision != "bf16":
        return None
    if trainer in BY_HAND and not has_large_products(plan.model.params.shapes):
        return f"the trainer {trainer} makes large products in bf16, and this model has none: its bits are float32's"
    device = choose_device(engine.gpus_per_worker)
    # A worker refuses a card without such products.
    if device.type == "cpu" and not has_bf16(device):
        return "this processor has no bf16 products: bf16 is slower than float32, but correct"
    return None


@as_on_workers()
def log_beginning(plan: Plan) -> None:
    """Log the trainer that trains the clients, with its reason; warn of keys that do not do what they say.

    The script's process calls this once, and the messages are about its processor.
    """
    log.info("clients are trained by the trainer %s: %s", plan.choice.trainer, plan.choice.why)
    module = plan.model.module()
    norms, holds = frozen_norms(module), plan.experiment.client.hold_frozen_norms
    if norms and not holds:
        log.warning(
            "the parameters of BatchNorm %s are frozen, but its running statistics follow the clients' batches: "
            "client.hold_frozen_norms = true holds them still",
            ", ".join(norms),
        )
    if holds and not norms:
        log.warning("client.hold_frozen_norms = true holds nothing: the model has no BatchNorm with frozen parameters")
    if (shortage := plan.cohorts().shortage(plan.experiment.rounds)) is not None:
        log.warning("cohort.sampler: %s", shortage)
    if (few := plan.experiment.client.few_samples) is not None:
        log.warning("client.posterior: %s", few)
    for idle in idle_keys.remarks(plan.experiment):
        log.warning("%s", idle)
    evaluation = plan.experiment.evaluation
    if "every" in evaluation.model_fields_set and not evaluated_splits(plan) and not own_models.splits(plan.experiment):
        log.warning(
            "evaluation.every = %d, but the data have no test split, so no split is scored: they have %s; "
            "dataset.hold_out(share) and data.holdout make the split 'validation', for evaluation.split",
            evaluation.every,
            ", ".join(name for name, split in plan.dataset.splits.items() if len(split)),
        )
    if "dataset" in plan.passed.names and plan.experiment.data is not None:
        log.warning("dataset= is used, and the %r of [data] is not: leave [data] out", plan.experiment.data.name)
    _warn_of_model_section(plan)
    looked = range(min(first_examples.LOOKED_AT, len(plan.dataset.train)))
    if found := first_examples.not_finite(plan.dataset, looked, plan.initial.params.dtype):
        flaw = f"of the first {len(looked)} training clients {len(found)} have values that are not finite"
        log.warning("%s: %s: updates that this makes not finite are rejected", flaw, ", ".join(found))
    if (largest := first_examples.far_from_one(plan.dataset, looked)) is not None:
        log.warning(
            "x of the first training clients goes up to %.3g: most models learn little from numbers far from 1; give "
            "each feature a mean near 0 and a deviation near 1 before the data are read",
            largest,
        )
    # A script's loss may take labels as real numbers.
    if "loss" not in plan.passed.names and (dtype := first_examples.labels_as_floats(plan.dataset, looked)) is not None:
        log.warning(
            "y holds whole numbers, but is of %s, which makes this a regression: class labels are integers", dtype
        )
    if "model" in plan.passed.names:
        if lost := holdable.lost_by_rounding(module, plan.initial.buffers.dtype):
            log.warning(
                "the buffers of a module are held as engine.dtype = %r, in which the values of %s are no longer told "
                "apart, or become 0 or infinite: set engine.dtype = 'float64', or keep such values in whole numbers, "
                "or as differences from one of them",
                plan.experiment.engine.dtype,
                ", ".join(map(repr, lost)),
            )
        _warn_of_outputs(plan)
    if "loss" in plan.passed.names:
        _warn_of_loss(plan)
    if (remark := precision_remark(plan)) is not None:
        log.warning("engine.precision: %s", remark)


def _warn_of_model_section(plan: Plan) -> None:
    """Warn of a `[model]` that is not used, and of values that a file would be expected to have, or has."""
    section = plan.experiment.model
    if section is None:
        return
    if "model" in plan.passed.names and section.name != "own":
        log.warning(
            "model= is trained, and the %r of [model] is not: set model.name = 'own', or leave [model] out",
            section.name,
        )
    if (section.lora is not None or _freezes_drawn(plan, section)) and _draws_all(plan):
        log.warning(
            "%s freezes values that the seed has drawn: model.init names a file with those of a base, or params= has "
            "them",
            "model.freeze" if section.lora is None else "model.lora",
        )
    if section.seed is not None and section.lora is None and _is_whole_folder(plan, section):
        log.warning("model.seed = %d draws nothing: model.path has all values", section.seed)


def _warn_of_outputs(plan: Plan) -> None:
    """Warn of a script's module whose outputs the loss or an evaluation takes for something else."""
    x, _ = first_examples.load(plan.experiment, plan.dataset, plan.initial)
    with on_free_cores(), draws(), torch.no_grad():
        outputs = first_examples.outputs(plan.model, plan.initial, x)
        mixed = outputs is not None and first_examples.mixes_examples(plan, x, outputs)
    if outputs is None:
        return
    by_logits = plan.dataset.num_classes is not None and not {"loss", "objective"} & set(plan.passed.names)
    if by_logits and first_examples.are_shares(outputs):
        log.warning(
            "the outputs of model= are shares that sum to 1, as after a softmax, but the loss, cross-entropy, takes "
            "logits: end the module without softmax, or pass a loss= of shares"
        )
    if mixed:
        log.warning(
            "in evaluation the outputs of model= for an example depend on the others of its batch, or on how many they "
            "are, so scores depend on evaluation.batch_size, and on the clients that share a batch: let forward "
            "compute each example by itself, and BatchNorm keep running statistics"
        )


def _warn_of_loss(plan: Plan) -> None:
    """Warn of a script's loss that looks at the whole batch, or refuses equal examples: more often it is a mistake."""
    with on_free_cores(), draws(), torch.no_grad():
        flaw = first_examples.flaw_of_loss(plan)
    if flaw is not None:
        log.warning("loss= %s", flaw)


def _freezes_drawn(plan: Plan, section: ModelSection) -> bool:
    """Return whether `model.freeze` names parameters other than the vectors that a file has."""
    if not isinstance(section, Bilstm) or section.vectors is None:
        return bool(section.freeze)
    patterns = [*section.freeze, VECTORS]
    return matching(patterns, plan.model.constants, "model.freeze", "parameter") != [VECTORS]


def _is_whole_folder(plan: Plan, section: ModelSection) -> bool:
    """Return whether the folder of a pretrained model has all its values, the head's too."""
    if not isinstance(section, Distilbert):
        return isinstance(section, CausalLm)
    module = plan.model.module()
    return isinstance(module, Classifier) and not module.is_drawn


def _draws_all(plan: Plan) -> bool:
    """Return whether all values are drawn: a script's module, and a family with a path, may have read their own."""
    section, passed = plan.experiment.model, {"model", "params"} & set(plan.passed.names)
    return section is not None and section.init is None and not passed and getattr(section, "path", None) is None
