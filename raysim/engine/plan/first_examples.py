"""Tries a model on a client's first examples, before the first round."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
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
from raysim.client.trainers import construction
from raysim.client.trainers.construction import Further, make
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.recognise import Recognised
from raysim.client.trainers.recognised_by_trial import recognised_on
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.config.global_draws import draws
from raysim.config.repetition import is_close
from raysim.data.dataset import FederatedDataset
from raysim.data.on_device import Examples
from raysim.engine.plan import first_metrics, first_module
from raysim.engine.plan.plan import Plan
from raysim.errors import ModelError, within
from raysim.experiment.experiment import Experiment
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task, check_fit

MOST_OF_A_BATCH = 64
"""Examples at most of which it is seen whether a local step is interpreted."""

MOST = 2
"""Number of examples of the first client."""

FAR = 100.0
"""Size of numbers at which models that are drawn as torch draws them learn little, or diverge."""

REDUCED = 0.05
"""Difference of gradients, relative to the largest number, that is none in a reduced precision."""

LOOKED_AT = 8
"""Clients whose values are looked at before the first round, and where none has an update."""


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
    check_client_axis(plan)
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


def are_shares(outputs: Tensor) -> bool:
    """Return whether outputs are shares that sum to 1, as after a softmax."""
    sums = outputs.double().sum(-1)
    is_share = outputs.shape[-1] > 1 and bool((outputs >= 0).all())
    return is_share and torch.allclose(sums, torch.ones_like(sums), atol=1e-4)


def mixes_examples(plan: Plan, x: Tensor, together: Tensor) -> bool:
    """Return whether the first of some outputs depends on its batch: on the other examples, or on their number.

    One copy of it more than the batch has examples is a batch with others, and of another size. A batch of one would
    tell the same, but BatchNorm without running statistics refuses it.
    """
    copies = outputs(plan.model, plan.initial, x[:1].repeat_interleave(len(x) + 1, 0))
    return copies is not None and not is_close(together[:1], copies[:1], first_module.RELATIVE)


def flaw_of_loss(plan: Plan) -> str | None:
    """Return what depends on the batch in the loss of a client's first example, as a predicate of it; see above."""
    x, y = load(plan.experiment, plan.dataset, plan.initial)
    together = outputs(plan.model, plan.initial, x)
    if together is None:
        return None
    copied = torch.zeros(len(y) + 1, dtype=torch.int64, device=y.device)
    try:
        losses = plan.task.losses(together, y)
    except Exception:
        # `check` raises it.
        return None
    try:
        copies = plan.task.losses(together[copied], y[copied])
    except Exception as error:
        return (
            f"fails on a batch of {len(copied)} equal examples ({within(error)}): the run ends at the first batch "
            f"whose examples are all equal"
        )
    if is_close(losses[:1], copies[:1], first_module.RELATIVE):
        return None
    return (
        "of an example depends on the others of its batch, or on how many they are, so scores depend on "
        "evaluation.batch_size, and on the clients that share a batch: if that is not meant, look for a mean over the "
        "batch, for a division by its size, and for outputs (batch, 1) beside targets (batch,), which torch extends to "
        "(batch, batch)"
    )


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


def check_client_axis(plan: Plan) -> None:
    """Train two clients of unequal batches together, where the plan's trainer is vmap, and each alone by autograd.

    Only a trial shows whether torch.func.vmap accepts a module: it refuses a forward that depends on values. The
    smaller batch is filled up, which a module that mixes the examples of a batch would see.

    Raises:
        ModelError: vmap cannot train the module; the error has the reason.
    """
    if plan.choice.trainer != "vmap":
        return
    rule, advice = "engine.trainer = 'vmap' cannot be used", "Any module trains with 'one_by_one'."
    x, y = load(plan.experiment, plan.dataset, plan.initial)
    rows = torch.arange(MOST + 1) % len(x)
    clients = [
        Client(0, number, x[rows[:number]], y[rows[:number]], batches.whole(number), key=0)
        for number in (MOST + 1, MOST)
    ]
    try:
        together = _deltas(plan, plan.choice, clients)
    except Exception as error:
        raise ModelError(f"{rule}: with a client axis the module fails: {within(error)}. {advice}") from error
    alone = _deltas(plan, replace(plan.choice, trainer="one_by_one"), clients)
    relative = first_module.RELATIVE if plan.experiment.engine.precision == "float32" else REDUCED
    if not all(is_close(one, other, relative) for one, other in zip(together, alone, strict=True)):
        raise ModelError(
            f"{rule}: with a client axis the module has other gradients, as where it mixes the examples of a batch, "
            f"which several clients share here. {advice}"
        )


