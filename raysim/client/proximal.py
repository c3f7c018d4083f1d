"""Proximal points of dual vectors: the models that a penalty makes of what local steps accumulate.

prox(z, E), E the sum of the learning rates so far, of the parameters that `groups` match; others stay:

Shrunk    sign(z) max(|z| - strength E, 0)
Bounded   z min(1, radius / |z|), per tensor

They are records, not only functions, so that a trainer may compute them where it makes z.

Source: docs/algorithms.md section 3, FedDualAvg.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from raysim.models.layout import Layout


@dataclass(frozen=True)
class Shrunk:
    """Every number is moved towards 0, by `strength` times the sum of the learning rates, and no further."""

    strength: float
    groups: tuple[str, ...]

    def of_piece(self, z: Tensor, elapsed: float) -> Tensor:
        """Return the proximal point of one tensor, (..., n)."""
        return F.softshrink(z, self.strength * elapsed)


@dataclass(frozen=True)
class Bounded:
    """Every tensor has a norm of at most `radius`."""

    radius: float
    groups: tuple[str, ...]

    def of_piece(self, z: Tensor, elapsed: float) -> Tensor:
        """Return the proximal point of one tensor, (..., n), rows each by itself."""
        # Of norm 0: infinity, clamped to 1.
        norm = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
        result: Tensor = z * (self.radius / norm).clamp(max=1.0)
        return result


Penalty = Shrunk | Bounded


@lru_cache(maxsize=16)
def penalised_names(layout: Layout, groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the parameters that a pattern matches, in the layout's order."""
    return tuple(name for name in layout.names if any(fnmatchcase(name, pattern) for pattern in groups))


@lru_cache(maxsize=16)
def spans(layout: Layout, groups: tuple[str, ...]) -> tuple[tuple[int, int], ...]:
    """Return offset and length of every parameter that a pattern matches."""
    chosen = penalised_names(layout, groups)
    return tuple(
        (offset, math.prod(shape))
        for name, shape, offset in zip(layout.names, layout.shapes, layout.offsets, strict=True)
        if name in chosen
    )


def prox(penalty: Penalty, z: Tensor, elapsed: float, layout: Layout) -> Tensor:
    """Return prox(z, E) of (P,), or of each row of a stack.

    Args:
        penalty: what is done to the tensors that it matches.
        z: dual vectors; not written to.
        elapsed: E, the sum of the learning rates so far.
        layout: the place of each parameter along the last axis.
    """
    result = z.clone()
    for offset, length in spans(layout, penalty.groups):
        own = result.narrow(-1, offset, length)
        own.copy_(penalty.of_piece(own, elapsed))
    return result
