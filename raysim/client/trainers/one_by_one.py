"""One client after another, in place on a flat parameter buffer: the trainer for any module.

Nothing is created per client or per local step but the activations: loading the model is one copy, the delta one
subtraction. The gradient is autograd's. Where the local step of a batch's shape can be recorded ("recorded"), its
operators are called again without autograd, and products make plain SGD's step.
"""

from __future__ import annotations

import numpy as np
import torch

from raysim import card
from raysim.client.chunk_clients import LocalInputs
from raysim.client.objective import LocalObjective, Received
from raysim.client.trainer import Updates
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.client_by_client import ClientByClient, LocalTraining
from raysim.client.trainers.local_steps import LocalSteps, StepRule, StepVectors
from raysim.client.trainers.recording.recorded_steps import BY_AUTOGRAD, StepRecording
from raysim.client.trainers.scores import Scores
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class OneByOne(ClientByClient):
    """Trainer over a module bound to this object's own weights; every nn.Dropout inside draws addressed masks.

    Args:
        model: factory and layouts.
        like: weights whose lengths, dtype and device the trainer's own buffers take.
        task: losses and hits.
        rule: what is done to a gradient, and the optimizer.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
        objective: stands in for the task's losses.
        recording: of local steps.
        pieces: in which a batch is computed; where there are several, the rule is not plain.
    """

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
        *,
        objective: LocalObjective | None = None,
        recording: StepRecording = BY_AUTOGRAD,
        pieces: int = 1,
    ) -> None:
        self._task = task
        self._rule = rule

        def bound(plain: bool) -> BoundModule:
            return BoundModule(
                model,
                like,
                task,
                precision,
                plain=plain,
                objective=objective,
                recording=recording,
                pieces=pieces,
            )

        self._own = bound(rule.plain)
        self._anchor = bound(plain=False) if rule.anchored else None
        modules = [self._own] if self._anchor is None else [self._own, self._anchor]
        super().__init__(modules, model, objective)

    def _train_on(self, given: LocalTraining) -> Updates:
        own, anchor, client, broadcast = self._own, self._anchor, given.client, given.broadcast
        weights = own.weights
        scores = Scores(self._task, given.targets)
        anchored = None if anchor is None else anchor.gradient
        steps = LocalSteps(
            self._rule,
            StepVectors(weights.params, own.gradient, anchored),
            broadcast.params,
            [client.batches.num_steps],
            LocalInputs.of([client]),
            given.lr,
            given.start,
        )
        alpha, acts = steps.alpha, steps.acts
        received = Received(self._model, broadcast)
        for step, (batch, targets, keys) in enumerate(zip(given.x, given.y, own.keys_of(client), strict=True)):
            if anchor is not None:
                # The same draws for both: the generators are put back to where they were. And the same batch: a forward
                # may write to its input.
                with card.same_draws(client.x.device):
                    for _ in anchor.in_pieces(batch.clone(), targets, keys, 1.0, self._at(client, step, received)):
                        pass
            at = self._at(client, step, received)
            for made in own.in_pieces(batch, targets, keys, alpha, at):
                scores.keep(*made)
            if acts:
                steps.step()
        loss, correct = scores.totals()
        delta = steps.delta()
        seen = np.array(client.batches.bounds[-1:])
        return Updates(
            delta[None],
            weights.buffers[None],
            weights.counters[None],
            loss,
            correct,
            seen,
            steps.mean_gradients(),
            inverses=steps.inverses(),
            samples=steps.samples(),
        )
