"""An aggregation rule: what computes a round's result from every update, where their sums are not enough.

Updates never come together in one process: a rule sees single coordinates of all of them, or their inner products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """A pure function, and what it needs. Tensors are float64, rows are in the order of the cohort, w_i > 0 or = 0.

    fn: see the two kinds of rules. name: in messages. fewest: updates that the rule is defined for. needs: says what
    the rule needs, for so few clients that it is not defined. ignores_weights: whether every update counts alike.
    """

    fn: Callable[[Tensor, Tensor], Tensor]
    name: str = "own"
    fewest: int = 1
    needs: Callable[[int], str] | None = None
    ignores_weights: bool = False

    def refusal(self, clients: int) -> str | None:
        """Why the rule cannot work on so many updates; None where it can."""
        if clients >= self.fewest:
            return None
        if self.needs is not None:
            return self.needs(clients)
        updates = "an update" if self.fewest == 1 else f"M >= {self.fewest} updates"
        return f"{self.name} needs {updates}, but the cohort has {clients or 'none'}"


class Coordinatewise(Rule):
    """`fn(updates (M, P'), weights (M,)) -> (P',)` on slices of coordinates, which stands in the mean's place."""


class Coefficients(Rule):
    """`fn(gram (M, M), weights (M,)) -> c (M,)` of the updates' inner products: the mean is sum c_i h_i / sum c_i."""
