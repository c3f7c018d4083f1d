"""A module in training mode over weights of its own, and its local gradients: recorded, or by autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakMethod

import torch
from torch import Tensor

from raysim.client import dropout
from raysim.client.dropout import AddressedDropout, StepKey, StepKeys
from raysim.client.objective import LocalObjective, ObjectiveAt
from raysim.client.trainer import Client
from raysim.client.trainers import loss_gradient, side_effects
from raysim.client.trainers.autograd.in_c import by_kernels
from raysim.client.trainers.class_scores import scored_rows
from raysim.client.trainers.cuda_graphs import Recordings
from raysim.client.trainers.gradient_seed import gradients_from
from raysim.client.trainers.loss_gradient import LossGradient
from raysim.client.trainers.recording.interpreted_step import InterpretedStep
from raysim.client.trainers.recording.recorded_steps import BY_AUTOGRAD, BatchViews, RecordedSteps, StepRecording
from raysim.client.trainers.recording.tape import NotRecorded
from raysim.client.trainers.recording.weighted import Weighted
from raysim.client.trainers.reduced_precision import products_in
from raysim.client.trainers.scores import MOST_KEPT
from raysim.client.trainers.step_obstacles import StepObstacles
from raysim.client.trainers.watched_objective import Watched
from raysim.config.unwritten import version, versions
from raysim.models.model import Model, Weights, bind
from raysim.models.task import Task, check_depends, raise_no_gradient

P = ParamSpec("P")
R = TypeVar("R")

MOST_AT_ONCE = 256
"""Local steps in one call, during which a run that is to stop does not answer."""

Curved = Callable[[Tensor], Tensor]
"""The product of a Hessian with a vector (P,)."""


def _to_keep(outputs: Tensor) -> Tensor:
    """The outputs without autograd's marks; a copy of those in memory that a step may write to: a weight's, or a
    module's own, which shows in that it was written to before."""
    made = outputs.detach()
    is_written_to = (outputs if outputs._base is None else outputs._base).is_leaf or version(made) > 0
    return made.clone() if is_written_to else made


