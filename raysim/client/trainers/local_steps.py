"""The way from a loss gradient to the next weights: written once, called by every trainer.

    gradient = grad                                       of the batch's loss at y
             - grad at x, same batch and masks            where the rule is anchored (Mime)
             + offset_i + pull (y - x), bent              the correction
             clipped to max_grad_norm, + decay y
    y        = the optimizer's step, but for groups that are held: their gradient is 0 and they stay at x

Where none of this but a correction is asked of an optimizer whose step is y <- y - lr (share g + c) (`affine`), a step
is linear in the gradient, and the product that makes the gradient makes the step (plain):

    y <- y - rate / keep grad, then y <- keep y + rate (pull x - offset_i) - lr c
    rate = lr share, keep = 1 - rate pull

which is y - lr (share (grad + pull (y - x) + offset_i) + c): a correction costs one pass over a vector that is made
once a round.

y is x at first, or what a correction gives the client to begin with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.arrays import Int64s
from raysim.client.chunk_clients import LocalInputs
from raysim.client.corrections.correction import ProximalPoint
from raysim.client.optimizers.optimizer import ClientOptimizer, Rate, State
from raysim.client.trainers.window_averages import WindowAverages
from raysim.models.layout import Layout

Point = Callable[[Tensor, int, float, Mapping[str, Tensor]], Tensor]
Bend = Callable[[Tensor, Tensor, Tensor, Mapping[str, Tensor]], Tensor]


@dataclass(frozen=True)
class StepRule:
    """What a local step does to a gradient; the same in every round of a run.

    optimizer: steps by the gradient that the rule has made.
    max_grad_norm: the longest that a gradient may be; None: it is not clipped.
    decay: weight decay that is added to the gradient.
    pull: the correction's; the gradient gains pull (y - x).
    anchored: the gradient at x, of the same batch, is subtracted.
    sums_gradients: the mean of the raw gradients is asked for.
    plain: a step is y <- keep y + scale grad + constant, and a trainer's products write it into the weights.
    linear: a step has that form, but the gradient may be taken elsewhere than at y, and that at x may be subtracted.
    bend: what else the correction does: (gradient, y, x, what came beside the model) -> gradient.
    sums_inverses: the sums of 1 over the optimizer's `divisor` are asked for.
    held: the place of the groups that do not move; such a rule is not linear.
    samples: clients have windows of local steps over which y is averaged.
    point: where the gradient is taken: (what is stepped, local step, rate, what came beside the model) -> a point.
    proximal: that point as a record; None: there is none, or it is another function.
    by_kernel: the compiled kernel computes all local steps of a client in one call.
    """

    optimizer: ClientOptimizer
    max_grad_norm: float | None
    decay: float
    pull: float
    anchored: bool
    sums_gradients: bool
    plain: bool
    linear: bool = False
    bend: Bend | None = None
    sums_inverses: bool = False
    held: Layout | None = None
    samples: bool = False
    point: Point | None = None
    proximal: ProximalPoint | None = None
    by_kernel: bool = False


class LinearSteps(NamedTuple):
    """Local steps of a linear rule: y <- y + scale grad, then y <- keep y + constant, all fixed for the round.

    scale, keep: float64 (K, 1) where the rows' rates differ. constant: (P,), or (K, P) where rows differ; None: 0. It
    is only read: it may be a client's offset itself.
    """

    scale: Rate
    keep: Rate
    constant: Tensor | None

    @classmethod
    def of(
        cls,
        rule: StepRule,
        x: Tensor,
        inputs: LocalInputs,
        stacked: bool,
        lr: Rate,
        start: Mapping[str, Tensor] | None,
    ) -> LinearSteps:
        """Make those of clients; the arguments are those of `LocalSteps`. stacked: `constant` has rows."""
        assert rule.optimizer.affine is not None
        share, added = rule.optimizer.affine(rule.optimizer.init(x) if start is None else start)
        rate = lr * share
        keep = 1 - rate * rule.pull
        constant = _constant(rule, x, inputs.offsets, stacked, _like(-rate, x))
        if added is not None:
            move = added * _like(-lr, x)
            constant = move if constant is None else constant + move
        return cls(-rate / keep, keep, constant)


class StepVectors(NamedTuple):
    """Where a trainer and its local steps exchange vectors, (P,) or (K, P).

    params: y, equal to x; written to. gradient: where the trainer puts the loss gradient; the same tensor as `params`
    where the rule is plain. anchor_gradient: where it puts that at x, where the rule is anchored.
    """

    params: Tensor
    gradient: Tensor
    anchor_gradient: Tensor | None = None


class LocalSteps:
    """One round of local training of a client (P,), or of a stack (K, P) whose first rows are still at work.

    Args:
        rule: see there.
        vectors: of the trainer.
        x: (P,), the broadcast; or (K, P), where the rows of a stack start from different ones.
        taus: local steps of the clients in the order of the rows; one for (P,).
        inputs: what they are given.
        lr: of this round; or float64 (K, 1), where the rows' rates differ.
        start: what the optimizer's state starts as, (P,) each; None: as its `init` makes it.
    """

    def __init__(
        self,
        rule: StepRule,
        vectors: StepVectors,
        x: Tensor,
        taus: Sequence[int] | Int64s,
        inputs: LocalInputs,
        lr: Rate,
        start: Mapping[str, Tensor] | None = None,
    ) -> None:
        params = vectors.params
        self._rule, self._params, self._gradient, self._anchor = rule, *vectors
        self._x, self._received, self._taus = x, inputs.received, taus
        if inputs.begins:
            params.copy_(torch.stack(inputs.begins) if params.dim() > 1 else inputs.begins[0])
        self._lr = _like(lr, params)
        stacked = params.dim() > 1
        linear = LinearSteps.of(rule, x, inputs, stacked, lr, start) if rule.plain else None
        self._keep: Rate = 1.0 if linear is None else _like(linear.keep, params)
        # Of a plain rule it is added to y, else to the gradient.
        self._constant = _offset(inputs.offsets, stacked) if linear is None else linear.constant
        self._away = torch.empty_like(params) if rule.pull and linear is None else None
        self._state: State = {}
        self._sum = torch.zeros_like(params) if rule.sums_gradients else None
        self._inverses = torch.zeros_like(params) if rule.sums_inverses else None
        self._one = params.new_ones(()) if rule.sums_inverses else None
        self._iterate, self._taken = params, 0
        if rule.point is not None:
            self._iterate = params.clone()
            self._take_point(params, self._iterate)
        self._averages = None
        if rule.samples:
            self._averages = WindowAverages(params, inputs.windows)
        self.scale: Rate = 1.0 if linear is None else linear.scale
        """What the trainer multiplies the loss gradient with; float64 (K, 1) where the rates differ."""
        self.acts = not rule.plain or self._constant is not None or rule.samples
        """Whether `step` does anything."""
        if rule.plain:
            return
        if start is not None:
            self._state = {name: value.expand(params.shape) for name, value in start.items()}
        else:
            self._state = rule.optimizer.init(params)

    @property
    def alpha(self) -> float:
        """`scale` where all rows have one rate."""
        assert isinstance(self.scale, float)
        return self.scale

    def step(self, active: int | None = None) -> None:
        """Finish a local step, of the first so many rows of a stack."""
        if self._rule.plain:
            self._move_linearly(active)
        else:
            self._move(active)
        if self._averages is not None:
            self._averages.add(active)

    def delta(self) -> Tensor:
        """What the optimizer stepped, less x; written over it."""
        return self._iterate.sub_(self._x)

    def _take_point(self, params: Tensor, iterate: Tensor) -> None:
        assert self._rule.point is not None
        assert isinstance(self._lr, float)
        params.copy_(self._rule.point(iterate, self._taken, self._lr, self._received))

    def samples(self) -> tuple[Tensor, ...] | None:
        """The means of y over each client's windows, (l, P) each, where asked for."""
        return None if self._averages is None else self._averages.means

    def _move_linearly(self, active: int | None) -> None:
        """Do what a plain rule does beside the gradient, which the trainer has added."""
        params, constant, keep = _rows(self._params, active), self._constant_of(active), self._keep
        if constant is None:
            return
        if isinstance(keep, Tensor):
            torch.addcmul(constant, params, _rows(keep, active), out=params)
        else:
            torch.add(constant, params, alpha=keep, out=params)

    def _constant_of(self, active: int | None) -> Tensor | None:
        constant = self._constant
        return constant if constant is None or constant.dim() == 1 else _rows(constant, active)

    def _move(self, active: int | None) -> None:
        """Do the rule's step on the gradient that the trainer has put down."""
        params, iterate, gradient = (_rows(each, active) for each in (self._params, self._iterate, self._gradient))
        state = {name: _rows(value, active) for name, value in self._state.items()}
        lr = _rows(self._lr, active) if isinstance(self._lr, Tensor) else self._lr
        self._change(gradient, params, active)
        self._rule.optimizer.step(iterate, gradient, state, lr)
        if self._rule.point is not None:
            self._taken += 1
            self._take_point(params, iterate)
        if self._inverses is not None:
            divisor = self._rule.optimizer.divisor
            assert divisor is not None
            assert self._one is not None
            assert isinstance(lr, float)
            _rows(self._inverses, active).addcdiv_(self._one, divisor(state))
        if self._rule.held is not None:
            self._put_back(self._rule.held, params)

    def _change(self, gradient: Tensor, params: Tensor, active: int | None) -> None:
        """Write over the loss gradient what the optimizer takes."""
        rule, constant = self._rule, self._constant_of(active)
        if self._sum is not None:
            _rows(self._sum, active).add_(gradient)
        if self._anchor is not None:
            gradient.sub_(_rows(self._anchor, active))
        if constant is not None:
            gradient.add_(constant)
        if self._away is not None:
            # y - x first, which is 0 where y = x: pull y - pull x would be rounding, of which an optimizer that divides
            # by the gradient's size makes whole steps, also of weights that have no gradient.
            away = torch.sub(params, self._beginning(params), out=_rows(self._away, active))
            gradient.add_(away, alpha=rule.pull)
        if rule.bend is not None:
            gradient.copy_(rule.bend(gradient, params, self._x, self._received))
        if rule.held is not None:
            for piece in rule.held.pieces(gradient):
                piece.zero_()
        shape_gradient(gradient, params, rule.max_grad_norm, rule.decay)

    def _put_back(self, held: Layout, params: Tensor) -> None:
        """Undo what weight decay, or an optimizer's own, did to groups that do not move."""
        for piece, first in zip(held.pieces(params), held.pieces(self._beginning(params)), strict=True):
            piece.copy_(first)

    def _beginning(self, params: Tensor) -> Tensor:
        """x, of as many rows as `params` has, where rows start from different ones."""
        return self._x if self._x.dim() == 1 else self._x[: len(params)]

    def inverses(self) -> Tensor | None:
        """The sums of 1 / the optimizer's divisors over each client's steps, where asked for: a row per client."""
        return None if self._inverses is None else self._inverses.view(len(self._taus), -1)

    def mean_gradients(self) -> Tensor | None:
        """The raw loss gradients' means over each client's local steps, where asked for: a row per client."""
        if self._sum is None:
            return None
        taus = torch.as_tensor(self._taus, dtype=self._sum.dtype, device=self._sum.device)
        return self._sum.view(len(taus), -1).div_(taus.unsqueeze(1))


