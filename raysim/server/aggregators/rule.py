"""An aggregation rule: what computes a round's result from every update, where their sums are not enough."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor


class ByInnerProducts(NamedTuple):
    """A weighted mean: `coefficients(inner, weights) -> c_i`, (M,), of inner products (M, M) and weights w_i."""

    coefficients: Callable[[Tensor, Tensor], Tensor]


class ByCoordinate(NamedTuple):
    """A trimmed mean of each coordinate: `dropped(clients) -> k`, the values dropped at either end."""

    dropped: Callable[[int], int]


class Rule(NamedTuple):
    """Data and pure functions, which the file of an aggregator makes.

    name: in messages. result: how it is computed. fewest: updates that the rule is defined for. needs: says what the
    rule needs, for so few clients that it is not defined. ignores_weights: whether every update counts alike.
    """

    name: str
    result: ByInnerProducts | ByCoordinate
    fewest: int = 1
    needs: Callable[[int], str] | None = None
    ignores_weights: bool = True

    def refusal(self, clients: int) -> str | None:
        """Why the rule cannot work on so many updates; None where it can."""
        if clients >= self.fewest:
            return None
        return f"{self.name} needs an update, but the cohort has none" if self.needs is None else self.needs(clients)
