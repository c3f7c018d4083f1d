"""Says what a number of a step is for batches of one length, from what it is for two other lengths.

Where batches lie row behind row, sizes, offsets and strides grow by the same amount with each example, and a factor is
the same for all lengths, or follows from the length by one of a few rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import Program
from raysim.client.trainers.recording.instruction_list import NotInterpreted
from raysim.client.trainers.recording.tape import Op, Slot

T = TypeVar("T")
S = TypeVar("S")

OTHER = "is another step for batches of another length"

_RULES: tuple[Callable[[int], float], ...] = (
    lambda n: 1 / n,
    lambda n: n,
    lambda n: 1 / (n - 1),
    lambda n: n / (n - 1),
)
"""What a factor may be a multiple of; the last two are of unbiased variances, which one example does not have."""


_STAYING: tuple[Callable[[Program], Any], ...] = (
    lambda program: program["code"],
    lambda program: program["axes"],
    lambda program: program["by_alpha"],
    lambda program: program["operands"]["base"],
)
"""Columns of a program that are the same for all lengths."""

_GROWING: tuple[Callable[[Program], Any], ...] = (
    lambda program: program["shape"],
    lambda program: program["operands"]["offset"],
    lambda program: program["operands"]["strides"],
)


@dataclass(frozen=True)
class AtLength:
    """What a number that has one value at `largest` examples, and one at an example less, is at `length`."""

    largest: int
    length: int

    def program(self, large: Program, small: Program) -> Program:
        """All instructions at once."""
        if len(large) != len(small) or any(not np.array_equal(of(large), of(small)) for of in _STAYING):
            raise NotInterpreted(OTHER)
        made = large.copy()
        for of in _GROWING:
            of(made)[...] -= (of(large) - of(small)) * (self.largest - self.length)
        for name in ("p", "q"):
            ours, theirs = large[name], small[name]
            for index in np.flatnonzero((ours != theirs) & ~(np.isnan(ours) & np.isnan(theirs))):
                made[name][index] = self._factor(float(ours[index]), float(theirs[index]))
        return made

    def op(self, large: Op, small: Op) -> Op:
        """The operator on the slots of the larger one."""
        if large.function != small.function:
            raise NotInterpreted(OTHER)
        args, kwargs = self._argument(large.args, small.args), self._argument(dict(large.kwargs), dict(small.kwargs))
        return replace(large, args=args, kwargs=kwargs)

    def tensor(self, large: Tensor, small: Tensor) -> Tensor:
        """In the memory of the larger one."""
        if large.dtype != small.dtype or large.layout != torch.strided:
            raise NotInterpreted(OTHER)
        sizes, strides = self.integers(large.shape, small.shape), self.integers(large.stride(), small.stride())
        offset = self.integer(int(large.storage_offset()), int(small.storage_offset()))
        return large.as_strided(sizes, strides, offset)

    def integers(self, large: Sequence[int], small: Sequence[int]) -> tuple[int, ...]:
        return tuple(starmap(self.integer, pairs(large, small)))

    def integer(self, large: int, small: int) -> int:
        return large - (large - small) * (self.largest - self.length)

    def _argument(self, large: Any, small: Any) -> Any:
        if type(large) is not type(small):
            raise NotInterpreted(OTHER)
        if isinstance(large, tuple | list):
            return type(large)(list(starmap(self._argument, pairs(large, small))))
        if isinstance(large, dict):
            return {name: self._argument(one, small.get(name)) for name, one in large.items()}
        if type(large) is int:
            return self.integer(large, small)
        if isinstance(large, float):
            return self._factor(large, small)
        if not isinstance(large, Slot) and large != small:
            raise NotInterpreted(OTHER)
        return large

    def _factor(self, large: float, small: float) -> float:
        if large == small or (large != large and small != small):
            return large
        has_none = self.largest < 3 or self.length < 2
        for rule in _RULES[:2] if has_none else _RULES:
            if math.isclose(large * rule(self.largest - 1), small * rule(self.largest), rel_tol=1e-12):
                return large / rule(self.largest) * rule(self.length)
        raise NotInterpreted("has a factor that does not follow from the length of its batch")


def pairs(large: Sequence[T], small: Sequence[S]) -> list[tuple[T, S]]:
    """Each of the one with that of the other.

    Raises:
        NotInterpreted: they are not as many.
    """
    if len(large) != len(small):
        raise NotInterpreted(OTHER)
    return list(zip(large, small, strict=True))
