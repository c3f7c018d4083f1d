"""Resolves an experiment to a `Plan`: prepares the data, creates the model, and checks it all before the first round.

Warnings about unexpected or slow settings also come before the first round.
"""

from __future__ import annotations

import logging
import math
from typing import Unpack

import numpy as np
import torch

from raysim.client.adversary import LabelFlip
from raysim.client.augmentations import augment
from raysim.client.corrections import make as corrections
from raysim.client.corrections.feddualavg import unmatched
from raysim.client.objective import LocalObjective
from raysim.client.trainers.choose import TrainerChoice, TrainingConditions, choose
from raysim.client.trainers.make import rule_for
from raysim.client.trainers.minimised import Minimised, minimised, recognised
from raysim.client.work import Between
from raysim.cohort.sampler import Participant
from raysim.config.own import OwnPart
from raysim.config.user_call import watched_call
from raysim.data.dataset import FederatedDataset
from raysim.data.pooled import pooled
from raysim.engine.numerics import choose_device, has_bf16
from raysim.engine.parts import Parts
from raysim.engine.plan import (
    amounts,
    copied_modules,
    everyone,
    first_clusters,
    first_examples,
    first_module,
    first_objective,
    initial_values,
    own_models,
    own_parts,
    private,
    recorded,
    text_model,
)
from raysim.engine.plan.bind import bound
from raysim.engine.plan.label_similarity import pooled_labels
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.errors import DataError, ExperimentError
from raysim.evaluation import own_examples
from raysim.experiment.expand import dataset_of
from raysim.experiment.experiment import Experiment
from raysim.models import holdable, size
from raysim.models import section as models
from raysim.models.frozen_norms import frozen_norms
from raysim.models.model import Model, Weights, create, replace_frozen, replace_params
from raysim.models.own import Own
from raysim.models.task import Task, task_for
from raysim.run_folder.passed import Passed
from raysim.server.aggregators import own as rules
from raysim.server.optimizers import choice as optimizers
from raysim.server.optimizers import own
from raysim.server.weighting import ClientFacts, weight

log = logging.getLogger("raysim")

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve(experiment: Experiment, **parts: Unpack[Parts]) -> Plan:
    """Prepare the data, create the model, and check that everything fits.

    Args:
        experiment: a validated experiment.
        parts: the parts that a script passes.

    Raises:
        ExperimentError, DataError, ModelError: something does not fit; the error has the given and the allowed value.
    """
    experiment = bound(experiment, **parts)
    dataset, model = parts.get("dataset"), parts.get("model")
    data = experiment.data if dataset is None else None
    if dataset is None:
        dataset = dataset_of(experiment)
    amounts.check(experiment, dataset)
    if experiment.pooled:
        dataset = pooled(dataset)
    outputs = dataset.num_classes if dataset.num_classes is not None else math.prod(dataset.y.shape)
    seed = experiment.seed
    if model is None:
        if experiment.model is None or isinstance(experiment.model, Own):
            has = "has no [model] section" if experiment.model is None else "has model.name = 'own'"
            raise ExperimentError(
                f"The experiment {has}, so model= must be passed, from a script: raysim.run(experiment, model=...), "
                f"raysim.resume(path, model=...)."
            )
        x_shape = augment.seen_shape(experiment.client.augment, dataset.x.shape)
        section = text_model.fitted(experiment.model, data)
        size.check(section, x_shape, outputs, _DTYPES[experiment.engine.dtype])
        model = models.factory(section, x_shape, outputs, text_model.vectors(section, data))
    if experiment.model is not None:
        seed = experiment.model.seed if experiment.model.seed is not None else seed
        model = models.adapted(model, experiment.model)
    dtype = _DTYPES[experiment.engine.dtype]
    tried, values = create(model, seed, dtype, experiment.client.hold_frozen_norms)
    experiment = private.checked(experiment, dataset, tried)
    params, *others = first_clusters.params_of(experiment, dataset, tried, parts.get("params"))
    made, start = initial_values.read(experiment.model, tried, values)
    made, params = (made, params) if params is None or others else replace_frozen(made, params)
    initial = start if params is None else replace_params(made, start, params)
    # A factory may freeze a mask of infinite numbers.
    given = {} if params is None else made.constants
    holdable.check_initial({**given, **made.params.views(initial.params)})
    if parts.get("model") is not None:
        x, _ = first_examples.load(experiment, dataset, initial)
        first_module.check(tried, values, None if initial is values else initial, x)
    made = copied_modules.with_copies(made, initial, experiment, dataset)
    loss = parts.get("loss")
    task = task_for(dataset.num_classes, loss, *_labels(dataset))
    task, local = _minimised(experiment, dataset, made, initial, task)
    population = _label_population(dataset) if experiment.server.diagnostics.labels else None
    choice = _choice(experiment, dataset, made, initial, local)
    begun = tuple(
        create(model, seed + j, dtype)[1] if given is None else replace_params(made, values, given)
        for j, given in enumerate(others, start=1)
    )
    passed = Passed.of(parts)
    plan = Plan(experiment, dataset, made, initial, task, local, choice, population, others=begun, passed=passed)
    if experiment.composite is not None and (unknown := unmatched(experiment.composite, made.params)):
        raise ExperimentError(
            f"composite.groups must match the model's parameters {list(made.params.names)}, but {unknown} match none."
        )
    own_parts.check(plan)
    plan.initial_state()
    if isinstance(experiment.server.optimizer, OwnPart):
        own.check_step(optimizers.make(experiment.server.optimizer), initial.params, made.params)
    _check_rule(plan)
    _check_own_cohorts(plan)
    _check_equal_work(plan)
    everyone.check(plan)
    for split in evaluated_splits(plan):
        try:
            dataset.split(split)
        except DataError as error:
            raise DataError(f"evaluation.split: {error}") from None
    for which, split in own_models.splits(experiment).items():
        own_models.units(plan, which, split)
    if experiment.fedex is not None:
        own_examples.places(dataset, experiment.fedex.split, "fedex")
    recorded.check(plan)
    first_examples.check(plan, own_loss=loss is not None)
    return plan


