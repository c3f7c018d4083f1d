"""Finds by trial on the first examples which trainers a module allows, and chooses one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from raysim.client import batches
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.client.trainers import construction
from raysim.client.trainers.construction import make
from raysim.client.trainers.kernel.kernels import KernelsUsed
from raysim.client.trainers.minimised_loss import Minimised
from raysim.client.trainers.recognise import Recognised
from raysim.client.trainers.recognised_by_trial import outputs_and_gradients, recognised_on, without_dropout
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.client.trainers.trainer_table import TrainingConditions, choose
from raysim.config.global_draws import draws
from raysim.config.repetition import is_close
from raysim.data.dataset import FederatedDataset
from raysim.engine.plan import first_module
from raysim.engine.plan.first_examples import MOST, load, load_several
from raysim.engine.plan.plan import Plan
from raysim.engine.plan.short_batches import shortest
from raysim.errors import ModelError, within
from raysim.experiment.experiment import Experiment
from raysim.models import memory
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task

MOST_OF_A_BATCH = 64
"""Examples at most of which it is seen whether a local step is interpreted."""

REDUCED = 0.05
"""Difference of gradients, relative to the largest number, that is none in a reduced precision."""


def chosen(
    given: TrainingConditions,
    experiment: Experiment,
    dataset: FederatedDataset,
    model: Model,
    initial: Weights,
    minimised: Minimised,
) -> TrainerChoice:
    """Choose by the table, which asks for trials where it needs them; see `choose`."""
    task = minimised.task
    steps = partial(_step_obstacles, experiment, dataset, model, initial, task)
    layers = partial(_recognised, experiment, dataset, model, initial)
    return choose(given, model.module(), task, minimised.obstacle, steps, layers)


def check_client_axis(plan: Plan) -> None:
    """Train clients of unequal batches together, where the plan's trainer is vmap, and each alone by autograd.

    Only a trial shows whether torch.func.vmap accepts a module: it refuses a forward that depends on values. The
    smaller batches are filled up, which a module sees that mixes the examples of a batch, or asks for their number.
    None is shorter than the run's: a module may refuse one example where no client has a batch of one.

    Raises:
        ModelError: vmap cannot train the module; the error has the reason.
    """
    if plan.choice.trainer != "vmap":
        return
    rule, advice = "engine.trainer = 'vmap' cannot be used", "Any module trains with 'one_by_one'."
    x, y = load_several(plan.experiment, plan.dataset, plan.initial, MOST + 1)
    fewest = min(shortest(plan.experiment, plan.dataset), MOST_OF_A_BATCH - MOST)
    lengths = {*range(fewest, fewest + MOST + 1), max(fewest, min(_largest_batch(plan.experiment), MOST_OF_A_BATCH))}
    rows = torch.arange(max(lengths)) % len(x)
    clients = [
        Client(0, number, x[rows[:number]], y[rows[:number]], batches.whole(number), key=0)
        for number in sorted(lengths, reverse=True)
    ]
    try:
        together = _deltas(plan, plan.choice, clients)
    except Exception as error:
        if memory.is_lacking(error):
            raise
        raise ModelError(f"{rule}: with a client axis the module fails: {within(error)}. {advice}") from error
    try:
        alone = _deltas(plan, replace(plan.choice, trainer="one_by_one"), clients)
    except Exception as error:
        if memory.is_lacking(error):
            raise
        raise ModelError(
            f"{rule}: batches are filled up there, and without that the module fails for some numbers of examples from "
            f"{fewest} to {max(lengths)}: {within(error)}. {advice}"
        ) from error
    relative = first_module.RELATIVE if plan.experiment.engine.precision == "float32" else REDUCED
    if not all(is_close(one, other, relative) for one, other in zip(together, alone, strict=True)):
        raise ModelError(
            f"{rule}: with a client axis the module has other gradients, as where it mixes the examples of a batch, "
            f"which several clients share here. {advice}"
        )


def check_pieces(plan: Plan) -> None:
    """Compare a batch with its pieces, where `client.accumulate` divides batches: in outputs, gradients and buffers.

    Raises:
        ModelError: the module makes something else of a batch than of its pieces.
    """
    if plan.experiment.training.accumulate == 1:
        return
    x, _ = load_several(plan.experiment, plan.dataset, plan.initial, MOST)
    weights = plan.initial.clone()
    module = bind(plan.model, weights, x.device).train()
    made = []
    with without_dropout(module), draws() as drew:
        for pieces in ((x,), x.split(1)):
            for held, value in zip(weights.vectors, plan.initial.vectors, strict=True):
                held.copy_(value)
            try:
                made.append((*outputs_and_gradients(module, module, pieces), *(one.clone() for one in weights.vectors)))
            except Exception as error:
                if memory.is_lacking(error):
                    raise
                # A client's training says why.
                return
        if drew():
            # Draws are others in each piece, as masks of dropout are.
            return
    if not all(first_module.is_close(whole, divided) for whole, divided in zip(*made, strict=True)):
        raise ModelError(
            "client.accumulate divides a batch, but the module gives other outputs, gradients or buffers for a batch "
            "of two examples than for each of them alone: it mixes the examples of a batch, or counts batches. Leave "
            "client.accumulate out."
        )


def _deltas(plan: Plan, choice: TrainerChoice, clients: Sequence[Client]) -> list[Tensor]:
    """The update of each client after a step of SGD."""
    with torch.random.fork_rng(devices=[]):
        precision = plan.experiment.engine.precision
        trainer = make(choice, plan.model, plan.initial, plan.minimised.task, ClientSection(), precision)
        trained = trainer.train(plan.initial, clients, lr=1.0)
        return [delta.clone() for updates in trained for delta in updates.delta]


def _step_obstacles(
    experiment: Experiment,
    dataset: FederatedDataset,
    model: Model,
    initial: Weights,
    task: Task,
    interprets: bool,
    kernels: KernelsUsed,
) -> StepObstacles:
    """Return why a local step on the first examples cannot be recorded, and if it `interprets`, not be interpreted."""
    x, y = load(experiment, dataset, initial)
    if interprets:
        # Torch may be faster where there are many examples: as many as in a batch, some of them again.
        rows = torch.arange(min(_largest_batch(experiment), MOST_OF_A_BATCH)) % len(x)
        x, y = x[rows], y[rows]
    return construction.step_obstacles(
        model, initial, task, experiment.training, experiment.engine.precision, (x, y), interprets, kernels
    )


def _largest_batch(experiment: Experiment) -> int:
    """Examples of the largest local step whose number the experiment says."""
    sections = experiment.configurations or (experiment.training,)
    return max((size for section in sections for size in section.batch_sizes), default=MOST)


def _recognised(experiment: Experiment, dataset: FederatedDataset, model: Model, initial: Weights) -> Recognised | str:
    """Return the module's layers, or why they are not recognised; it is tried on the first examples.

    With other values than the initial ones: layers that begin alike then differ.
    """
    x, _ = load(experiment, dataset, initial)
    return recognised_on(bind(model, first_module.other_values(initial), x.device).train(), x)
