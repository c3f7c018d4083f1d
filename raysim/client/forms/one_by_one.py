"""One client after another, in place on a flat parameter buffer, gradients by autograd: the form for any module.

Nothing is created per client or per local step but the activations: loading the model is one copy, the delta one
subtraction, a plain SGD step one fused update of views.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise

import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.form import Client, Updates
from raysim.client.forms.gradient import shape_gradient
from raysim.client.forms.scores import Scores
from raysim.client.optimizer import ClientOptimizer, State
from raysim.client.section import ClientSection
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task


class OneByOne:
    """Form over a module bound to this object's own weights; every nn.Dropout inside draws addressed masks.

    Args:
        model: factory and layouts.
        like: weights whose lengths, dtype and device the form's own buffers take.
        task: losses and hits.
        section: local training; the gradient's way is loss gradient, clip to `max_grad_norm`, plus weight decay * y,
            optimizer.
        optimizer: the pair that `section.optimizer` means.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
    """

    trains_together = False

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        section: ClientSection,
        optimizer: ClientOptimizer,
        precision: torch.dtype,
    ) -> None:
        self._own = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._module = bind(model, self._own, like.params.device).train()
        self._dropouts = dropout.address(self._module, like.params)
        self._task = task
        self._section = section
        self._optimizer = optimizer
        self._precision = None if precision == like.params.dtype else precision
        self._gradient = torch.zeros_like(like.params)
        self._gradients = list(model.params.views(self._gradient).values())
        trained = model.params.views(self._own.params)
        named = dict(self._module.named_parameters())
        self._parameters = [named[name] for name in trained]
        self._params = list(trained.values())
        # Without momentum, clipping or decay the step is y <- y - lr * grad: no flat gradient is needed.
        self._plain = section.is_plain_sgd

    def train(self, broadcast: Weights, clients: Sequence[Client], lr: float) -> Iterator[Updates]:
        """Train each client from the broadcast; see `Form.train`."""
        for client in clients:
            yield self._train_one(broadcast, client, lr)

    def _train_one(self, broadcast: Weights, client: Client, lr: float) -> Updates:
        own = self._own
        own.params.copy_(broadcast.params)
        own.buffers.copy_(broadcast.buffers)
        own.counters.copy_(broadcast.counters)
        # What else a module draws, it draws from torch's generator: started at the client's key, it is addressed too.
        torch.manual_seed(client.key >> 1)
        state = {} if self._plain else self._optimizer.init(own.params)
        device = client.x.device
        x, y = client.visits()
        bounds = client.batches.bounds
        keys = dropout.keys([client.key], client.batches.num_steps, len(self._dropouts), device)
        scores = Scores(self._task, y)
        for step, (start, stop) in enumerate(pairwise(bounds)):
            for layer, own_keys in zip(self._dropouts, keys, strict=True):
                layer.start(own_keys[step, 0])
            outputs, losses = self._local_step(x[start:stop], y[start:stop], state, lr)
            scores.keep(outputs, losses)
        loss, correct = scores.totals()
        delta = own.params.sub_(broadcast.params)
        return Updates(delta[None], own.buffers[None], own.counters[None], loss, correct, (bounds[-1],))

    def _local_step(self, x: Tensor, y: Tensor, state: State, lr: float) -> tuple[Tensor, Tensor]:
        with self._autocast(x.device):
            outputs = self._module(x)
        outputs = outputs.to(self._gradient.dtype)
        losses = self._task.losses(outputs, y)
        gradients = torch.autograd.grad(losses.mean(), self._parameters, materialize_grads=True)
        with torch.no_grad():
            if self._plain:
                torch._foreach_add_(self._params, gradients, alpha=-lr)
            else:
                torch._foreach_copy_(self._gradients, gradients)
                section = self._section
                shape_gradient(self._gradient, self._own.params, section.max_grad_norm, section.optimizer.weight_decay)
                self._optimizer.step(self._own.params, self._gradient, state, lr)
        return outputs.detach(), losses.detach()

    def _autocast(self, device: torch.device) -> AbstractContextManager[object]:
        if self._precision is None:
            return nullcontext()
        return torch.autocast(device.type, self._precision)
