"""Defines the clients of a run, as its algorithm sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from raysim.client.adversary import Adversary, LabelFlip


@dataclass(frozen=True)
class Participants:
    """The clients of a run, and what of them its rounds need.

    population: N, the number of training clients. cohort_size: the configured size of the cohort after t finished
    rounds. labels: label counts of all training clients, for the comparison with the cohort's; or None. adversary,
    adversaries: the attack, and the positions of its clients. noted: the sums list the facts of every client. chosen:
    the sampler chooses by losses the clients that train.
    """

    population: int
    cohort_size: Callable[[int], float]
    labels: Tensor | None = None
    adversary: Adversary | None = None
    adversaries: frozenset[int] = frozenset()
    noted: bool = False
    chosen: bool = False

    @property
    def flipped(self) -> frozenset[int]:
        """Positions of the adversaries that train on flipped labels."""
        return self.adversaries if isinstance(self.adversary, LabelFlip) else frozenset()
