"""Defines an aggregation rule: a function of every update of a round, for results that sums do not give.

Updates never come together in one process: a rule sees single coordinates of all of them, or their inner products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """A pure function, and its requirements. Tensors are float64, rows are in the order of the cohort, w_i >= 0.

    fn: see the two kinds of rules. name: in messages. fewest: updates that the rule is defined for. needs: says what
    the rule needs, for so few clients that it is not defined. ignores_weights: whether every update counts alike.
    """

    fn: Callable[[Tensor, Tensor], Tensor]
    name: str = "own"
    fewest: int = 1
    needs: Callable[[int], str] | None = None
    ignores_weights: bool = False

    def refusal(self, clients: int) -> str | None:
        """Return why the rule is not defined for this number of updates; None if it is.

        >>> Rule(lambda updates, weights: updates[0], fewest=2).refusal(1)
        'own needs M >= 2 updates, but the cohort has 1'
        """
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
