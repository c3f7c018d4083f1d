"""Recognised layers with a leading client axis: a local step of K clients costs the calls of one.

At local step t every product is over the first A_t clients, those still at work (see together.py), and nothing is
computed for the finished. The gradient of a row that only fills a batch up is zero, and a client's loss stays the mean
over its own b_i examples.

A chunk's bits are a function of its members in their order. They are not a function of each client alone: batches are
filled up to the longest of their local step, and products add up in another order for another length.

The same clients may be trained from several starts in one stack: runs that differ only in learning rates, or in what
the server does, cost little more than one where a local step is bound by its calls (`train_each`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.chunk_clients import ChunkClients
from raysim.client.optimizers.optimizer import Rate
from raysim.client.trainer import Client, LocalStart, Updates
from raysim.client.trainers import loss_gradient
from raysim.client.trainers.cuda_graphs import Pass, Recorder, Recordings
from raysim.client.trainers.index_range import check_not_negative
from raysim.client.trainers.layers.build import for_stack, turned
from raysim.client.trainers.layers.elementwise import Dropout
from raysim.client.trainers.layers.layer import Layer, every
from raysim.client.trainers.layers.parameter import Parameter
from raysim.client.trainers.local_steps import Bend, LocalSteps, Point, StepRule, StepVectors
from raysim.client.trainers.recognise import Recognised
from raysim.client.trainers.scores import Scores
from raysim.client.trainers.together import lay_together
from raysim.client.trainers.transposed import Turned
from raysim.client.trainers.unread import unread_gradient
from raysim.models.model import Model, Weights
from raysim.models.task import Task


class Stacked:
    """Trainer over this object's own (K, P) weights, made larger when a chunk has more clients.

    Args:
        recognised: the model's layers.
        model: layouts; a recognised module has no buffers.
        task: losses and hits; an example's loss must depend on its own output only.
        rule: what is done to a gradient, and the optimizer, which must work element by element.
        precision: dtype of large products; weights and sums keep that of the broadcast.
        recorder: makes what records passes that come often; None: they are not recorded.
    """

    trains_together = True

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        task: Task,
        rule: StepRule,
        precision: torch.dtype,
        *,
        recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        self._recorder = recorder
        self._precision = precision
        self._recognised = recognised
        self._model = model
        self._task = task
        self._turned = Turned(model.params, turned(recognised.layers))
        self._rule = rule if rule.bend is None else replace(rule, bend=_as_they_lie(rule.bend, self._turned))
        if (point := rule.point) is not None:
            self._rule = replace(self._rule, point=_point_as_it_lies(point, self._turned))
        self._stacks: list[_Stack] = []

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train all clients together and yield them in the order given."""
        yield self._train_all((LocalStart(broadcast, lr),), clients, start)

    def train_each(self, starts: Sequence[LocalStart], clients: Sequence[Client]) -> Updates:
        """The clients' updates from each start, one start's behind the other's; no client has an `offset`.

        They agree with those of `train`: to the bit under plain SGD, whose rates enter alike, else to rounding.
        """
        return self._train_all(starts, clients, None)

    @torch.inference_mode()
    def _train_all(
        self, starts: Sequence[LocalStart], clients: Sequence[Client], start: Mapping[str, Tensor] | None
    ) -> Updates:
        times, num, clients = len(starts), len(starts) * len(clients), ChunkClients.of(clients)
        together = lay_together(clients, (starts[0].weights.params.dtype, self._precision), times)
        check_not_negative(together.x, together.rows)
        stacks = self._largest(num, starts[0].weights)
        own, anchors = stacks[0], stacks[1:]
        broadcast, lr = _rows(starts, len(clients))
        broadcast, device = self._turned.turn(broadcast), broadcast.device
        x, y, rows, members = together.x, together.y, together.rows, together.members
        inputs = clients.inputs.rows(members.tolist()).each(self._turned.turn)
        if start is not None:
            start = {name: self._turned.turn(vector) for name, vector in start.items()}
        for stack in stacks:
            stack.params[:num].copy_(broadcast)
        # (local step, dropout layer, client)
        keys = dropout.keys(clients.keys[members], len(together.steps), own.num_dropouts, device).transpose(0, 1)
        params = own.params[:num]
        scores = Scores(self._task, y, together.owners, num, together.real)
        anchor_gradient = anchors[0].gradient[:num] if anchors else None
        taus = clients.batches.steps[members]
        vectors = StepVectors(params, own.gradient[:num], anchor_gradient)
        steps = LocalSteps(self._rule, vectors, broadcast, taus, inputs, lr, start)
        shares = together.shares.to(params.dtype)
        # The rate goes into the rows: so one product makes the steps of clients whose rates differ.
        scale = steps.scale
        if isinstance(scale, Tensor):
            scale = scale.flatten().index_select(0, together.owners)
        scales = (together.shares * scale).to(params.dtype) if self._rule.plain else shares
        row = 0
        for (active, batch), step_keys in zip(together.steps, keys, strict=True):
            span = slice(row, row + active * batch)
            row = span.stop
            h = x.index_select(0, rows[span]).view(active, batch, *x.shape[1:])
            for anchor in anchors:
                anchor.run(h, y[span], shares[span], step_keys)
            scores.keep(own.run(h, y[span], scales[span], step_keys))
            if steps.acts:
                steps.step(active)
        loss, correct = scores.totals()
        delta = self._turned.turn_back(steps.delta())
        gradients, inverses = (
            None if rows is None else together.in_given_order(self._turned.turn_back(rows))
            for rows in (steps.mean_gradients(), steps.inverses())
        )
        samples = together.each_in_given_order(steps.samples())
        nothing = starts[0].weights
        return Updates(
            together.in_given_order(delta),
            nothing.buffers.expand(num, -1),
            nothing.counters.expand(num, -1),
            together.in_given_order(loss),
            together.in_given_order(correct),
            np.tile(clients.batches.visits, times),
            gradients,
            inverses=inverses,
            samples=None if samples is None else tuple(self._turned.turn_back(own) for own in samples),
        )

    def _largest(self, num: int, broadcast: Weights) -> list[_Stack]:
        """The stack that is trained and, where the rule is anchored, one for gradients at the broadcast."""
        if not self._stacks or len(self._stacks[0].params) < num:
            kinds = [self._rule.plain, False] if self._rule.anchored else [self._rule.plain]
            self._stacks = [self._stack(broadcast.params, num, plain) for plain in kinds]
        return self._stacks

    def _stack(self, like: Tensor, num: int, plain: bool) -> _Stack:
        params = like.new_zeros((num, self._model.params.size))
        gradient = params if plain else torch.zeros_like(params)

        def make() -> _Network:
            return _Network(self._recognised, self._model, self._task, params, gradient, plain, self._precision)

        network = make()
        if self._recorder is None:
            return _Stack(params, gradient, network.run, network.num_dropouts)

        def make_pass() -> Pass:
            run = make().run
            return lambda inputs, alpha: (run(*inputs),)

        recordings = Recordings(make_pass, (params,) if plain else (params, gradient), self._recorder())

        def run(*inputs: Tensor) -> Tensor:
            (outputs,) = recordings.run(inputs)
            assert outputs is not None
            return outputs

        return _Stack(params, gradient, run, network.num_dropouts)


