"""Tries a model on a client's first examples, before the first round."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysim.client import batches
from raysim.client.augmentations import augment
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers.make import make
from raysim.client.trainers.make import recording_obstacle as obstacle
from raysim.data.dataset import FederatedDataset
from raysim.data.on_device import Examples
from raysim.engine.plan import first_metrics
from raysim.engine.plan.plan import Plan
from raysim.errors import ModelError
from raysim.experiment.experiment import Experiment
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task, check_fit

MOST = 2
"""Number of examples of the first client."""


def check(plan: Plan, own_loss: bool) -> None:
    """Pass a client's first examples through the model, its loss and user-defined metrics; with vmap, through a step.

    Raises:
        ModelError: the model or the loss failed; the error has the shapes of their arguments.
        ExperimentError: a metric failed, or returned an invalid value.
    """
    x_batch, y_batch = load(plan.experiment, plan.dataset, plan.initial)
    module = bind(plan.model, plan.initial.clone(), x_batch.device).eval()
    try:
        outputs = module(x_batch)
    except Exception as error:
        raise ModelError(
            f"The module failed on a batch x of shape {tuple(x_batch.shape)} and dtype {x_batch.dtype}: {error}"
        ) from error
    try:
        check_fit(plan.task, outputs, y_batch, plan.dataset.num_classes, own_loss)
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"The loss failed on outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y_batch.shape)}, "
            f"dtype {y_batch.dtype}: {error}"
        ) from error
    first_metrics.check(plan.metrics(), outputs, y_batch)
    check_client_axis(plan)


def check_client_axis(plan: Plan) -> None:
    """Take a local step with two clients that hold the first examples, where the plan's trainer is vmap.

    Only a trial shows whether torch.func.vmap accepts a module: it refuses a forward that depends on values.

    Raises:
        ModelError: vmap cannot train the module; the error has the reason.
    """
    if plan.choice.trainer != "vmap":
        return
    x, y = load(plan.experiment, plan.dataset, plan.initial)
    client = Client(0, len(x), x, y, batches.whole(len(x)), key=0)
    precision = plan.experiment.engine.precision
    try:
        with torch.random.fork_rng(devices=[]):
            trainer = make(plan.choice, plan.model, plan.initial, plan.minimised.task, ClientSection(), precision)
            list(trainer.train(plan.initial, [client, client], lr=0.0))
    except Exception as error:
        raise ModelError(
            f"engine.trainer = 'vmap' cannot be used: with a client axis the module fails: {error}. "
            f"Any module trains with 'one_by_one'."
        ) from error


def recording_obstacle(
    experiment: Experiment, dataset: FederatedDataset, model: Model, initial: Weights, task: Task
) -> str | None:
    """Return why a local step on the first examples cannot be recorded; None where it can."""
    batch = load(experiment, dataset, initial)
    return obstacle(model, initial, task, experiment.training, experiment.engine.precision, *batch)


def load(experiment: Experiment, dataset: FederatedDataset, like: Weights) -> tuple[Tensor, Tensor]:
    """Load the first client's first examples, floats in the dtype of `like`."""
    few = min(MOST, int(dataset.train.sizes(np.zeros(1, np.int64))[0]))
    x_batch, y_batch = Examples(dataset).load("train", [(0, 0, few)], like.params)
    return augment.evaluated(experiment.client.augment, x_batch), y_batch


def outputs(model: Model, initial: Weights, x: Tensor) -> Tensor | None:
    """Return the module's outputs for these examples; None if it fails. `check` raises the error."""
    try:
        found = bind(model, initial.clone(), x.device).eval()(x)
    except Exception:
        return None
    return found.detach() if isinstance(found, Tensor) and found.dim() and len(found) == len(x) else None
