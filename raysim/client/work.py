"""Defines the work of a client in a round: tau_i = E * ceil(n_i / B) local steps with E epochs, or K local steps.

E or K may be drawn (`Between`); E, K and B may change at given rounds (`Change`), and tau may be capped. Draws are
addressed by (seed, round, client), or with `per = "run"` by (seed, client).

Sources: docs/algorithms.md section 0; Wang et al. (2020) for epochs drawn per client and round; McMahan et al. (2017),
section 3, for less local work later on: smaller E or larger B.

Clients may also leave in mid-round (`stays`), each of the cohort with the same probability, addressed by (seed, round,
client): a client that leaves sends nothing, is in no sum, and keeps its old state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from raysim import seeds
from raysim.arrays import Int64s
from raysim.config.section import Section
from raysim.config.values import Count, Steps


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


BatchSize = Steps | Literal["full"]
"""Examples of a local step, or all of the client's."""


class Change(Section):
    """Other `epochs`, `local_steps` or `batch_size` from a round on; the others stay."""

    round: Count = Field(description="Number of finished rounds after which it applies.")
    epochs: Amount | None = Field(None, description="Passes over a client's examples.")
    local_steps: Amount | None = Field(None, description="Number of local steps, in place of epochs.")
    batch_size: BatchSize | None = Field(None, description='Examples of a local step; "full": all of the client\'s.')

    @model_validator(mode="after")
    def _one_measure(self) -> Change:
        if self.epochs is None and self.local_steps is None and self.batch_size is None:
            raise ValueError(f"epochs, local_steps or batch_size must say what changes from round {self.round} on")
        if self.epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"either epochs or local_steps measures the work from round {self.round} on, but got epochs = "
                f"{self.epochs} and local_steps = {self.local_steps}: remove one"
            )
        return self


@dataclass(frozen=True)
class RoundWork:
    """The work of a round: E epochs, or K local steps, of batches of B, and what an epoch's last batch is."""

    epochs: Amount
    local_steps: Amount | None
    batch_size: BatchSize
    most_steps: int | None
    fill_last_batch: bool
    drop_last: bool

    def changed(self, change: Change) -> RoundWork:
        """Return the work from the round of the change on."""
        work = self if change.batch_size is None else replace(self, batch_size=change.batch_size)
        if change.epochs is None and change.local_steps is None:
            return work
        return replace(work, epochs=1 if change.epochs is None else change.epochs, local_steps=change.local_steps)

    def steps(self, sizes: Int64s, seed: int, round_index: int, positions: Int64s) -> Int64s:
        """Return tau of the clients at these positions, by their numbers of examples and the finished rounds."""
        if self.local_steps is not None:
            tau = draw_amounts(self.local_steps, seed, round_index, positions)
        else:
            tau = draw_amounts(self.epochs, seed, round_index, positions) * self.epoch(sizes)[1]
        return tau if self.most_steps is None else np.minimum(tau, self.most_steps)

    def most(self, sizes: Int64s) -> Int64s:
        """Return the largest tau that `steps` may draw for clients with so many examples."""
        amount = self.epochs if self.local_steps is None else self.local_steps
        most = amount if isinstance(amount, int) else amount.high
        tau: Int64s = most * (self.epoch(sizes)[1] if self.local_steps is None else np.ones_like(sizes))
        return tau if self.most_steps is None else np.minimum(tau, self.most_steps)

    def epoch(self, sizes: Int64s) -> tuple[Int64s, Int64s, Int64s]:
        """Return how clients with so many examples divide an epoch: the batch, the local steps, the examples met.

        The last batch is short, unless `fill_last_batch` tops it up or `drop_last` leaves it out.

        >>> work = RoundWork(1, None, 4, None, fill_last_batch=False, drop_last=True)
        >>> [part.tolist() for part in work.epoch(np.array([3, 8, 9]))]
        [[4, 4, 4], [1, 2, 2], [3, 8, 8]]
        """
        batch: Int64s = sizes if self.batch_size == "full" else np.full_like(sizes, self.batch_size)
        steps: Int64s = np.maximum(1, sizes // batch) if self.drop_last else -(-sizes // batch)
        return batch, steps, steps * batch if self.fill_last_batch else np.minimum(sizes, steps * batch)

    def examples(self, sizes: Int64s, steps: Int64s) -> Int64s:
        """Return how many examples clients of these sizes process in so many local steps, repeated ones repeatedly."""
        batch, steps_an_epoch, an_epoch = self.epoch(sizes)
        epochs, others = steps // steps_an_epoch, steps % steps_an_epoch
        processed: Int64s = epochs * an_epoch + np.minimum(an_epoch, others * batch)
        return processed


def draw_amounts(amount: Amount, seed: int, round_index: int, positions: Int64s) -> Int64s:
    """The amount of each client."""
    if isinstance(amount, int):
        return np.full(len(positions), amount, dtype=np.int64)
    # One purpose for both; -1 is not a round, so the draws of a run and of a round are independent.
    when = -1 if amount.per == "run" else round_index
    keys = seeds.keys(seed, "work", when, positions)
    return amount.low + (keys % np.uint64(amount.high - amount.low + 1)).astype(np.int64)


def stays(probability: float, seed: int, round_index: int, positions: Int64s) -> npt.NDArray[np.bool_]:
    """Whether each client stays to the end; `probability` is that of leaving."""
    if not probability:
        return np.ones(len(positions), dtype=np.bool_)
    draws = seeds.keys(seed, "departure", round_index, positions) >> np.uint64(11)
    return np.asarray(draws.astype(np.float64) * 2.0**-53 >= probability)
