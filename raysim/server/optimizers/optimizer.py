"""A server optimizer: a pair of pure functions over flat vectors; it *descends* on the pseudo-gradient g."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.models.layout import Layout
from raysim.models.vectors import fresh

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """What one step descends on: numerators read `fg`, second moments `g`; nothing else need be known of FedGLAD.

    `fed` and `rescale` are what numerators are made with where a model's memory and a rounding are to be saved. A step
    whose length is a ratio of norms, in which f would cancel, is multiplied by `factor` (Yang et al. 2023, alg. 1).

    layout: the parameter groups in the flat vectors.
    g: -(sum of p_i delta_i), in the dtype of params; without any factor.
    lr: the learning rate applied in this round.
    k: 1 in the first round; the index of bias corrections.
    factors: f_P per parameter group, in layout order; None is 1 for all.
    """

    layout: Layout
    g: Tensor
    lr: float
    k: int = 1
    factors: tuple[float, ...] | None = None

    @property
    def fg(self) -> Tensor:
        """f_P g_P; not to be written to."""
        return self.g if self.factors is None else self.rescale(self.g.clone(), 1.0)

    def factor(self, group: int) -> float:
        """f_P of a group, by its index."""
        return 1.0 if self.factors is None else self.factors[group]

    def fed(self, vector: Tensor, keep: float, scale: float) -> Tensor:
        """keep vector_P + scale f_P g_P, a new vector; one rounding less than with `fg`."""
        if self.factors is None and keep == 1:
            return torch.add(vector, self.g, alpha=scale, out=fresh(vector))
        product = torch.mul(vector, keep, out=fresh(vector))
        if self.factors is None:
            return product.add_(self.g, alpha=scale)
        for piece, g, f in zip(self.layout.pieces(product), self.layout.pieces(self.g), self.factors, strict=True):
            piece.add_(g, alpha=scale * f)
        return product

    def rescale(self, vector: Tensor, scale: float) -> Tensor:
        """vector_P <- scale f_P vector_P, in place."""
        if self.factors is None:
            return vector.mul_(scale)
        for piece, f in zip(self.layout.pieces(vector), self.factors, strict=True):
            piece.mul_(scale * f)
        return vector


class Stepped(NamedTuple):
    """The model and the state after a step; `metrics` is what the step says of itself, such as trust ratios."""

    params: Tensor
    state: State
    metrics: Mapping[str, float] = MappingProxyType({})


class ServerOptimizer(NamedTuple):
    """`init(params) -> state` of a run's start; `step(params, descent, state)`. Arguments are not written to."""

    init: Callable[[Tensor], State]
    step: Callable[[Tensor, Descent, State], Stepped]


def path(optimizer: ServerOptimizer, start: float, gradients: Sequence[float], lr: float) -> list[float]:
    """A model of one number after each step along these gradients, in float64: to compare with an equation by hand."""
    params = torch.tensor([start], dtype=torch.float64)
    layout, state, passed = Layout(("x",), ((1,),), (0,), 1), optimizer.init(params), []
    for k, g in enumerate(gradients, start=1):
        params, state, _ = optimizer.step(params, Descent(layout, torch.full_like(params, g), lr, k), state)
        passed.append(params.item())
    return passed