@dataclass(frozen=True)
class _Stack:
    """(K, P) weights, where gradients go (the weights themselves under the shortcut), and a pass over them."""

    params: Tensor
    gradient: Tensor
    run: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
    num_dropouts: int


def _rows(starts: Sequence[LocalStart], clients: int) -> tuple[Tensor, Rate]:
    """Where each row of a stack starts, and its rate: one behind the other for each client; of one start, itself."""
    if len(starts) == 1:
        return starts[0].weights.params, starts[0].lr
    params = torch.stack([weights.params for weights, _ in starts])
    rates = torch.tensor([lr for _, lr in starts], dtype=torch.float64, device=params.device)
    return params.repeat(clients, 1), rates.unsqueeze(1).repeat(clients, 1)


def _as_they_lie(bend: Bend, turned: Turned) -> Bend:
    """The same over vectors that hold some matrices turned."""

    def bent(gradient: Tensor, params: Tensor, x: Tensor, received: Mapping[str, Tensor]) -> Tensor:
        back = turned.turn_back
        return turned.turn(bend(back(gradient), back(params), back(x), received))

    return bent


def _point_as_it_lies(point: Point, turned: Turned) -> Point:
    def taken(iterate: Tensor, step: int, lr: float, received: Mapping[str, Tensor]) -> Tensor:
        return turned.turn(point(turned.turn_back(iterate), step, lr, received))

    return taken


class _Network:
    """Layers over a stack's weights."""

    def __init__(
        self,
        recognised: Recognised,
        model: Model,
        task: Task,
        params: Tensor,
        gradient: Tensor,
        plain: bool,
        precision: torch.dtype,
    ) -> None:
        values, into = model.params.views(params), model.params.views(gradient)
        keep, read = 1.0 if plain else 0.0, set()

        def parameter(name: str) -> Parameter:
            read.add(name)
            return Parameter(values[name], into[name], keep)

        layers = for_stack(recognised.layers, parameter, params, precision)
        self._unread = [] if plain else unread_gradient(model.params, read, gradient)
        lowest = recognised.lowest_with_parameters
        self._layers: list[Layer] = layers
        self._dropouts = [layer for layer in every(layers) if isinstance(layer, Dropout)]
        self._backward = [(layers[i].backward, i > lowest) for i in range(len(layers) - 1, lowest - 1, -1)]
        self._loss_gradient = loss_gradient.for_task(task, stacked=True)
        self.num_dropouts = len(self._dropouts)

    def run(self, h: Tensor, targets: Tensor, scales: Tensor, keys: Tensor) -> Tensor:
        """Make a pass over the clients at work: parameters take the scaled sum of their client's gradients.

        Args:
            h: examples, (A, batch, ...).
            targets: (A * batch, ...).
            scales: (A * batch,), what each row's gradient is multiplied with: 1 / b_i, or -lr / b_i of a step.
            keys: int64 (dropout layers, K).

        Returns:
            the outputs by row.
        """
        for drawing, key in zip(self._dropouts, keys, strict=True):
            drawing.address(key.unsqueeze(0))
        for piece in self._unread:
            piece.zero_()
        for layer in self._layers:
            h = layer.forward(h)
        outputs = h.flatten(0, 1)
        # Losses of the tasks that may be stacked can be computed later, from any rows together.
        dy, factor, _ = self._loss_gradient(outputs, targets)
        dy = dy.mul_(scales.view(-1, *[1] * (dy.dim() - 1))).view(h.shape)
        for backward, need_dx in self._backward:
            dy = backward(dy, factor, need_dx)
        return outputs
