"""Defines the budget of a study: the work of all of its trials, after which no further trial begins."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from raysim import Section
from raysim.config.values import Positive, TotalAmount
from raysim.experiment import stopping

CLIENT_UPDATES = "client_updates"
"""What counts unless a study has a budget."""

Unit = Literal["rounds", "client_updates", "simulated_s", "bytes"]

UNITS: tuple[str, ...] = get_args(Unit)


class StudyBudget(Section):
    """What the trials of a study may use up in all; the trial that uses it up is completed.

    Source: Wang et al. (2022) and Kuo et al. (2023) compare tuners by the rounds and clients that they use, not by the
    number of trials.
    """

    rounds: TotalAmount | None = Field(None, description="Rounds of all runs.")
    client_updates: TotalAmount | None = Field(
        None, description="Updates that clients sent in all runs: rounds times clients, rejected updates included."
    )
    simulated_s: Positive | None = Field(None, description="Simulated seconds of all runs; needs `[systems]`.")
    bytes: TotalAmount | None = Field(None, description="Bytes down and up in all runs.")

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len(given := self.model_dump(exclude_none=True)) != 1:
            raise ValueError(f"budget is one amount, of rounds, client_updates, simulated_s or bytes, but got {given}")
        return self

    @property
    def unit(self) -> str:
        """What is counted."""
        return next(iter(self.model_dump(exclude_none=True)))

    @property
    def amount(self) -> float:
        """How much of it there is."""
        return float(getattr(self, self.unit))

    def room(self, ended: Sequence[Mapping[str, float]], under_way: int) -> int:
        """Return how many more trials may begin.

        A trial under way is expected to use as much as the most costly one that has ended. Before one has ended, one
        at a time begins.

        >>> StudyBudget(rounds=100).room([], 0), StudyBudget(rounds=100).room([{"rounds": 40}], under_way=1)
        (1, 1)

        Args:
            ended: what each ended trial has used up; see `cost_of_trial`. under_way: number of trials.
        """
        used = [each.get(self.unit, 0.0) for each in ended]
        left, most = self.amount - math.fsum(used), max(used, default=0.0)
        trials = math.ceil(left / most) if most else 1
        return max(0, trials - under_way)


def cost_of_trial(runs: Iterable[Iterable[Mapping[str, Any]]]) -> dict[str, float]:
    """Return what a trial has used up of every budget that is the same on each machine, from the rows of its runs."""
    every = [stopping.used_by(row) for rows in runs for row in rows]
    return {name: math.fsum(used[name] for used in every) for name in StudyBudget.model_fields}


def bought(unit: str, amount: float) -> float:
    """Return what of an amount a study can use up: whole rounds, updates and bytes, any part of a second.

    >>> bought("client_updates", 37.5), bought("simulated_s", 37.5)
    (37.0, 37.5)
    """
    return amount if unit == "simulated_s" else float(math.floor(amount))


def written(unit: str, amount: float) -> str:
    """Return an amount for people.

    >>> written("client_updates", 12000.0)
    '12,000 client updates'
    """
    return f"{amount:,.12g} {stopping.unit(unit)}"
