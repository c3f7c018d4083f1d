"""A user's own module with a client axis: torch.func.vmap over the gradient of its functional call.

On a CPU this loses to one client after another everywhere; it is for many small clients of an unknown module on a card.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

from raysim.client.form import Client, Updates
from raysim.client.forms.gradient import shape_gradient
from raysim.client.forms.scores import Scores
from raysim.client.forms.together import lay_together
from raysim.client.optimizer import ClientOptimizer
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task


class Vmap:
    """Form over (K, P) weights of its own.

    Args:
        model: factory and layouts; no buffers, and nothing that draws.
        like: weights whose lengths, dtype and device the bound module takes.
        task: losses and hits; an example's loss must depend on its own output only.
        section: local training.
        optimizer: the pair that `section.optimizer` means; it must work element by element.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
    """

    trains_together = True

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        section: ClientSection,
        optimizer: ClientOptimizer,
        precision: torch.dtype,
    ) -> None:
        self._precision = None if precision == like.params.dtype else precision
        own = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._module = bind(model, own, like.params.device).train()
        self._model = model
        self._task = task
        self._section = section
        self._optimizer = optimizer
        self._plain = section.is_plain_sgd
        self._gradients = vmap(grad(self._loss, has_aux=True))

    def _loss(self, params: dict[str, Tensor], x: Tensor, y: Tensor, shares: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(x.device.type, self._precision, enabled=self._precision is not None):
            outputs = functional_call(self._module, params, (x,))
        outputs = outputs.to(shares.dtype)
        return (self._task.losses(outputs, y) * shares).sum(), outputs

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Updates]:
        """Train all clients together and yield them in the order given."""
        yield self._train_all(broadcast, clients, lr)

    @torch.no_grad()
    def _train_all(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Updates:
        num, together = len(clients), lay_together(clients)
        params = broadcast.params.expand(num, -1).clone()
        gradient = params.new_zeros(params.shape)
        views = self._model.params.views
        state = {} if self._plain else self._optimizer.init(params)
        scores = Scores(self._task, together.y, together.owners, num, together.real)
        row = 0
        for active, batch in together.steps:
            span = slice(row, row + active * batch)
            row = span.stop
            x = together.x.index_select(0, together.rows[span])
            y, lead = together.y[span], (active, batch)
            if together.shares is None:
                shares = params.new_full(lead, 1 / batch)
            else:
                shares = together.shares[span].to(params.dtype).view(lead)
            made, outputs = self._gradients(
                views(params[:active]), x.view(*lead, *x.shape[1:]), y.view(*lead, *y.shape[1:]), shares
            )
            scores.keep(outputs.flatten(0, 1))
            for name, into in views(gradient[:active]).items():
                into.copy_(made[name])
            own, step_state = params[:active], {name: value[:active] for name, value in state.items()}
            section = self._section
            shape_gradient(gradient[:active], own, section.max_grad_norm, section.optimizer.weight_decay)
            self._optimizer.step(own, gradient[:active], step_state, lr)
        loss, correct = scores.totals()
        delta, loss, correct = map(together.in_given_order, (params.sub_(broadcast.params), loss, correct))
        seen = tuple(client.batches.bounds[-1] for client in clients)
        return Updates(
            delta, broadcast.buffers.expand(num, -1), broadcast.counters.expand(num, -1), loss, correct, seen
        )
