"""Tries a model on a client's first examples, before the first round."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raysim.client import batches
from raysim.client.augmentations import augment
from raysim.client.objective import RoundAt
from raysim.client.personalisation import choice as personalisations
from raysim.client.personalisation.personalisation import StepAt, StepGradients
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers.construction import Further, make
from raysim.config.global_draws import draws
from raysim.data.dataset import FederatedDataset
from raysim.data.on_device import Examples
from raysim.engine.plan import first_metrics
from raysim.engine.plan.plan import Plan
from raysim.errors import ModelError, within
from raysim.experiment.experiment import Experiment
from raysim.models.model import Model, Weights, bind
from raysim.models.task import check_fit

MOST = 2
"""Number of examples of the first client."""


def check(plan: Plan, own_loss: bool) -> None:
    """Pass a client's first examples through the model, its loss and user-defined metrics.

    Raises:
        ModelError: the model or the loss failed; the error has the shapes of their arguments.
        ExperimentError: a metric failed, or returned an invalid value.
    """
    x_batch, y_batch = load(plan.experiment, plan.dataset, plan.initial)
    module = bind(plan.model, plan.initial.clone(), x_batch.device).eval()
    try:
        outputs = module(x_batch)
    except Exception as error:
        # Whole numbers stay whole, because an embedding looks tokens up by them.
        hint = "" if x_batch.is_floating_point() else " Unless x are tokens or categories, make them float32."
        raise ModelError(
            f"The module failed on a batch x of {len(x_batch)} examples, shape {tuple(x_batch.shape)} and dtype "
            f"{x_batch.dtype}{_failing(module, x_batch)}: {within(error)}.{hint}"
        ) from error
    try:
        check_fit(plan.task, outputs, y_batch, plan.dataset.num_classes, own_loss)
    except ModelError as error:
        holders = [] if own_loss else _holders_of_more(plan.dataset, outputs)
        if holders:
            raise ModelError(f"{error} Labels from {outputs.shape[-1]} on are of {', '.join(holders)} only.") from None
        raise
    except Exception as error:
        raise ModelError(
            f"The loss failed on outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y_batch.shape)}, "
            f"dtype {y_batch.dtype}: {error}"
        ) from error
    first_metrics.check(plan.metrics(), outputs, y_batch)
    _check_twice(plan)


MOST_HOLDERS = 3
"""An error about labels names the clients that hold them, unless there are more than so many."""


def _holders_of_more(dataset: FederatedDataset, outputs: object) -> list[str]:
    """Return the clients that hold labels beyond the module's outputs, if they are few: their labels may be wrong."""
    found: list[str] = []
    if dataset.num_classes is None or not isinstance(outputs, Tensor) or not outputs.dim():
        return found
    for name, split in dataset.splits.items():
        for position in range(len(split)):
            if (split.client(position)[1] >= outputs.shape[-1]).any():
                found.append(f"client {split.id_of(position)!r} of {name}")
                if len(found) > MOST_HOLDERS:
                    return []
    return found


def _failing(module: nn.Module, x: Tensor) -> str:
    """Return which layer fails on the batch, and on which shape: torch's words alone name neither."""
    began: list[tuple[str, nn.Module, tuple[Any, ...]]] = []

    def begin(name: str, layer: nn.Module, given: tuple[Any, ...]) -> None:
        began.append((name, layer, given))

    def end(layer: nn.Module, given: object, returned: object) -> None:
        began.pop()

    try:
        for name, layer in module.named_modules():
            if name:
                layer.register_forward_pre_hook(partial(begin, name))
                layer.register_forward_hook(end)
        module(x)
    except Exception:
        if began:
            name, layer, given = began[-1]
            first = given[0] if given else None
            shape = f", which was given shape {tuple(first.shape)}" if isinstance(first, Tensor) else ""
            return f", in its layer {name!r}, {' '.join(str(layer).split())[:100]}{shape}"
    return ""


def _check_twice(plan: Plan) -> None:
    """Take a local step with the Hessian, where a personalisation does.

    Raises:
        ModelError: the module cannot be differentiated twice.
    """
    kind = personalisations.make(plan.experiment.client, plan.model.params)
    if kind is None or kind.step is None or not kind.step.curved:
        return
    x, y = load(plan.experiment, plan.dataset, plan.initial)
    round_at = RoundAt(plan.experiment.seed, 0, plan.dataset.train.id_of)
    client = Client(0, len(x), x, y, batches.whole(len(x)), key=0, at=round_at)
    task, objective = plan.minimised.task, plan.minimised.objective
    step = StepGradients(_compared, curved=True)
    try:
        with draws():
            further = Further(objective=objective, several=step)
            trainer = make(plan.choice, plan.model, plan.initial, task, ClientSection(), "float32", further)
            list(trainer.train(plan.initial, [client], lr=0.0))
    except Exception as error:
        raise ModelError(
            f"client.personalisation.hessian = 'exact' differentiates twice, and that fails here: {within(error)}. "
            f"Set it to 'difference' or 'none'."
        ) from error


def _compared(step: StepAt) -> Sequence[Tensor]:
    """Compare the product of the Hessian and the gradient with a difference of gradients.

    A function that cannot be differentiated twice may say so, or be left out of the product.

    Raises:
        ValueError: they differ by more than rounding, or a kink, would make.
    """
    (y,), v = step.rows, step.gradient
    length = float(v.norm())
    if length:
        apart = 1e-3 / length
        difference = (step.at(torch.add(y, v, alpha=apart)) - step.at(torch.sub(y, v, alpha=apart))) / (2 * apart)
        product = step.curved(v)
        gap, larger = float((product - difference).norm()), max(float(product.norm()), float(difference.norm()))
        if gap > 0.5 * larger and gap > 0.01 * length:
            raise ValueError(f"the product with the Hessian is {gap:.3g} away from a difference of length {larger:.3g}")
    return (v,)


def load(experiment: Experiment, dataset: FederatedDataset, like: Weights, position: int = 0) -> tuple[Tensor, Tensor]:
    """Load the first examples of a training client, floats in the dtype of `like`."""
    few = min(MOST, int(dataset.train.sizes(np.array([position], np.int64))[0]))
    x_batch, y_batch = Examples(dataset).load("train", [(position, 0, few)], like.params)
    return augment.for_evaluation(experiment.client.augment, x_batch), y_batch


def load_several(experiment: Experiment, dataset: FederatedDataset, like: Weights, most: int) -> tuple[Tensor, Tensor]:
    """Load the first examples of the first training clients, `most` at most: the first client alone may have only one,
    and copies of it do not show a module that mixes the examples of a batch."""
    sizes = dataset.train.sizes(np.arange(min(most, len(dataset.train))))
    taken = np.diff(np.minimum(np.cumsum(sizes), most), prepend=0)
    segments = [(position, 0, few) for position, few in enumerate(taken.tolist()) if few]
    x_batch, y_batch = Examples(dataset).load("train", segments, like.params)
    return augment.for_evaluation(experiment.client.augment, x_batch), y_batch


def outputs(model: Model, initial: Weights, x: Tensor) -> Tensor | None:
    """Return the module's outputs for these examples; None if it fails. `check` raises the error.

    Raises:
        ModelError: the factory makes another kind of module than before.
    """
    module = bind(model, initial.clone(), x.device).eval()
    try:
        # A module may write to its input.
        result = module(x.clone())
    except Exception:
        return None
    return result.detach() if isinstance(result, Tensor) and result.dim() and len(result) == len(x) else None
