"""Recognised layers, one client after another, without autograd: the product that would make a weight's gradient makes
the SGD step instead (`Parameter`).

The form for models between the tiny and the unknown: one client's weights stay in cache, nothing is allocated that a
product does not need, and losses are scored once per client.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import nn

from raysim.client import dropout
from raysim.client.form import Client, Updates
from raysim.client.forms import loss_gradient
from raysim.client.forms.gradient import shape_gradient
from raysim.client.forms.layers.build import for_one
from raysim.client.forms.layers.conv2d import channels_last
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.recognise import Recognised
from raysim.client.forms.scores import Scores
from raysim.client.optimizer import ClientOptimizer
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class Fused:
    """Form over this object's own flat weights.

    Args:
        recognised: the model's layers.
        model: layouts; a recognised module has no buffers.
        like: weights whose lengths, dtype and device the form's own buffers take.
        task: losses and hits.
        section: local training.
        optimizer: the pair that `section.optimizer` means.
        precision: dtype of large products; weights and sums keep that of `like`.
    """

    trains_together = False

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        like: Weights,
        task: Task,
        section: ClientSection,
        optimizer: ClientOptimizer,
        precision: torch.dtype,
    ) -> None:
        self._params = torch.zeros_like(like.params)
        self._task = task
        self._section = section
        self._optimizer = optimizer
        self._plain = section.is_plain_sgd
        self._gradient = self._params if self._plain else torch.zeros_like(like.params)
        layers = recognised.layers
        # What only reshapes the examples is done once for all of a client's, before the first local step.
        self._flatten_first = type(layers[0].module) is nn.Flatten
        if self._flatten_first:
            layers = layers[1:]
        lowest = recognised.lowest_with_parameters - self._flatten_first
        self._channels_last = type(layers[0].module) is nn.Conv2d
        self._precision = precision
        values, into = model.params.views(self._params), model.params.views(self._gradient)
        keep = 1.0 if self._plain else 0.0
        self._layers = for_one(layers, lambda name: Parameter(values[name], into[name], keep), like.params, precision)
        self._dropouts = [layer for layer in self._layers if isinstance(layer, Dropout)]
        self._backward = [(self._layers[i].backward, i > lowest) for i in range(len(self._layers) - 1, lowest - 1, -1)]
        self._forward = [layer.forward for layer in self._layers]
        self._loss_gradient = loss_gradient.for_task(task)

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Form.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr)

    @torch.inference_mode()
    def _train_one(self, broadcast: Weights, client: Client, lr: float) -> Updates:
        params = self._params
        params.copy_(broadcast.params)
        device = client.x.device
        x, y = client.visits()
        if self._dropouts:
            keys = dropout.keys([client.key], client.batches.num_steps, len(self._dropouts), device)
            for layer, own in zip(self._dropouts, keys, strict=True):
                layer.address(own[:, 0])
        scores = Scores(self._task, y)
        state = {} if self._plain else self._optimizer.init(params)
        bounds = client.batches.bounds
        lengths = [stop - start for start, stop in pairwise(bounds)]
        if self._flatten_first:
            x = x.flatten(1)
        elif self._channels_last:
            x = channels_last(x.to(self._precision))
        for h, targets, batch in zip(x.split_with_sizes(lengths), y.split_with_sizes(lengths), lengths, strict=True):
            for forward in self._forward:
                h = forward(h)
            dy, factor, losses = self._loss_gradient(h, targets)
            scores.keep(h, losses)
            factor /= batch
            alpha = -lr * factor if self._plain else factor
            for backward, need_dx in self._backward:
                dy = backward(dy, alpha, need_dx)
            if not self._plain:
                section = self._section
                shape_gradient(self._gradient, params, section.max_grad_norm, section.optimizer.weight_decay)
                self._optimizer.step(params, self._gradient, state, lr)
        loss, correct = scores.totals()
        delta = params.sub_(broadcast.params).unsqueeze(0)
        return Updates(delta, *_nothing(broadcast), loss, correct, (bounds[-1],))


def _nothing(broadcast: Weights) -> tuple[torch.Tensor, torch.Tensor]:
    return broadcast.buffers.unsqueeze(0), broadcast.counters.unsqueeze(0)