def _deltas(plan: Plan, choice: TrainerChoice, clients: Sequence[Client]) -> list[Tensor]:
    """The update of each client after a step of SGD."""
    with torch.random.fork_rng(devices=[]):
        precision = plan.experiment.engine.precision
        trainer = make(choice, plan.model, plan.initial, plan.minimised.task, ClientSection(), precision)
        trained = trainer.train(plan.initial, clients, lr=1.0)
        return [delta.clone() for updates in trained for delta in updates.delta]


def step_obstacles(
    experiment: Experiment,
    dataset: FederatedDataset,
    model: Model,
    initial: Weights,
    task: Task,
    *,
    interprets: bool,
    kernels: KernelsUsed,
) -> StepObstacles:
    """Return why a local step on the first examples cannot be recorded, and if it `interprets`, not be interpreted."""
    x, y = load(experiment, dataset, initial)
    if interprets:
        # Torch may be faster where there are many examples: as many as in a batch, some of them again.
        sizes = {
            size for section in experiment.configurations or (experiment.training,) for size in section.batch_sizes
        }
        rows = torch.arange(min(max(sizes, default=MOST), MOST_OF_A_BATCH)) % len(x)
        x, y = x[rows], y[rows]
    return construction.step_obstacles(
        model, initial, task, experiment.training, experiment.engine.precision, (x, y), interprets, kernels
    )


def recognised(experiment: Experiment, dataset: FederatedDataset, model: Model, initial: Weights) -> Recognised | str:
    """Return the module's layers, or why they are not recognised; it is tried on the first examples.

    With other values than the initial ones: layers that begin alike then differ.
    """
    x, _ = load(experiment, dataset, initial)
    return recognised_on(bind(model, first_module.other_values(initial), x.device).train(), x)


def load(experiment: Experiment, dataset: FederatedDataset, like: Weights, position: int = 0) -> tuple[Tensor, Tensor]:
    """Load the first examples of a training client, floats in the dtype of `like`."""
    few = min(MOST, int(dataset.train.sizes(np.array([position], np.int64))[0]))
    x_batch, y_batch = Examples(dataset).load("train", [(position, 0, few)], like.params)
    return augment.for_evaluation(experiment.client.augment, x_batch), y_batch


def not_finite(dataset: FederatedDataset, positions: Iterable[int], dtype: torch.dtype) -> list[str]:
    """Return which of these training clients have values that are not finite in the model's dtype, by their ids."""
    ids = []
    for position in positions:
        x, y = (torch.from_numpy(np.array(values)) for values in dataset.train.client(position))
        if not all((each.to(dtype) if each.is_floating_point() else each).isfinite().all() for each in (x, y)):
            ids.append(dataset.train.id_of(position))
    return ids


def far_from_one(dataset: FederatedDataset, positions: Iterable[int]) -> float | None:
    """Return the largest finite size of a number in the x of these training clients; None if it is at most `FAR`."""
    if not np.issubdtype(np.dtype(dataset.x.dtype), np.floating):
        return None
    largest = 0.0
    for position in positions:
        x = dataset.train.client(position)[0]
        ends = (reduce(x, where=np.isfinite(x), initial=0.0) for reduce in (np.min, np.max))
        largest = max(largest, *(abs(float(end) * dataset.x.scale + dataset.x.offset) for end in ends))
    return largest if largest > FAR else None


def labels_as_floats(dataset: FederatedDataset, positions: Iterable[int]) -> str | None:
    """Return the dtype of targets of a regression that are like labels at these training clients: 0, 1, 2, ..."""
    if dataset.num_classes is not None or dataset.y.shape:
        return None
    values = np.unique(np.concatenate([dataset.train.client(position)[1] for position in positions]))
    is_like_labels = len(values) > 1 and values.min() >= 0 and (values == np.floor(values)).all()
    return dataset.y.dtype if is_like_labels else None


def begins_finite(plan: Plan, position: int) -> bool:
    """Return whether the first model has a finite loss of a training client's first examples."""
    x, y = load(plan.experiment, plan.dataset, plan.initial, position)
    with torch.no_grad():
        losses = plan.task.losses(bind(plan.model, plan.initial.clone(), x.device).eval()(x), y)
    return bool(losses.isfinite().all())


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