def _rows(matrix: Tensor, active: int | None) -> Tensor:
    """The first so many rows; None: all."""
    return matrix if active is None else matrix[:active]


def _like(rate: Rate, params: Tensor) -> Rate:
    return rate.to(params.dtype) if isinstance(rate, Tensor) else rate


def _offset(offsets: Sequence[Tensor], stacked: bool) -> Tensor | None:
    """offset_i: (P,), or (K, P) of a stack; None where clients have none. It is only read."""
    if not offsets:
        return None
    return torch.stack(tuple(offsets)) if stacked else offsets[0]


def _constant(rule: StepRule, x: Tensor, offsets: Sequence[Tensor], stacked: bool, scale: Rate) -> Tensor | None:
    """scale (offset_i - pull x), fixed for the round: (P,), or (K, P) where rows differ; None where it is 0.

    It is only read: it may be the offset itself.
    """
    constant = _offset(offsets, stacked)
    if constant is None:
        return x * (-rule.pull * scale) if rule.pull else None
    if rule.pull:
        constant = torch.sub(constant, x, alpha=rule.pull)
    return constant if isinstance(scale, float) and scale == 1 else constant * scale


def shape_gradient(gradient: Tensor, params: Tensor, max_grad_norm: float | None, weight_decay: float) -> None:
    """In place: g <- g * min(1, max_grad_norm / |g|), then g <- g + weight_decay * y; rows of a stack each by itself.

    Args:
        gradient: (P,) or (A, P), gaps zero.
        params: y, the weights, in the same shape.
        max_grad_norm: None clips nothing.
        weight_decay: 0 adds nothing.
    """
    if max_grad_norm is not None:
        norm = torch.linalg.vector_norm(gradient, dim=-1, keepdim=True)
        # A zero gradient gives infinity, clamped to 1; a NaN stays one, and the client is rejected.
        gradient.mul_((max_grad_norm / norm).clamp(max=1.0))
    if weight_decay:
        gradient.add_(params, alpha=weight_decay)
