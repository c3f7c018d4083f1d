"""One client after another, in place on a flat parameter buffer: the trainer for any module.

Nothing is created per client or per local step but the activations: loading the model is one copy, the delta one
subtraction. The gradient is autograd's. Where the local step of a batch's shape can be recorded ("recorded"), its
operators are called again without autograd, and products make plain SGD's step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import torch
from torch import Tensor

from raysim import card
from raysim.client.chunk_clients import LocalInputs
from raysim.client.objective import LocalObjective, Received
from raysim.client.trainers.bound_module import BoundModule
from raysim.client.trainers.class_scores import scorer
from raysim.client.trainers.client_by_client import LocalEnd
from raysim.client.trainers.local_steps import LocalSteps, StepRule, StepVectors
from raysim.client.trainers.on_modules import LocalTraining, OnModules
from raysim.client.trainers.recording.recorded_steps import BY_AUTOGRAD, StepRecording
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class OneByOne(OnModules):
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
        # What interprets steps has a C compiler.
        in_c = recording.interprets or recording.kernels.classes is not None
        super().__init__(task, modules, model, objective, scorer(task, like.params.dtype) if in_c else None)

    def _train_on(self, given: LocalTraining) -> LocalEnd:
        own, anchor, client, broadcast = self._own, self._anchor, given.client, given.broadcast
        weights = own.weights
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
        if anchor is None and self._objective is None and not steps.acts and not own.dropouts:
            # Products make the steps, and nothing is to be done between them.
            for x, y, length in _by_length(given):
                for made in own.differentiate_several(x, y, length, steps.alpha):
                    given.scores.keep(*made)
        else:
            self._step_by_step(given, steps)
        delta = steps.delta()
        return LocalEnd(
            delta[None],
            weights.buffers[None],
            weights.counters[None],
            steps.mean_gradients(),
            steps.inverses(),
            samples=steps.samples(),
        )

    def _step_by_step(self, given: LocalTraining, steps: LocalSteps) -> None:
        own, anchor, client = self._own, self._anchor, given.client
        alpha, acts = steps.alpha, steps.acts
        received = Received(self._model, given.broadcast)
        for step, (batch, targets, keys) in enumerate(zip(given.x, given.y, own.keys_of(client), strict=True)):
            if anchor is not None:
                # The same draws for both: the generators are put back to where they were. And the same batch: a forward
                # may write to its input.
                with card.same_draws(client.x.device):
                    for _ in anchor.in_pieces(batch.clone(), targets, keys, 1.0, self._at(client, step, received)):
                        pass
            at = self._at(client, step, received)
            for made in own.in_pieces(batch, targets, keys, alpha, at):
                given.scores.keep(*made)
            if acts:
                steps.step()


def _by_length(given: LocalTraining) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield the examples of batches that follow each other and have the same length, and the length."""
    x, y, first = given.x.visits, given.y.visits, 0
    for length, batches in groupby(given.y.lengths):
        stop = first + length * sum(1 for _ in batches)
        yield x[first:stop], y[first:stop], length
        first = stop
