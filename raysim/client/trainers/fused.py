"""Trains recognised layers, one client after another, without autograd.

The product that would make a weight's gradient makes the SGD step instead (`Parameter`).

The trainer for models between the tiny and the unknown: one client's weights stay in cache, nothing is allocated that a
product does not need, and losses are scored for several clients at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor, nn

from raysim.client import dropout
from raysim.client.chunk_clients import LocalInputs
from raysim.client.trainer import Client, Updates
from raysim.client.trainers import loss_gradient
from raysim.client.trainers.class_scores import Scorer
from raysim.client.trainers.client_by_client import LocalEnd, trained
from raysim.client.trainers.kernel.kernels import BY_TORCH, Kernels
from raysim.client.trainers.layers.build import for_one
from raysim.client.trainers.layers.conv2d import channels_last
from raysim.client.trainers.layers.elementwise import Dropout
from raysim.client.trainers.layers.layer import every
from raysim.client.trainers.layers.parameter import Parameter
from raysim.client.trainers.local_steps import LocalSteps, StepRule, StepVectors
from raysim.client.trainers.recognise import Recognised
from raysim.client.trainers.scores import Scores
from raysim.client.trainers.unread import unread_gradient
from raysim.models.model import Model, Weights
from raysim.models.task import Task

Scored = tuple[Tensor | None, Tensor | None, Tensor | None]
"""Outputs, losses and hits of a batch."""


class Network(Protocol):
    """Layers over flat weights of their own, `params` (P,), that make the gradient of a batch's mean loss.

    `gradient` (P,) is where it goes: `params` themselves, where the product that makes it makes the step. `dropouts`
    are addressed before a client's first local step.
    """

    params: Tensor
    gradient: Tensor
    dropouts: list[Dropout]

    def differentiate(self, h: Tensor, targets: Tensor, alpha: float, batch: int) -> Scored:
        """One pass forward and back of `batch` examples: alpha times the gradient of their mean loss.

        What `Scores.keep` takes: the outputs, and the losses where they cannot be computed later; or losses and hits.
        """
        ...


class Fused:
    """Trainer over one network's flat weights, or two where the rule is anchored.

    Args:
        recognised: the model's layers.
        task: losses and hits.
        rule: what is done to a gradient, and the optimizer.
        precision: dtype of large products; weights and sums keep that of `like`.
        network: makes one for this rule; `plain` asks for steps instead of gradients.
        scorer: computes losses and hits together, where it can.
    """

    trains_together = False

    def __init__(
        self,
        recognised: Recognised,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
        network: Callable[[bool], Network],
        scorer: Scorer | None = None,
    ) -> None:
        self._task, self._scorer = task, scorer
        self._rule = rule
        # What only reshapes the examples is done once for all of a client's, before the first local step.
        self._flatten_first = flattens_first(recognised)
        self._channels_last = type(recognised.layers[0].module) is nn.Conv2d
        self._precision = precision
        self._own = network(rule.plain)
        self._anchor = network(False) if rule.anchored else None

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Trainer.train`."""

        def train_one(client: Client, targets: Tensor, scores: Scores) -> LocalEnd:
            return self._train_one(broadcast, client, targets, lr, start, scores)

        return trained(self._task, clients, train_one, self._scorer)

    @torch.inference_mode()
    def _train_one(
        self,
        broadcast: Weights,
        client: Client,
        y: Tensor,
        lr: float,
        start: Mapping[str, Tensor] | None,
        scores: Scores,
    ) -> LocalEnd:
        own, anchor = self._own, self._anchor
        networks = [own] if anchor is None else [own, anchor]
        device = client.x.device
        x = client.visited_inputs()
        for network in networks:
            network.params.copy_(broadcast.params)
            if network.dropouts:
                keys = dropout.keys([client.key], client.batches.num_steps, len(network.dropouts), device)
                for layer, key in zip(network.dropouts, keys, strict=True):
                    layer.address(key[:, 0])
        steps = LocalSteps(
            self._rule,
            StepVectors(own.params, own.gradient, None if anchor is None else anchor.gradient),
            broadcast.params,
            [client.batches.num_steps],
            LocalInputs.of([client]),
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
        return LocalEnd(
            steps.delta()[None],
            broadcast.buffers[None],
            broadcast.counters[None],
            steps.mean_gradients(),
            steps.inverses(),
            samples=steps.samples(),
        )


class LayersByHand:
    """The recognised layers; with `plain` their products write into the weights themselves."""

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        like: Weights,
        task: Task,
        plain: bool,
        precision: torch.dtype,
        kernels: Kernels = BY_TORCH,
    ) -> None:
        skipped = int(flattens_first(recognised))
        layers = recognised.layers[skipped:]
        lowest = recognised.lowest_with_parameters - skipped
        self.params = torch.zeros_like(like.params)
        self.gradient = self.params if plain else torch.zeros_like(like.params)
        values, into = model.params.views(self.params), model.params.views(self.gradient)
        keep, read = 1.0 if plain else 0.0, set()

        def parameter(name: str) -> Parameter:
            read.add(name)
            return Parameter(values[name], into[name], keep)

        made = for_one(layers, parameter, like.params, precision, kernels)
        self._unread = [] if plain else unread_gradient(model.params, read, self.gradient)
        self.every = list(every(made))
        """The layers and those that they are made of."""
        self.dropouts = [layer for layer in self.every if isinstance(layer, Dropout)]
        self._backward = [(made[i].backward, i > lowest) for i in range(len(made) - 1, lowest - 1, -1)]
        self._forward = [layer.forward for layer in made]
        self._loss_gradient = loss_gradient.for_task(task, in_c=kernels.classes)

    def differentiate(self, h: Tensor, targets: Tensor, alpha: float, batch: int) -> Scored:
        """See `Network`."""
        outputs = self.outputs(h)
        dy, factor, losses = self._loss_gradient(outputs, targets)
        self.go_back(dy, alpha * (factor / batch))
        return outputs, losses, None

    def outputs(self, h: Tensor) -> Tensor:
        """The forward pass."""
        for forward in self._forward:
            h = forward(h)
        return h

    def go_back(self, dy: Tensor, alpha: float) -> None:
        """The backward pass: alpha times the gradient, from that of the outputs, which may be overwritten."""
        for piece in self._unread:
            piece.zero_()
        for backward, need_dx in self._backward:
            dy = backward(dy, alpha, need_dx)


def flattens_first(recognised: Recognised) -> bool:
    """Whether all that the first layer does is to flatten the examples."""
    return type(recognised.layers[0].module) is nn.Flatten
