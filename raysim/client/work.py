"""How much a client works in a round: tau_i = E * ceil(n_i / B) local steps with E epochs, or K local steps.

E or K may be drawn (`Between`), change at given rounds (`Change`), and tau may be capped. Draws are addressed by (seed,
round, client), or with `per = "run"` by (seed, client).

Sources: docs/algorithms.md section 0; Wang et al. (2020) for epochs drawn per client and round; McMahan et al. (2017),
section 3, for less local work later on.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import PositiveInt, model_validator

from raysim import seeds
from raysim.section import Section
from raysim.seeds import Int64s


class Between(Section):
    """A whole number that is drawn, each as likely.

    low: the smallest. high: the largest. per: drawn anew for each round, or once for the run.
    """

    low: PositiveInt
    high: PositiveInt
    per: Literal["round", "run"] = "round"

    @model_validator(mode="after")
    def _in_order(self) -> Between:
        if self.low > self.high:
            raise ValueError(f"low <= high must hold, but got (low={self.low}, high={self.high})")
        return self


Amount = PositiveInt | Between
"""Epochs or local steps of a client."""


class Change(Section):
    """Other work from a round on: `epochs` or `local_steps`.

    round: after so many finished rounds.
    epochs: passes over a client's examples.
    local_steps: or so many batches.
    """

    round: PositiveInt
    epochs: Amount | None = None
    local_steps: Amount | None = None

    @model_validator(mode="after")
    def _one_measure(self) -> Change:
        if (self.epochs is None) == (self.local_steps is None):
            raise ValueError(
                f"either epochs or local_steps must say what the work is from round {self.round} on, but got epochs = "
                f"{self.epochs} and local_steps = {self.local_steps}"
            )
        return self


def drawn(amount: Amount, seed: int, round_index: int, positions: Int64s) -> Int64s:
    """The amount of each client."""
    if isinstance(amount, int):
        return np.full(len(positions), amount, dtype=np.int64)
    # One address for both, so that a round of its own never meets the run's draw.
    when = -1 if amount.per == "run" else round_index
    keys = seeds.keys(seed, "work", when, positions)
    return amount.low + (keys % np.uint64(amount.high - amount.low + 1)).astype(np.int64)
