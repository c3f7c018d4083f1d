"""Recognised layers with a leading client axis: a local step of K clients costs the calls of one.

At local step t every product is over the first A_t clients, those still at work (see together.py), and nothing is
computed for the finished. The gradient of a row that only fills a batch up is zero, and a client's loss stays the mean
over its own b_i examples.

A chunk's bits are a function of its members in their order. They are not always a function of each client alone:
batched kernels may go another way for another A_t, and where a client's activations do not fill multiples of 64
bytes (a width of 37, say), for another place in the stack too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.form import Client, Updates
from raysim.client.forms import loss_gradient
from raysim.client.forms.gradient import shape_gradient
from raysim.client.forms.layers.build import for_stack
from raysim.client.forms.layers.dropout import Dropout
from raysim.client.forms.layers.layer import Layer, every
from raysim.client.forms.layers.parameter import Parameter
from raysim.client.forms.recognise import Recognised
from raysim.client.forms.scores import Scores
from raysim.client.forms.together import lay_together
from raysim.client.optimizer import ClientOptimizer
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class Stacked:
    """Form over this object's own (K, P) weights, made larger when a chunk has more clients.

    Args:
        recognised: the model's layers.
        model: layouts; a recognised module has no buffers.
        task: losses and hits; an example's loss must depend on its own output only.
        section: local training.
        optimizer: the pair that `section.optimizer` means; it must work element by element.
        precision: dtype of large products; weights and sums keep that of the broadcast.
    """

    trains_together = True

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        task: Task,
        section: ClientSection,
        optimizer: ClientOptimizer,
        precision: torch.dtype,
    ) -> None:
        self._precision = precision
        self._recognised = recognised
        self._model = model
        self._task = task
        self._section = section
        self._optimizer = optimizer
        self._plain = section.is_plain_sgd
        self._loss_gradient = loss_gradient.for_task(task)
        self._largest: _Stack | None = None

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Updates]:
        """Train all clients together and yield them in the order given."""
        yield self._train_all(broadcast, clients, lr)

    @torch.inference_mode()
    def _train_all(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Updates:
        num = len(clients)
        together = lay_together(clients)
        stack = self._stack(num, broadcast)
        params = stack.params[:num].copy_(broadcast.params)
        device = broadcast.params.device
        x, y, rows, members = together.x, together.y, together.rows, together.members
        shares = None if together.shares is None else together.shares.to(params.dtype)
        if stack.dropouts:
            keys = dropout.keys([m.key for m in members], len(together.steps), len(stack.dropouts), device)
            for drawing, own in zip(stack.dropouts, keys, strict=True):
                drawing.address(own)
        scores = Scores(self._task, y, together.owners, num, together.real)
        state = {} if self._plain else self._optimizer.init(params)
        row = 0
        for active, batch in together.steps:
            span = slice(row, row + active * batch)
            row = span.stop
            h = x.index_select(0, rows[span]).view(active, batch, *x.shape[1:])
            for layer in stack.layers:
                h = layer.forward(h)
            outputs, targets = h.flatten(0, 1), y[span]
            dy, factor, losses = self._loss_gradient(outputs, targets)
            scores.keep(outputs, losses)
            if shares is None:
                factor /= batch
            else:
                dy.mul_(shares[span].view(-1, *[1] * (dy.dim() - 1)))
            alpha = -lr * factor if self._plain else factor
            dy = dy.view(h.shape)
            for backward, need_dx in stack.backward:
                dy = backward(dy, alpha, need_dx)
            if not self._plain:
                self._step(stack, active, state, lr)
        loss, correct = scores.totals()
        delta, loss, correct = map(together.in_given_order, (params.sub_(broadcast.params), loss, correct))
        seen = tuple(client.batches.bounds[-1] for client in clients)
        nothing = broadcast.buffers.expand(num, -1), broadcast.counters.expand(num, -1)
        return Updates(delta, *nothing, loss, correct, seen)

    def _step(self, stack: _Stack, active: int, state: dict[str, Tensor], lr: float) -> None:
        params, gradient = stack.params[:active], stack.gradient[:active]
        shape_gradient(gradient, params, self._section.max_grad_norm, self._section.optimizer.weight_decay)
        self._optimizer.step(params, gradient, {name: value[:active] for name, value in state.items()}, lr)

    def _stack(self, num: int, broadcast: Weights) -> _Stack:
        if self._largest is None or len(self._largest.params) < num:
            params = broadcast.params.new_zeros((num, self._model.params.size))
            gradient = params if self._plain else torch.zeros_like(params)
            values, into = self._model.params.views(params), self._model.params.views(gradient)
            keep = 1.0 if self._plain else 0.0
            layers = for_stack(
                self._recognised.layers,
                lambda name: Parameter(values[name], into[name], keep),
                broadcast.params,
                self._precision,
            )
            self._largest = _Stack(params, gradient, layers, self._recognised.lowest_with_parameters)
        return self._largest


class _Stack:
    """(K, P) weights, where gradients go, and the layers over them."""

    def __init__(self, params: Tensor, gradient: Tensor, layers: list[Layer], lowest: int) -> None:
        self.params, self.gradient, self.layers = params, gradient, layers
        self.dropouts = [layer for layer in every(layers) if isinstance(layer, Dropout)]
        self.backward = [(layers[i].backward, i > lowest) for i in range(len(layers) - 1, lowest - 1, -1)]
