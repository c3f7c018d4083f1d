"""A user's own module with a client axis: torch.func.vmap over the gradient of its functional call.

On a CPU this loses to one client after another everywhere; it is for many small clients of an unknown module on a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from raysim.client.chunk_clients import ChunkClients
from raysim.client.trainer import Client, Updates
from raysim.client.trainers import side_effects
from raysim.client.trainers.index_range import IndicesChecked
from raysim.client.trainers.local_steps import LocalSteps, StepRule, StepVectors
from raysim.client.trainers.reduced_precision import products_in
from raysim.client.trainers.scores import Scores
from raysim.client.trainers.together import lay_together
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task


class Vmap:
    """Trainer over (K, P) weights of its own.

    Args:
        model: factory and layouts; no buffers, and nothing that draws.
        like: weights whose lengths, dtype and device the bound module takes.
        task: losses and hits; an example's loss must depend on its own output only.
        rule: what is done to a gradient, and the optimizer, which must work element by element; not plain.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
    """

    trains_together = True

    def __init__(self, model: Model, like: Weights, task: Task, rule: StepRule, precision: torch.dtype) -> None:
        self._precision = None if precision == like.params.dtype else precision
        self._device = like.params.device
        own = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._module = bind(model, own, like.params.device).train()
        self._put_back = side_effects.restorer_with_contents(self._module.modules(), own.vectors)
        self._model = model
        self._task = task
        self._rule = rule
        self._gradients = vmap(grad(self._loss, has_aux=True))

    def _loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        with products_in(self._precision, self._device), IndicesChecked():
            outputs = functional_call(self._module, params, (x,))
        outputs = outputs.to(shares.dtype)
        return (self._task.losses(outputs, y) * shares).sum(), outputs

    def train(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None = None
    ) -> Iterator[Updates]:
        """Train all clients together and yield them in the order given."""
        yield self._train_all(broadcast, clients, lr, start)

    @torch.no_grad()
    def _train_all(
        self, broadcast: Weights, clients: Sequence[Client], lr: float, start: Mapping[str, Tensor] | None
    ) -> Updates:
        self._put_back()
        num, dtype, clients = len(clients), broadcast.params.dtype, ChunkClients.of(clients)
        together = lay_together(clients, (dtype, self._precision or dtype))
        params = broadcast.params.expand(num, -1).clone()
        gradient = params.new_zeros(params.shape)
        views = self._model.params.views
        # Not an expanded view: a batched product over one would go another way than over weights.
        anchor = broadcast.params.expand(num, -1).clone() if self._rule.anchored else None
        anchor_gradient = None if anchor is None else torch.zeros_like(gradient)
        taus, inputs = clients.batches.steps[together.members], clients.inputs.rows(together.members.tolist())
        vectors = StepVectors(params, gradient, anchor_gradient)
        steps = LocalSteps(self._rule, vectors, broadcast.params, taus, inputs, lr, start)
        scores = Scores(self._task, together.y, together.owners, num, together.real)
        row = 0
        for active, batch in together.steps:
            span = slice(row, row + active * batch)
            row = span.stop
            x = together.x.index_select(0, together.rows[span])
            y, lead = together.y[span], (active, batch)
            shares = together.shares[span].to(params.dtype)
            examples = x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:]), shares.view(lead)
            if anchor is not None and anchor_gradient is not None:
                # A copy: a forward may write to its input.
                made, _ = self._gradients(views(anchor[:active]), examples[0].clone(), *examples[1:])
                _store(made, views(anchor_gradient[:active]))
            made, outputs = self._gradients(views(params[:active]), *examples)
            scores.keep(outputs.flatten(0, 1))
            _store(made, views(gradient[:active]))
            steps.step(active)
        loss, correct = scores.totals()
        delta, loss, correct = map(together.in_given_order, (steps.delta(), loss, correct))
        gradients, inverses = steps.mean_gradients(), steps.inverses()
        return Updates(
            delta,
            broadcast.buffers.expand(num, -1),
            broadcast.counters.expand(num, -1),
            loss,
            correct,
            clients.batches.visits,
            None if gradients is None else together.in_given_order(gradients),
            inverses=None if inverses is None else together.in_given_order(inverses),
            samples=together.each_in_given_order(steps.samples()),
        )


def _store(values: Mapping[str, Tensor], views: Mapping[str, Tensor]) -> None:
    for name, into in views.items():
        into.copy_(values[name])
