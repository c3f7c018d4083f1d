"""Recognised layers with a leading client axis: a local step of K clients costs the calls of one.

At local step t every product is over the first A_t clients, those still at work (see together.py), and nothing is
computed for the finished. The gradient of a row that only fills a batch up is zero, and a client's loss stays the mean
over its own b_i examples.

A chunk's bits are a function of its members in their order. They are not always a function of each client alone:
batched kernels may go another way for another A_t, and where a client's activations do not fill multiples of 64
bytes (a width of 37, say), for another place in the stack too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.form import Client, Updates
from raysim.client.forms import loss_gradient
from raysim.client.forms.layers.build import for_stack
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.layer import Layer, every
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.local_steps import LocalSteps, StepRule
from raysim.client.forms.recognise import Recognised
from raysim.client.forms.scores import Scores
from raysim.client.forms.together import lay_together
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class Stacked:
    """Form over this object's own (K, P) weights, made larger when a chunk has more clients.

    Args:
        recognised: the model's layers.
        model: layouts; a recognised module has no buffers.
        task: losses and hits; an example's loss must depend on its own output only.
        rule: what is done to a gradient, and the optimizer, which must work element by element.
        precision: dtype of large products; weights and sums keep that of the broadcast.
    """

    trains_together = True

    def __init__(
        self, recognised: Recognised, model: Model, task: Task, rule: StepRule, precision: torch.dtype
    ) -> None:
        self._precision = precision
        self._recognised = recognised
        self._model = model
        self._task = task
        self._rule = rule
        self._loss_gradient = loss_gradient.for_task(task)
        self._stacks: list[_Stack] = []

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train all clients together and yield them in the order given."""
        yield self._train_all(broadcast, clients, lr, start)

    @torch.inference_mode()
    def _train_all(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None
    ) -> Updates:
        num = len(clients)
        together = lay_together(clients)
        stacks = self._largest(num, broadcast)
        own, anchors = stacks[0], stacks[1:]
        device = broadcast.params.device
        x, y, rows, members = together.x, together.y, together.rows, together.members
        for stack in stacks:
            stack.params[:num].copy_(broadcast.params)
            if stack.dropouts:
                keys = dropout.keys([m.key for m in members], len(together.steps), len(stack.dropouts), device)
                for drawing, key in zip(stack.dropouts, keys, strict=True):
                    drawing.address(key)
        params = own.params[:num]
        shares = None if together.shares is None else together.shares.to(params.dtype)
        scores = Scores(self._task, y, together.owners, num, together.real)
        anchor_gradient = anchors[0].gradient[:num] if anchors else None
        steps = LocalSteps(
            self._rule, params, own.gradient[:num], anchor_gradient, broadcast.params, members, lr, start
        )
        row = 0
        for active, batch in together.steps:
            span = slice(row, row + active * batch)
            row = span.stop
            h = x.index_select(0, rows[span]).view(active, batch, *x.shape[1:])
            own_shares = None if shares is None else shares[span]
            for anchor in anchors:
                self._differentiate(anchor, h, y[span], own_shares, 1.0)
            scores.keep(*self._differentiate(own, h, y[span], own_shares, steps.alpha))
            if steps.acts:
                steps.step(active)
        loss, correct = scores.totals()
        delta, loss, correct = map(together.in_given_order, (params.sub_(broadcast.params), loss, correct))
        seen = tuple(client.batches.bounds[-1] for client in clients)
        nothing = broadcast.buffers.expand(num, -1), broadcast.counters.expand(num, -1)
        gradients = steps.mean_gradients()
        return Updates(
            delta, *nothing, loss, correct, seen, None if gradients is None else together.in_given_order(gradients)
        )

    def _differentiate(
        self, stack: _Stack, h: Tensor, targets: Tensor, shares: Tensor | None, alpha: float
    ) -> tuple[Tensor, Tensor | None]:
        """One pass forward and back: parameters take alpha times their client's gradient; outputs and losses by row."""
        batch = h.shape[1]
        for layer in stack.layers:
            h = layer.forward(h)
        outputs = h.flatten(0, 1)
        dy, factor, losses = self._loss_gradient(outputs, targets)
        if shares is None:
            factor /= batch
        else:
            dy.mul_(shares.view(-1, *[1] * (dy.dim() - 1)))
        dy = dy.view(h.shape)
        for backward, need_dx in stack.backward:
            dy = backward(dy, alpha * factor, need_dx)
        return outputs, losses

    def _largest(self, num: int, broadcast: Weights) -> list[_Stack]:
        """The stack that is trained and, where the rule is anchored, one for gradients at the broadcast."""
        if not self._stacks or len(self._stacks[0].params) < num:
            kinds = [self._rule.plain, False] if self._rule.anchored else [self._rule.plain]
            like, precision = broadcast.params, self._precision
            self._stacks = [_Stack(self._recognised, self._model, like, num, plain, precision) for plain in kinds]
        return self._stacks


class _Stack:
    """(K, P) weights, where gradients go, and the layers over them; with `plain` gradients go into the weights."""

    def __init__(
        self, recognised: Recognised, model: Model, like: Tensor, num: int, plain: bool, precision: torch.dtype
    ) -> None:
        self.params = like.new_zeros((num, model.params.size))
        self.gradient = self.params if plain else torch.zeros_like(self.params)
        values, into = model.params.views(self.params), model.params.views(self.gradient)
        keep = 1.0 if plain else 0.0
        layers = for_stack(recognised.layers, lambda name: Parameter(values[name], into[name], keep), like, precision)
        lowest = recognised.lowest_with_parameters
        self.layers: list[Layer] = layers
        self.dropouts = [layer for layer in every(layers) if isinstance(layer, Dropout)]
        self.backward = [(layers[i].backward, i > lowest) for i in range(len(layers) - 1, lowest - 1, -1)]
