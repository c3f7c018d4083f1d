"""A server optimizer: a pair of pure functions over flat vectors; it *descends* on the pseudo-gradient g."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.layout import Layout
from raysim.server.fresh import fresh

State = Mapping[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """What one step descends on.

    FedGLAD's rule (Yang et al. 2023, alg. 1; docs/algorithms.md section 2) is held by these names: numerators are fed
    f g
    through `fed` and `rescale`, second moments read `g`, and a step whose length is a ratio of norms is multiplied by
    `factor` afterwards, because the ratio would cancel it.

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

    def factor(self, group: int) -> float:
        """f_P of a group, by its index."""
        return 1.0 if self.factors is None else self.factors[group]

    def fed(self, vector: Tensor, keep: float, scale: float) -> Tensor:
        """keep vector_P + scale f_P g_P, a new vector."""
        if self.factors is None and keep == 1:
            return torch.add(vector, self.g, alpha=scale, out=fresh(vector))
        made = torch.mul(vector, keep, out=fresh(vector))
        if self.factors is None:
            return made.add_(self.g, alpha=scale)
        for piece, g, f in zip(self.layout.pieces(made), self.layout.pieces(self.g), self.factors, strict=True):
            piece.add_(g, alpha=scale * f)
        return made

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
