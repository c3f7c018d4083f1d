"""From an experiment to a `Plan`: data prepared, model made, and everything checked before the first round."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from raysim import evaluate, personalised
from raysim.client.adversary import LabelFlip
from raysim.client.augmentations import augment
from raysim.client.forms.choose import Way, choose
from raysim.client.work import Between
from raysim.data.dataset import FederatedDataset
from raysim.data.label_counts import label_counts
from raysim.data.pooled import pooled
from raysim.engine import first_examples
from raysim.engine.circumstances import circumstances
from raysim.engine.numerics import choose_device
from raysim.engine.plan import Plan, evaluated_splits
from raysim.engine.vocabulary import fitted
from raysim.errors import ExperimentError
from raysim.experiment import Experiment
from raysim.models import section as models
from raysim.models.model import Model, ModuleFactory, create, replace_params
from raysim.models.task import Loss, Task, task_for
from raysim.prepared import dataset_of
from raysim.server import optimizers, own
from raysim.server.aggregators import fewest, refusal
from raysim.server.own import Maker

_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve(
    experiment: Experiment,
    dataset: FederatedDataset | None = None,
    model: ModuleFactory | None = None,
    loss: Loss | None = None,
    params: Mapping[str, npt.ArrayLike] | None = None,
    server_optimizer: Maker | None = None,
) -> Plan:
    """Prepare the data, make the model, and check that everything fits.

    Args:
        experiment: validated on its own already.
        dataset, model, loss: stand in for `[data]`, `[model]` and the task's own loss.
        params: initial values by name, for every trainable parameter.
        server_optimizer: makes the server's optimizer, where `[server.optimizer]` is "own".

    Raises:
        ExperimentError, DataError, ModelError: what does not fit, with what was given and what is allowed.
    """
    own.check(experiment.server.optimizer, server_optimizer)
    data = experiment.data if dataset is None else None
    if dataset is None:
        dataset = dataset_of(experiment)
    if experiment.pooled:
        dataset = pooled(dataset)
    outputs = dataset.num_classes if dataset.num_classes is not None else math.prod(dataset.y.shape)
    seed = experiment.seed
    if model is None:
        if experiment.model is None:
            raise ExperimentError("The experiment has no [model] section, so model= must be passed.")
        x_shape = augment.seen_shape(experiment.client.augment, dataset.x.shape)
        model = models.factory(fitted(experiment.model, data), x_shape, outputs)
        seed = experiment.model.seed if experiment.model.seed is not None else seed
    made, initial = create(model, seed, _DTYPES[experiment.engine.dtype])
    if params is not None:
        initial = replace_params(made, initial, params)
    task = task_for(dataset.num_classes, loss, dataset.y.padding, dataset.y.uncounted)
    population = _label_population(dataset) if experiment.server.diagnostics.labels else None
    way = _way(experiment, made, task)
    plan = Plan(experiment, dataset, made, initial, task, way, population, server_optimizer=server_optimizer)
    plan.initial_state()
    if server_optimizer is not None:
        own.check_step(optimizers.make(experiment.server.optimizer, server_optimizer), initial.params, made.params)
    _check_rule(plan)
    _check_equal_work(plan)
    for split in evaluated_splits(plan):
        dataset.split(split)
    if (tuning := experiment.evaluation.fine_tuning) is not None:
        scored = dataset.split(tuning.split)
        chosen = evaluate.sample_clients(scored, experiment.evaluation.clients, experiment.seed)
        personalised.plan(tuning.split, scored, dataset.train, chosen.tolist())
    first_examples.check(plan, own_loss=loss is not None)
    return plan


def _check_rule(plan: Plan) -> None:
    """Refuse what is not defined for these cohorts and data."""
    e = plan.experiment
    if isinstance(e.adversary, LabelFlip) and plan.dataset.num_classes is None:
        raise ExperimentError(
            "adversary.name = 'label_flip' flips labels, but the targets of these data are real numbers."
        )
    if (rule := e.server.rule) is None:
        return
    drawing = e.cohort.drawing
    if drawing is not None and drawing.name in ("bernoulli", "availability") and fewest(rule) > 1:
        raise ExperimentError(
            f"server.aggregator: {rule.name} needs at least {fewest(rule)} updates in every round, but cohorts of the "
            f"{drawing.name} sampler have any size."
        )
    size_at = e.cohort.size_at(len(plan.dataset.train))
    smallest = min(int(size_at(t)) for t in range(e.rounds))
    if why := refusal(rule, smallest):
        raise ExperimentError(f"server.aggregator: {why}.")


def _check_equal_work(plan: Plan) -> None:
    """scaffold_m is defined where all clients take equally many local steps."""
    e = plan.experiment
    if e.client.correction is None or e.client.correction.name != "scaffold_m":
        return
    changes = e.client.schedule
    amounts = [e.client.epochs, e.client.local_steps, *(c.epochs for c in changes), *(c.local_steps for c in changes)]
    if any(isinstance(amount, Between) and amount.low < amount.high for amount in amounts):
        raise ExperimentError(
            "client.correction.name = 'scaffold_m' needs as many local steps of every client, but the local work is "
            "drawn: set it to a number, or take 'scaffold', which is defined with any."
        )
    everyone = np.arange(len(plan.dataset.train))
    for t in {0, *(change.round for change in e.client.schedule)}:
        steps = plan.local_steps(everyone, t)
        if steps.min() != steps.max():
            few, many = int(steps.argmin()), int(steps.argmax())
            raise ExperimentError(
                f"client.correction.name = 'scaffold_m' needs as many local steps of every client, but in round {t} "
                f"client {plan.dataset.train.id_of(few)!r} takes {steps[few]} and client "
                f"{plan.dataset.train.id_of(many)!r} takes {steps[many]}: set client.local_steps to a number, or take "
                f"'scaffold', which is defined with any."
            )


def _label_population(dataset: FederatedDataset) -> torch.Tensor:
    """Label counts over all training clients, padding left out."""
    if dataset.num_classes is None:
        raise ExperimentError(
            "server.diagnostics.labels compares label distributions, but the targets of these data are real numbers."
        )
    counts = np.zeros(dataset.num_classes, dtype=np.int64)
    for position in range(len(dataset.train)):
        counts += label_counts(dataset.train.client(position)[1], len(counts), dataset.y.padding)
    return torch.from_numpy(counts)


def _way(experiment: Experiment, model: Model, task: Task) -> Way:
    engine = experiment.engine
    with torch.random.fork_rng(devices=[]):
        module = model.factory()
    # The kind of device that this process sees stands for all: workers are expected to be alike.
    kind = choose_device(engine.gpus_per_worker).type
    way = choose(circumstances(experiment, kind), module, task)
    if engine.cuda_graphs and (kind != "cuda" or way.form != "stacked"):
        raise ExperimentError(
            f"engine.cuda_graphs = true records the passes of stacked clients on NVIDIA cards, but here clients "
            f"are trained by the form {way.form!r} on {kind}: leave it out."
        )
    return way