def _check_rule(plan: Plan) -> None:
    """Refuse an adversary or a rule that is not defined for these cohorts and data."""
    e = plan.experiment
    if isinstance(e.adversary, LabelFlip) and plan.dataset.num_classes is None:
        raise ExperimentError(
            "adversary.name = 'label_flip' flips labels, but the targets of these data are real numbers."
        )
    if (rule := e.server.rule) is None:
        return
    sampler = e.cohort.rule
    if sampler.varies and rule.fewest > 1:
        raise ExperimentError(
            f"server.aggregator: {rule.name} needs at least {rule.fewest} updates in every round, but cohorts of the "
            f"{sampler.name} sampler have any size."
        )
    size_at = e.cohort.size_at(len(plan.dataset.train))
    smallest = min(int(size_at(t)) for t in range(e.rounds))
    if why := rule.refusal(smallest):
        raise ExperimentError(f"server.aggregator: {why}.")
    if e.server.has_own_rule and smallest:
        rules.check(rule, smallest)


def _check_own_cohorts(plan: Plan) -> None:
    """Try user-defined samplers and weightings: draw a cohort, learn from it, weigh a client."""
    e, train, cohorts = plan.experiment, plan.dataset.train, plan.cohorts()
    if not cohorts.is_built_in:
        state = cohorts.init()
        cohort = np.unique(cohorts.sample(state, 0))
        if cohorts.rule.choose is not None:
            cohort = cohorts.choose(cohort, np.zeros(len(cohort)), 0)
        if plan.learns and len(cohort):
            sizes = zip(cohort.tolist(), train.sizes(cohort).tolist(), strict=True)
            cohorts.learn(state, [Participant(p, train.id_of(p), n, 1.0, 1.0, 1, 1.0) for p, n in sizes], 0)
    if (weighting := e.server.weighting_rule) is not None:
        facts = ClientFacts(
            train.id_of(0), int(train.sizes(np.arange(1))[0]), 1.0, 1.0, 1, e.server.weighting_constants
        )
        watched_call("weighting=, tried before the first round,", weight, weighting, facts)


