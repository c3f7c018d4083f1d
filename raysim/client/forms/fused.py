"""Recognised layers, one client after another, without autograd: the product that would make a weight's gradient makes
the SGD step instead (`Parameter`).

The form for models between the tiny and the unknown: one client's weights stay in cache, nothing is allocated that a
product does not need, and losses are scored once per client.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from raysim.client import dropout
from raysim.client.form import Client, Updates
from raysim.client.forms import loss_gradient
from raysim.client.forms.layers.build import for_one
from raysim.client.forms.layers.conv2d import channels_last
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.layer import every
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.local_steps import LocalSteps, StepRule
from raysim.client.forms.loss_gradient import LossGradient
from raysim.client.forms.recognise import Placed, Recognised
from raysim.client.forms.scores import Scores
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class Fused:
    """Form over this object's own flat weights.

    Args:
        recognised: the model's layers.
        model: layouts; a recognised module has no buffers.
        like: weights whose lengths, dtype and device the form's own buffers take.
        task: losses and hits.
        rule: what is done to a gradient, and the optimizer.
        precision: dtype of large products; weights and sums keep that of `like`.
    """

    trains_together = False

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        like: Weights,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
    ) -> None:
        self._task = task
        self._rule = rule
        layers = recognised.layers
        # What only reshapes the examples is done once for all of a client's, before the first local step.
        self._flatten_first = type(layers[0].module) is nn.Flatten
        if self._flatten_first:
            layers = layers[1:]
        lowest = recognised.lowest_with_parameters - self._flatten_first
        self._channels_last = type(layers[0].module) is nn.Conv2d
        self._precision = precision
        gradients = loss_gradient.for_task(task)
        self._own = _Network(layers, lowest, model, like, rule.plain, precision, gradients)
        self._anchor = None
        if rule.anchored:
            self._anchor = _Network(layers, lowest, model, like, False, precision, gradients)

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Form.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr, start)

    @torch.inference_mode()
    def _train_one(self, broadcast: Weights, client: Client, lr: float, start: Mapping[str, Tensor] | None) -> Updates:
        own, anchor = self._own, self._anchor
        networks = [own] if anchor is None else [own, anchor]
        device = client.x.device
        x, y = client.visits()
        for network in networks:
            network.params.copy_(broadcast.params)
            if network.dropouts:
                keys = dropout.keys([client.key], client.batches.num_steps, len(network.dropouts), device)
                for layer, key in zip(network.dropouts, keys, strict=True):
                    layer.address(key[:, 0])
        scores = Scores(self._task, y)
        steps = LocalSteps(
            self._rule,
            own.params,
            own.gradient,
            None if anchor is None else anchor.gradient,
            broadcast.params,
            [client],
            lr,
            start,
        )
        bounds = client.batches.bounds
        lengths = [stop - first for first, stop in pairwise(bounds)]
        if self._flatten_first:
            x = x.reshape(len(x), -1)
        elif self._channels_last:
            x = channels_last(x.to(self._precision))
        for h, targets, batch in zip(x.split_with_sizes(lengths), y.split_with_sizes(lengths), lengths, strict=True):
            if anchor is not None:
                anchor.differentiate(h, targets, 1.0, batch)
            scores.keep(*own.differentiate(h, targets, steps.alpha, batch))
            if steps.acts:
                steps.step()
        loss, correct = scores.totals()
        delta = own.params.sub_(broadcast.params).unsqueeze(0)
        return Updates(delta, *_nothing(broadcast), loss, correct, (bounds[-1],), steps.mean_gradients())


class _Network:
    """The layers over flat weights of their own; with `plain` their products write into the weights themselves."""

    def __init__(
        self,
        layers: Sequence[Placed],
        lowest: int,
        model: Model,
        like: Weights,
        plain: bool,
        precision: torch.dtype,
        loss_gradient: LossGradient,
    ) -> None:
        self.params = torch.zeros_like(like.params)
        self.gradient = self.params if plain else torch.zeros_like(like.params)
        values, into = model.params.views(self.params), model.params.views(self.gradient)
        keep = 1.0 if plain else 0.0
        made = for_one(layers, lambda name: Parameter(values[name], into[name], keep), like.params, precision)
        self.dropouts = [layer for layer in every(made) if isinstance(layer, Dropout)]
        self._backward = [(made[i].backward, i > lowest) for i in range(len(made) - 1, lowest - 1, -1)]
        self._forward = [layer.forward for layer in made]
        self._loss_gradient = loss_gradient

    def differentiate(self, h: Tensor, targets: Tensor, alpha: float, batch: int) -> tuple[Tensor, Tensor | None]:
        """One pass forward and back: parameters take alpha times the mean loss's gradient; outputs and losses."""
        for forward in self._forward:
            h = forward(h)
        dy, factor, losses = self._loss_gradient(h, targets)
        alpha *= factor / batch
        for backward, need_dx in self._backward:
            dy = backward(dy, alpha, need_dx)
        return h, losses


def _nothing(broadcast: Weights) -> tuple[Tensor, Tensor]:
    return broadcast.buffers.unsqueeze(0), broadcast.counters.unsqueeze(0)