def _unheld(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method without its object, which calls it: one that holds itself is freed by a collection alone, and a
    model's vectors would wait for it."""
    weak = WeakMethod(method)

    def call(*given: P.args, **named: P.kwargs) -> R:
        alive = weak()
        assert alive is not None
        return alive(*given, **named)

    return call


class BoundModule:
    """Makes the gradient of a batch's mean loss, or the local step where that is plain SGD.

    Args:
        model: factory and layouts.
        like: weights whose lengths, dtype and device its own take.
        task: losses.
        precision: dtype of products, by torch.autocast where it is not that of `like`.
        plain: whether what is made is added to the weights, times alpha; otherwise it is written into `gradient`.
        objective: stands in for the task's losses.
        recording: how steps are carried out.
        pieces: in which a batch is computed.
    """

    def __init__(
        self,
        model: Model,
        like: Weights,
        task: Task,
        precision: torch.dtype,
        *,
        plain: bool,
        objective: LocalObjective | None = None,
        recording: StepRecording = BY_AUTOGRAD,
        pieces: int = 1,
    ) -> None:
        self._pieces = pieces
        self.weights = Weights(*(torch.zeros_like(v) for v in (like.params, like.buffers, like.counters)))
        self._dtype, self._device = like.params.dtype, like.params.device
        self._precision = None if precision == self._dtype else precision
        self._task, self._plain = task, plain
        self.module = bind(model, self.weights, self._device).train()
        self.dropouts = dropout.address(self.module, like.params)
        self._keys = torch.zeros(len(self.dropouts), dtype=torch.int64, device=self._device)
        """Of the masks of the next local step: recordings read them here."""
        self._key_of_each = self._keys.unbind()
        self._step_keys: StepKeys | None = None
        """The same among those of other steps, while a local step by autograd is under way."""
        self.watched = None if objective is None else Watched(objective, self.module, self._precision, self._dtype)
        self.gradient = self.weights.params if plain else torch.zeros_like(like.params)
        """Where gradients go; the weights, where the step is plain."""
        self._layout = model.params
        trained = model.params.views(self.weights.params)
        named = dict(self.module.named_parameters())
        self._parameters = [named[name] for name in trained]
        self._written = list(model.params.views(self.gradient).values())
        self._values = list(trained.values())
        weights = self.weights
        weighted = Weighted(
            module=self.module,
            forward=_unheld(self._from_first_draw),
            parameters=self._parameters,
            values=self._values,
            written=self._written,
            flat=self.gradient,
            keep=1.0 if plain else 0.0,
            keys=self._keys,
            state=[*(() if plain else (self.gradient,)), *weights.vectors],
        )
        in_c = recording.kernels.classes
        by_hand = loss_gradient.for_task(task, recorded=True, in_c=in_c)
        # Of texts with padding, outputs of the places alone that count.
        score_rows = partial(scored_rows, task) if recording.kernels.counted else None
        self._recorded = RecordedSteps(weighted, by_hand, _unheld(self._outputs_by_autograd), recording, score_rows)
        self._at_outputs = loss_gradient.for_task(task, in_c=in_c) if recording.from_outputs else None
        self._in_c = by_kernels(self.module, recording.kernels, self._dtype)
        self._graphs = None
        if recording.recorder is not None and recording.lengths:
            # A graph is recorded from a step that was recorded before.
            self._graphs = Recordings(lambda: self._step_as_pass, weighted.state, recording.recorder())
        others = [child for child in self.module.modules() if not isinstance(child, AddressedDropout)]
        self._put_back = side_effects.restorer_with_contents(others, self.weights.vectors)
        self._was_called = False
        # Operators of a recorded step may write to them.
        self._has_masks = any(buffer.dtype == torch.bool for buffer in self.module.buffers())
        self._places = [
            (table, name, tensor, tensor.data_ptr())
            for child in others
            for table in (child._parameters, child._buffers)
            for name, tensor in table.items()
            if tensor is not None and tensor.dtype != torch.bool
        ]
        self._frozen = [one for one in self.module.parameters() if not one.requires_grad]
        self._frozen_versions = versions(*self._frozen)

    def keys_of(self, client: Client) -> Sequence[StepKeys | None]:
        """For each local step the keys of the masks; None where there are none."""
        return dropout.keys_of_steps(client.key, client.batches.num_steps, len(self.dropouts), self._device)

    def load(self, broadcast: Weights) -> None:
        """Copy the values in, and undo what an earlier client has done to the module beside them."""
        if self._was_called or self._has_masks:
            self._put_back()
            for layer in self.dropouts:
                layer.put_back()
            self._was_called = False
        self.weights.params.copy_(broadcast.params)
        self.weights.buffers.copy_(broadcast.buffers)
        self.weights.counters.copy_(broadcast.counters)

    def check_kept(self) -> None:
        """ValueError unless the module has its own tensors, no gradients, and its frozen parameters as they were."""
        for table, name, tensor, address in self._places:
            if table.get(name) is not tensor or tensor.data_ptr() != address:
                raise ValueError(
                    f"The module has another tensor in the place of {name!r}, which would be lost: write to the one "
                    f"that is there, such as module.{name}.copy_(...)."
                )
        if self.watched is None and any(parameter.grad is not None for parameter in self._parameters):
            raise ValueError(
                "The module's forward calls backward(), whose gradients would be lost: take them by "
                "torch.autograd.grad."
            )
        if versions(*self._frozen) != self._frozen_versions:
            raise ValueError("A frozen parameter, which all modules of a machine share, was written to.")

    def record(self, x: BatchViews, y: BatchViews, lengths: Sequence[int]) -> bool:
        """Record the steps of batches of so many examples, where those are new; return whether all are recorded."""
        return self._recorded.record(x, y, lengths)

    def differentiate(
        self, x: Tensor, y: Tensor, keys: StepKeys | None, alpha: float, at: ObjectiveAt | None = None
    ) -> tuple[Tensor | None, ...]:
        """Make gradient or step of one batch, without autograd's marks on what is returned.

        Args:
            x, y: the batch.
            keys: of the masks; None where there are none.
            alpha: what a plain step multiplies the gradient with.
            at: for the objective.

        Returns:
            outputs, None where there are none to score; losses, None where the outputs say it all; or none, losses and
            hits.
        """
        if keys is not None:
            self._keys.copy_(keys.now)
        if (recorded := self._recorded.get(y.shape[0])) is not None:
            if self._graphs is None:
                return recorded(x, y, alpha)
            outputs, losses = self._graphs.run((x, y), alpha)
            return outputs, losses
        self._step_keys = keys
        try:
            return self._by_autograd(x, y, alpha, at)
        finally:
            self._step_keys = None

    def differentiate_several(
        self, x: Tensor, y: Tensor, length: int, alpha: float
    ) -> Iterator[tuple[Tensor | None, ...]]:
        """Make what `differentiate` makes of batches without keys and objective, one behind the other, of this length.

        Yields what it returns, of one batch or several: between two of them, Python takes as long as half a step of a
        small module.
        """
        step = self._recorded.get(length)
        if isinstance(step, InterpretedStep) and step.takes_several:
            steps = min(MOST_AT_ONCE, max(1, MOST_KEPT // max(1, step.num_outputs)))
            for batches, targets in zip(x.split(steps * length), y.split(steps * length), strict=True):
                yield step.of_several(batches, targets, alpha)
            return
        for batch, targets in zip(x.split(length), y.split(length), strict=True):
            yield self.differentiate(batch, targets, None, alpha)

    def in_pieces(
        self, x: Tensor, y: Tensor, keys: StepKeys | None, alpha: float, at: ObjectiveAt | None = None
    ) -> Iterator[tuple[Tensor | None, ...]]:
        """Make what `differentiate` makes, and yield what it returns, piece by piece: their outputs need not be kept.

        Masks of dropouts are those of the whole batch in the first piece, and others in each further one.
        """
        if self._pieces == 1:
            yield self.differentiate(x, y, keys, alpha, at)
            return
        assert not self._plain
        if keys is not None:
            self._keys.copy_(keys.now)
        for number, (piece, wanted) in enumerate(zip(x.chunk(self._pieces), y.chunk(self._pieces), strict=True)):
            if number:
                self._keys.add_(dropout.PIECE)
            outputs, losses, gradients = self._gradients(piece, wanted, None, among=y)
            self._write(gradients, 1.0, adds=number > 0)
            yield outputs, losses.detach()

    def differentiate_twice(
        self, x: Tensor, y: Tensor, keys: StepKeys | None, at: ObjectiveAt | None = None
    ) -> tuple[Tensor | None, Tensor | None, Curved]:
        """As `differentiate` of a step that is not plain, by autograd; also returns, for one call, the product of the
        mean loss's Hessian with a vector (P,)."""
        if keys is not None:
            self._keys.copy_(keys.now)
        outputs, losses, gradients = self._gradients(x, y, at, twice=True)
        self._write([None if one is None else one.detach() for one in gradients], 1.0)

        def curved(vector: Tensor) -> Tensor:
            pieces = self._layout.views(vector)
            product = torch.zeros_like(vector)
            # A gradient that no parameter enters is constant: its product is 0.
            curves = [
                (g, v) for g, v in zip(gradients, pieces.values(), strict=True) if g is not None and g.requires_grad
            ]
            if curves:
                with torch.enable_grad():
                    along = torch.stack([(g * v).sum() for g, v in curves]).sum()
                products = torch.autograd.grad(along, self._parameters, allow_unused=True)
                for into, one in zip(self._layout.views(product).values(), products, strict=True):
                    if one is not None:
                        into.copy_(one)
            return product

        return outputs, losses.detach(), curved

    def _outputs_by_autograd(self, x: Tensor, y: Tensor, alpha: float) -> tuple[Tensor, Tensor | None]:
        with torch.inference_mode(False), torch.enable_grad():
            outputs, losses = self._by_autograd(x.clone(), y.clone(), alpha, None)
        assert outputs is not None
        return outputs, losses

    def _step_as_pass(self, inputs: Sequence[Tensor], alpha: float) -> tuple[Tensor | None, ...]:
        x, y = inputs
        recorded = self._recorded.get(y.shape[0])
        assert recorded is not None
        return recorded(x, y, alpha)

    def step_obstacles(self, x: Tensor, y: Tensor) -> StepObstacles:
        """Why the local step on this batch cannot be recorded, or not be interpreted."""
        try:
            not_interpreted = self._recorded.attempt(x, y).not_interpreted
        except NotRecorded as error:
            why = f"it {error}"
        except Exception as error:
            why = f"it fails ({type(error).__name__}: {error})"
        else:
            return StepObstacles(None, None if not_interpreted is None else f"it {not_interpreted}")
        return StepObstacles(why, why)

    def _start_dropouts(self) -> None:
        alone: list[StepKey | None] = [None] * len(self.dropouts)
        of_layers = alone if self._step_keys is None else self._step_keys.each
        for layer, key, step_key in zip(self.dropouts, self._key_of_each, of_layers, strict=True):
            layer.start(key, step_key)

    def _from_first_draw(self, x: Tensor) -> Tensor:
        self._start_dropouts()
        return self._outputs(x)

    def _outputs(self, x: Tensor) -> Tensor:
        with products_in(self._precision, self._device):
            outputs: Tensor = self.module(x)
        return outputs.to(self._dtype)

    def _by_autograd(
        self, x: Tensor, y: Tensor, alpha: float, at: ObjectiveAt | None
    ) -> tuple[Tensor | None, Tensor | None]:
        if self._at_outputs is not None:
            made, gradients = self._gradients_from_outputs(x, y, self._at_outputs)
            self._write(gradients, alpha)
            return made, None
        outputs, losses, gradients = self._gradients(x, y, at)
        self._write(gradients, alpha)
        return outputs, losses.detach()

    def _gradients_from_outputs(
        self, x: Tensor, y: Tensor, loss_gradient: LossGradient
    ) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        """The outputs, and the mean loss's gradient by parameter."""
        self._was_called = True
        self._start_dropouts()
        with torch.enable_grad(), self._in_c:
            outputs = self._outputs(x)
        if not outputs.requires_grad:
            raise_no_gradient(len(y))
        made = _to_keep(outputs)
        dy, factor, _ = loss_gradient(made, y)
        with self._in_c:
            dy = dy if factor == len(y) else dy.mul_(factor / len(y))
            gradients = gradients_from(outputs, dy, self._parameters)
        check_depends(gradients, len(y))
        return made, gradients

    def _gradients(
        self, x: Tensor, y: Tensor, at: ObjectiveAt | None, twice: bool = False, among: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor, tuple[Tensor | None, ...]]:
        """The outputs to score, the losses, and the mean loss's gradient by parameter.

        `twice`: it can be differentiated. `among`: all targets of the batch of which this is a piece.
        """
        outputs: Tensor | None
        self._was_called = True
        self._start_dropouts()
        with torch.enable_grad(), self._in_c:
            if at is None or self.watched is None:
                made = self._outputs(x)
                losses = self._task.losses_of(made, y)
                outputs = _to_keep(made)
                mean = self._task.mean(losses, y, y if among is None else among)
            else:
                losses, outputs = self.watched.losses(x, y, at)
                mean = losses.mean()
            if not mean.requires_grad:
                raise_no_gradient(len(y))
            gradients = torch.autograd.grad(mean, self._parameters, create_graph=twice, allow_unused=True)
        check_depends(gradients, len(y))
        return outputs, losses, gradients

    def _write(self, gradients: Sequence[Tensor | None], alpha: float, adds: bool = False) -> None:
        if self._plain or adds:
            # A module that leaves parameters out, such as one with experts, leaves them as they are.
            entering = [(into, one) for into, one in zip(self._written, gradients, strict=True) if one is not None]
            torch._foreach_add_(*map(list, zip(*entering, strict=True)), alpha=alpha)
            return
        # torch's own zeros (materialize_grads) ask for gradients in torch 2.5.
        filled = [
            torch.zeros_like(value) if one is None else one for one, value in zip(gradients, self._values, strict=True)
        ]
        torch._foreach_copy_(self._written, filled)