def _check_equal_work(plan: Plan) -> None:
    """A correction may be defined only where all clients take equally many local steps."""
    e, chosen = plan.experiment, plan.experiment.client.correction
    if chosen is None or not corrections.make(chosen).requires.equal_steps:
        return
    needs = f"client.correction.name = {chosen.name!r} needs the same number of local steps of every client"
    changes = e.client.schedule
    amounts = [e.client.epochs, e.client.local_steps, *(c.epochs for c in changes), *(c.local_steps for c in changes)]
    if any(isinstance(amount, Between) and amount.low < amount.high for amount in amounts):
        raise ExperimentError(
            f"{needs}, but the local work is drawn: set it to a number, or take 'scaffold', which is defined with any."
        )
    everyone = np.arange(len(plan.dataset.train))
    for t in {0, *(change.round for change in e.client.schedule)}:
        steps = plan.work(everyone, t).steps
        if steps.min() != steps.max():
            few, many = int(steps.argmin()), int(steps.argmax())
            raise ExperimentError(
                f"{needs}, but in round {t} client {plan.dataset.train.id_of(few)!r} takes {steps[few]} and client "
                f"{plan.dataset.train.id_of(many)!r} takes {steps[many]}: set client.local_steps to a number, or take "
                f"'scaffold', which is defined with any."
            )


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
    experiment: Experiment, dataset: FederatedDataset, model: Model, initial: Weights, task: Task
) -> tuple[Task, Minimised]:
    """The task, or the built-in one that a script's loss repeats; and what clients minimise.

    Raises:
        ModelError: the objective cannot be used; says why.
    """
    built_in = task_for(dataset.num_classes, None, *_labels(dataset))
    section = experiment.client.objective
    if section is None and task == built_in:
        return task, Minimised(task)
    x, y = first_examples.load(experiment, dataset, initial)
    outputs, objective = first_examples.outputs(model, initial, x), None
    if section is not None:
        objective = LocalObjective(section)
        if outputs is not None:
            first_objective.check(objective, model, initial, (x, y), experiment.seed, dataset.train.id_of)
    task = recognised(task, built_in, outputs, y)
    return task, minimised(task, built_in, objective, outputs, y)


def _choice(
    experiment: Experiment, dataset: FederatedDataset, model: Model, initial: Weights, minimised: Minimised
) -> TrainerChoice:
    engine = experiment.engine
    module = model.module()
    # The kind of device that this process sees stands for all: workers are expected to be alike.
    kind = choose_device(engine.gpus_per_worker).type

    def not_recorded() -> str | None:
        return first_examples.recording_obstacle(experiment, dataset, model, initial, minimised.task)

    choice = choose(training_conditions(experiment, kind), module, minimised.task, minimised.obstacle, not_recorded)
    if engine.cuda_graphs and (kind != "cuda" or choice.trainer != "stacked"):
        raise ExperimentError(
            f"engine.cuda_graphs = true records the passes of stacked clients on NVIDIA cards, but here clients "
            f"are trained by the trainer {choice.trainer!r} on {kind}: leave it out."
        )
    return choice


def training_conditions(experiment: Experiment, device_kind: str) -> TrainingConditions:
    """Return what of the experiment the choice of a trainer depends on, for a kind of device."""
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
        gradients="one" if client.personalisation is None else client.personalisation.gradients,
        accumulate=client.accumulate,
    )


def slow_precision(plan: Plan) -> str | None:
    """Return why the chosen precision is slow on this machine; None if it is not."""
    engine = plan.experiment.engine
    device = choose_device(engine.gpus_per_worker)
    # A worker refuses a card without such products.
    if engine.precision == "bf16" and device.type == "cpu" and not has_bf16(device):
        return "this processor has no bf16 products: bf16 is slower than float32, but correct"
    return None


def log_beginning(plan: Plan) -> None:
    """Log the trainer that trains the clients, with its reason; warn of a slow precision.

    The script's process calls this once, and the messages are about its processor.
    """
    log.info("clients are trained by the trainer %s: %s", plan.choice.trainer, plan.choice.why)
    if (norms := frozen_norms(plan.model.module())) and not plan.experiment.client.hold_frozen_norms:
        log.warning(
            "the parameters of BatchNorm %s are frozen, but its running statistics follow the clients' batches: "
            "client.hold_frozen_norms = true holds them still",
            ", ".join(norms),
        )
    looked = range(min(first_examples.LOOKED_AT, len(plan.dataset.train)))
    if found := first_examples.not_finite(plan.dataset, looked):
        flaw = f"of the first {len(looked)} training clients {len(found)} have values that are not finite"
        log.warning("%s: %s: updates that this makes not finite are rejected", flaw, ", ".join(found))
    # A script's loss may take labels as real numbers.
    if "loss" not in plan.passed.names and (dtype := first_examples.labels_as_floats(plan.dataset, looked)) is not None:
        log.warning(
            "y holds whole numbers, but is of %s, which makes this a regression: class labels are integers", dtype
        )
    if (slow := slow_precision(plan)) is not None:
        log.warning("engine.precision: %s", slow)
