"""Defines the work of a client in a round: tau_i = E * ceil(n_i / B) local steps with E epochs, or K local steps.

E or K may be drawn (`Between`), change at given rounds (`Change`), and tau may be capped. Draws are addressed by (seed,
round, client), or with `per = "run"` by (seed, client).

Sources: docs/algorithms.md section 0; Wang et al. (2020) for epochs drawn per client and round; McMahan et al. (2017),
section 3, for less local work later on.

Clients may also leave in mid-round (`stays`), each of the cohort with the same probability, addressed by (seed, round,
client): a client that leaves sends nothing, is in no sum, and keeps its old state.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from raysim import seeds
from raysim.config.section import Section
from raysim.config.values import Count, Steps
from raysim.seeds import Int64s


class Between(Section):
    """A whole number drawn uniformly between two bounds."""

    low: Steps = Field(description="Smallest value.")
    high: Steps = Field(description="Largest value.")
    per: Literal["round", "run"] = Field("round", description='Drawn anew in each "round", or once for the "run".')

    @model_validator(mode="after")
    def _in_order(self) -> Between:
        if self.low > self.high:
            raise ValueError(f"low <= high must hold, but got (low={self.low}, high={self.high})")
        return self


Amount = Steps | Between
"""Epochs or local steps of a client."""


class Change(Section):
    """Other `epochs` or `local_steps` from a round on."""

    round: Count = Field(description="Number of finished rounds after which it applies.")
    epochs: Amount | None = Field(None, description="Passes over a client's examples.")
    local_steps: Amount | None = Field(None, description="Number of local steps, in place of epochs.")

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
    # One purpose for both; -1 is no round, so the draws of a run and of a round are independent.
    when = -1 if amount.per == "run" else round_index
    keys = seeds.keys(seed, "work", when, positions)
    return amount.low + (keys % np.uint64(amount.high - amount.low + 1)).astype(np.int64)


def stays(probability: float, seed: int, round_index: int, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Whether each client stays to the end; `probability` is that of leaving."""
    if not probability:
        return np.ones(len(positions), dtype=np.bool_)
    draws = seeds.keys(seed, "departure", round_index, positions) >> np.uint64(11)
    return np.asarray(draws.astype(np.float64) * 2.0**-53 >= probability)
