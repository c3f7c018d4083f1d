"""One client after another, by local steps that take gradients of one batch at several points.

For methods whose local step is not the gradient at y alone: a model of the client's own that moves beside y, or a
gradient through a gradient (client/personalisation). Rows are y, and the client's own vector where it moves too; the
optimizer takes them as a stack.
"""

from __future__ import annotations

from typing import Any, NoReturn

import torch
from torch import Tensor

from raysim import card
from raysim.client.chunk_clients import LocalInputs
from raysim.client.dropout import StepKeys
from raysim.client.objective import LocalObjective, ObjectiveAt, Received
from raysim.client.personalisation.personalisation import StepAt, StepGradients
from raysim.client.trainers.bound_module import BoundModule, Curved
from raysim.client.trainers.client_by_client import LocalEnd
from raysim.client.trainers.local_steps import LocalSteps, StepRule, StepVectors
from raysim.client.trainers.on_modules import LocalTraining, OnModules
from raysim.client.trainers.recording.recorded_steps import BY_AUTOGRAD, StepRecording
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class SeveralPoints(OnModules):
    """Trainer over two modules: one at y, whose outputs are scored and whose buffers count, one for all other points.

    Args:
        model, like, task, precision, objective, recording: see `OneByOne`.
        rule: what is done to each row's gradient, and the optimizer; not plain.
        step: the gradients of a local step.
    """

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
        *,
        step: StepGradients,
        objective: LocalObjective | None = None,
        recording: StepRecording = BY_AUTOGRAD,
    ) -> None:
        assert not rule.plain
        self._rule, self._step = rule, step
        self._y, self._other = (
            BoundModule(
                model,
                like,
                task,
                precision,
                plain=False,
                objective=objective,
                recording=BY_AUTOGRAD if step.curved else recording,
            )
            for _ in range(2)
        )
        super().__init__(task, (self._y, self._other), model, objective)

    def _train_on(self, given: LocalTraining) -> LocalEnd:
        at_y, client, params = self._y, given.client, given.broadcast.params
        own = client.own if self._step.own else None
        rows = torch.stack([params] if own is None else [params, own])
        gradients = torch.zeros_like(rows)
        taus, inputs = [client.batches.num_steps], LocalInputs.of([client])
        vectors = StepVectors(rows, gradients)
        steps = LocalSteps(self._rule, vectors, rows.clone(), taus, inputs, given.lr, given.start)
        received = Received(self._model, given.broadcast)
        for number, (batch, targets, keys) in enumerate(zip(given.x, given.y, at_y.keys_of(client), strict=True)):
            at_y.weights.params.copy_(rows[0])
            at = self._at(client, number, received)
            # The same draws at every point: those that the module makes where the generators stand now.
            stand = [(generator, generator.get_state()) for generator in card.generators(params.device)]
            curved: Curved = _not_curved
            # A copy at every point: a forward may write to its input.
            if self._step.curved:
                outputs, losses, curved = at_y.differentiate_twice(batch.clone(), targets, keys, at)
                given.scores.keep(outputs, losses)
            else:
                given.scores.keep(*at_y.differentiate(batch.clone(), targets, keys, 1.0, at))

            def elsewhere(
                point: Tensor,
                x: Tensor = batch,
                y: Tensor = targets,
                keys: StepKeys | None = keys,
                at: ObjectiveAt | None = at,
                stand: Any = stand,
            ) -> Tensor:
                with card.same_draws(point.device):
                    for generator, state in stand:
                        generator.set_state(state)
                    self._other.weights.params.copy_(point)
                    self._other.differentiate(x.clone(), y, keys, 1.0, at)
                return self._other.gradient.clone()

            step = StepAt(tuple(rows), at_y.gradient.clone(), elsewhere, curved)
            for row, made in zip(gradients, self._step.gradients(step), strict=True):
                row.copy_(made)
            steps.step()
        inverses = steps.inverses()
        return LocalEnd(
            (rows[0] - params)[None],
            at_y.weights.buffers[None],
            at_y.weights.counters[None],
            # Only what is done to y is sent.
            inverses=None if inverses is None else inverses[:, : len(params)],
            own=None if own is None else rows[1:],
        )


def _not_curved(vector: Tensor) -> NoReturn:
    raise AssertionError("this step did not ask for the Hessian")
