"""One client after another, in place on a flat parameter buffer, gradients by autograd: the trainer for any module.

Nothing is created per client or per local step but the activations: loading the model is one copy, the delta one
subtraction, a plain SGD step one fused update of views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.objective import LocalObjective, ObjectiveAt, Received
from raysim.client.trainer import Client, Updates
from raysim.client.trainers.local_steps import LocalSteps, StepRule
from raysim.client.trainers.scores import Scores
from raysim.client.trainers.watched import Watched, versions
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task


class OneByOne:
    """Trainer over a module bound to this object's own weights; every nn.Dropout inside draws addressed masks.

    Args:
        model: factory and layouts.
        like: weights whose lengths, dtype and device the trainer's own buffers take.
        task: losses and hits.
        rule: what is done to a gradient, and the optimizer.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
        objective: stands in for the task's losses.
    """

    trains_together = False

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
        objective: LocalObjective | None = None,
    ) -> None:
        self._task = task
        self._rule = rule
        self._model, self._objective = model, objective
        self._precision = None if precision == like.params.dtype else precision
        self._own = _Bound(model, like, objective, self._precision)
        self._anchor = _Bound(model, like, objective, self._precision) if rule.anchored else None
        self._gradient = torch.zeros_like(like.params)
        self._gradients = list(model.params.views(self._gradient).values())
        self._even: dict[int, Tensor] = {}

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Trainer.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr, start)

    def _train_one(self, broadcast: Weights, client: Client, lr: float, start: Mapping[str, Tensor] | None) -> Updates:
        own, anchor = self._own, self._anchor
        weights = own.load(broadcast)
        # What else a module draws, it draws from torch's generator: started at the client's key, it is addressed too.
        device = client.x.device
        _start_generators(client.key, device)
        x, y = client.visits()
        bounds = client.batches.bounds
        keys = dropout.keys([client.key], client.batches.num_steps, len(own.dropouts), device)
        scores = Scores(self._task, y)
        into = weights.params if self._rule.plain else self._gradient
        anchor_gradient = None if anchor is None else anchor.load(broadcast).params.new_zeros(weights.params.shape)
        steps = LocalSteps(self._rule, weights.params, into, anchor_gradient, broadcast.params, [client], lr, start)
        received, before = Received(self._model, broadcast), versions(y, broadcast.params)
        for step, (first, stop) in enumerate(pairwise(bounds)):
            batch = x[first:stop], y[first:stop], keys[:, step, 0], self._at(client, step, received)
            if anchor is not None and anchor_gradient is not None:
                # The same draws for both: the generators are put back to where they were.
                with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
                    made, _, _ = self._gradients_of(anchor, *batch)
                torch._foreach_copy_(anchor.views(anchor_gradient), made)
                batch = *batch[:3], self._at(client, step, received)
            made, outputs, losses = self._gradients_of(own, *batch)
            with torch.no_grad():
                if self._rule.plain:
                    torch._foreach_add_(own.params, made, alpha=steps.alpha)
                else:
                    torch._foreach_copy_(self._gradients, made)
                steps.step()
            scores.keep(outputs, losses)
        if self._objective is not None and versions(y, broadcast.params) != before:
            raise ValueError("objective= wrote to y or at.broadcast, which are not to be written to.")
        loss, correct = scores.totals()
        delta = weights.params.sub_(broadcast.params)
        return Updates(
            delta[None],
            weights.buffers[None],
            weights.counters[None],
            loss,
            correct,
            (bounds[-1],),
            steps.mean_gradients(),
        )

    def _at(self, client: Client, step: int, received: Received) -> ObjectiveAt | None:
        if self._objective is None:
            return None
        assert client.at is not None
        return ObjectiveAt(client.at, client.position, step, self._objective.constants, received, client.x.device)

    def _gradients_of(
        self, bound: _Bound, x: Tensor, y: Tensor, keys: Tensor, at: ObjectiveAt | None
    ) -> tuple[tuple[Tensor, ...], Tensor | None, Tensor]:
        """Gradients of the batch's mean loss by parameter, outputs if there are any to score, and losses."""
        for layer, key in zip(bound.dropouts, keys, strict=True):
            layer.start(key)
        outputs: Tensor | None
        if at is None or bound.watched is None:
            with self._autocast(x.device):
                outputs = bound.module(x)
            outputs = outputs.to(self._gradient.dtype)
            losses, outputs = self._task.losses(outputs, y), outputs.detach()
        else:
            losses, outputs = bound.watched.losses(x, y, at)
        # The gradient of the mean, without a node for it.
        made = torch.autograd.grad(losses, bound.parameters, self._shares(losses), materialize_grads=True)
        return made, outputs, losses.detach()

    def _shares(self, losses: Tensor) -> Tensor:
        """1 / b for each of b losses."""
        batch = len(losses)
        if batch not in self._even:
            self._even[batch] = losses.detach().new_full(losses.shape, 1 / batch)
        return self._even[batch]

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self._precision is None:
            return nullcontext()
        return torch.autocast(device.type, self._precision)


class _Bound:
    """A module in training mode over weights of its own; `watched`: the objective over it, if there is one."""

    def __init__(
        self, model: Model, like: Weights, objective: LocalObjective | None, precision: torch.dtype | None
    ) -> None:
        self._weights = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._layout = model.params
        self.module = bind(model, self._weights, like.params.device).train()
        self.dropouts = dropout.address(self.module, like.params)
        dtype = like.params.dtype
        self.watched = None if objective is None else Watched(objective, self.module, precision, dtype)
        trained = model.params.views(self._weights.params)
        named = dict(self.module.named_parameters())
        self.parameters = [named[name] for name in trained]
        self.params = list(trained.values())

    def load(self, broadcast: Weights) -> Weights:
        """Copy the values in, and return where they lie."""
        self._weights.params.copy_(broadcast.params)
        self._weights.buffers.copy_(broadcast.buffers)
        self._weights.counters.copy_(broadcast.counters)
        return self._weights

    def views(self, flat: Tensor) -> list[Tensor]:
        """The parameters' places in a flat vector."""
        return list(self._layout.views(flat).values())


def _start_generators(key: int, device: torch.device) -> None:
    """Start the generators that a module on the device may draw from at a 64-bit key.

    Not torch.manual_seed: while no card is in use that keeps a formatted stack trace of every call, three times over,
    which took longer than a small client's local step.
    """
    for generator in _generators(device):
        generator.manual_seed(key >> 1)


def _generators(device: torch.device) -> tuple[torch.Generator, ...]:
    if device.type != "cuda":
        return (torch.default_generator,)
    index = torch.cuda.current_device() if device.index is None else device.index
    return (torch.default_generator, torch.cuda.default_generators[index])
