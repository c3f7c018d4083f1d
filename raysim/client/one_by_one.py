"""One client after another, in place on a flat parameter buffer, gradients by autograd: the form for any module.

Nothing is created per client or per local step but the activations: loading the model is one copy, the delta one
subtraction, a plain SGD step one fused update of views.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from raysim.client.form import Client, Update
from raysim.client.optimizer import ClientOptimizer
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task


class OneByOne:
    """Form over a module bound to this object's own weights.

    Args:
        model: factory and layouts.
        like: weights whose lengths, dtype and device the form's own buffers take.
        task: losses and hits.
        section: local training; the gradient's way is loss gradient, clip to `max_grad_norm`, plus weight decay * y,
            optimizer.
        optimizer: the pair that `section.optimizer` means.
    """

    def __init__(
        self, model: Model, like: Weights, task: Task, section: ClientSection, optimizer: ClientOptimizer
    ) -> None:
        self._own = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._module = bind(model, self._own, like.params.device).train()
        self._task = task
        self._optimizer = optimizer
        self._weight_decay = section.optimizer.weight_decay
        self._max_grad_norm = section.max_grad_norm
        self._gradient = torch.zeros_like(like.params)
        self._gradients = list(model.params.views(self._gradient).values())
        trained = model.params.views(self._own.params)
        named = dict(self._module.named_parameters())
        self._parameters = [named[name] for name in trained]
        self._params = list(trained.values())
        # Without momentum, clipping or decay the step is y <- y - lr * grad: no flat gradient is needed.
        self._plain = section.optimizer.momentum == 0 and not self._weight_decay and self._max_grad_norm is None

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Update]:
        """Train each client from the broadcast; see `Form.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr)

    def _train_one(self, broadcast: Weights, client: Client, lr: float) -> Update:
        own = self._own
        own.params.copy_(broadcast.params)
        own.buffers.copy_(broadcast.buffers)
        own.counters.copy_(broadcast.counters)
        # Modules draw (dropout) from torch's generator: started at the client's key, it is addressed like all else.
        torch.manual_seed(client.key >> 1)
        state = {} if self._plain else self._optimizer.init(own.params)
        device = client.x.device
        loss = torch.zeros((), dtype=torch.float64, device=device)
        correct = torch.zeros((), dtype=torch.float64, device=device)
        order = torch.from_numpy(client.batches.order).to(device)
        x, y = client.x.index_select(0, order), client.y.index_select(0, order)
        bounds = client.batches.bounds
        for start, stop in pairwise(bounds):
            loss_sum, correct_sum = self._local_step(x[start:stop], y[start:stop], state, lr)
            loss += loss_sum
            if correct_sum is not None:
                correct += correct_sum
        delta = own.params.sub_(broadcast.params)
        hits = math.nan if self._task.correct is None else correct.item()
        return Update(delta, own.buffers, own.counters, loss.item(), hits, bounds[-1])

    def _local_step(self, x: Tensor, y: Tensor, state: dict[str, Tensor], lr: float) -> tuple[Tensor, Tensor | None]:
        outputs = self._module(x)
        losses = self._task.losses(outputs, y)
        gradients = torch.autograd.grad(losses.mean(), self._parameters, materialize_grads=True)
        with torch.no_grad():
            correct = None if self._task.correct is None else self._task.correct(outputs, y).sum()
            if self._plain:
                torch._foreach_add_(self._params, gradients, alpha=-lr)
            else:
                torch._foreach_copy_(self._gradients, gradients)
                self._step(state, lr)
            return losses.sum(), correct

    def _step(self, state: dict[str, Tensor], lr: float) -> None:
        gradient = self._gradient
        if self._max_grad_norm is not None:
            norm = torch.linalg.vector_norm(gradient)
            # A zero gradient gives infinity, clamped to 1; a NaN stays one, and the client is rejected.
            gradient.mul_((self._max_grad_norm / norm).clamp(max=1.0))
        if self._weight_decay:
            gradient.add_(self._own.params, alpha=self._weight_decay)
        self._optimizer.step(self._own.params, gradient, state, lr)
