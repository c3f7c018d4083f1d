"""Defines the objective of a study: one number of a run, from the rows of its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from raysim import Section
from raysim.config.values import Count, Name, Whole

Row = Mapping[str, Any]

VALIDATION = "eval/validation"
"""Prefix of the columns that a study may use."""


class Objective(Section):
    """The mean of a figure over some rounds.

    Source: Reddi et al. (2021) and Yang et al. (2023) tune by the training loss, averaged over a window of rounds.
    """

    name: Literal["accuracy", "loss", "percentile", "metric", "train_loss"] = Field(
        "accuracy",
        description=(
            '"accuracy" and "loss" are those of the validation clients\' examples; "percentile" is one of the '
            'accuracies of validation clients; "metric" is one of evaluation.metrics; "train_loss" is the loss of the '
            "cohort as it trains."
        ),
    )
    percentile: float | None = Field(None, ge=0, le=100, description="Which percentile, from 0 to 100.")
    metric: Name | None = Field(
        None, description="Name of the columns of a metric beside loss and accuracy.", examples=["f1"]
    )
    maximise: bool = Field(True, description="Whether the metric is to be large.")
    last: Count | None = Field(None, description="Number of last rounds of the mean.")
    window: tuple[Whole, Whole] | None = Field(
        None,
        description=(
            "First and last round of the mean, in place of `last`, counted from 0 as the column `round` is. Of "
            'them, evaluated rounds count; for "train_loss" all.'
        ),
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.name == "percentile") != (self.percentile is not None):
            raise ValueError(
                f"percentile is the number that name = 'percentile' needs and no other takes, but got name = "
                f"{self.name!r} and percentile = {self.percentile}"
            )
        if (self.name == "metric") != (self.metric is not None):
            raise ValueError(
                f"metric is the name of a metric, which name = 'metric' needs and no other takes, but got name = "
                f"{self.name!r} and metric = {self.metric!r}"
            )
        if not self.maximise and self.name != "metric":
            raise ValueError(f"maximise says how a metric is meant, and is not of name = {self.name!r}")
        if self.last is not None and self.window is not None:
            raise ValueError(f"last and window both say which rounds: give one, but got {self.last} and {self.window}")
        if self.window is not None and self.window[0] > self.window[1]:
            raise ValueError(f"window must be [first, last] with first <= last, but got {list(self.window)}")
        return self

    @property
    def column(self) -> str:
        """The column of the figure."""
        match self.name:
            case "percentile":
                return f"{VALIDATION}/p{self.percentile:g}"
            case "metric":
                return f"{VALIDATION}/{self.metric}"
            case "train_loss":
                return "loss"
        return f"{VALIDATION}/{self.name}"

    @property
    def is_maximised(self) -> bool:
        """True for accuracies, False for losses; the section decides for a metric."""
        return self.maximise if self.name == "metric" else self.is_share

    @property
    def worst(self) -> float:
        """A bound: no trial is worse."""
        return 0.0 if self.is_share else -math.inf if self.is_maximised else math.inf

    @property
    def is_share(self) -> bool:
        """True if values are written in percent."""
        return self.name in ("accuracy", "percentile")

    @property
    def label(self) -> str:
        """The objective's name for people."""
        match self.name:
            case "percentile":
                return f"percentile {self.percentile:g} of validation accuracy by client"
            case "train_loss":
                return "training loss"
            case "metric":
                return f"validation {self.metric}"
        return f"validation {self.name}"

    def rounds(self, total: int) -> range:
        """Return the rounds that count, of a run with `total` rounds."""
        if self.window is not None:
            return range(self.window[0], self.window[1] + 1)
        return range(max(0, total - (self.last or 1)), total)

    def value(self, rows: Iterable[Row], total: int) -> float | None:
        """Return the figure of a run with `total` rounds, from its rows; None if no round that counts has it."""
        chosen = self.rounds(total)
        known = [row[self.column] for row in rows if row["round"] in chosen and self.is_known(row)]
        return _mean(known) if known else None

    def is_known(self, row: Row) -> bool:
        """Return whether the round has the figure; a metric may be undefined there."""
        value = row.get(self.column)
        return value is not None and not (self.name == "metric" and math.isnan(value))


def reports(objective: Objective, runs: Sequence[Sequence[Row]]) -> dict[int, float]:
    """Return a trial's intermediate values: finished rounds -> the figure's mean over the runs.

    Only evaluated rounds that every run has finished count.
    """
    evaluated = [
        {row["round"]: row[objective.column] for row in rows if _is_evaluated(row) and objective.is_known(row)}
        for rows in runs
    ]
    common = set.intersection(*(set(values) for values in evaluated)) if evaluated else set()
    return {index + 1: _mean([values[index] for values in evaluated]) for index in sorted(common)}


def divergence(rows: Iterable[Row]) -> str | None:
    """Return why a run has diverged in one of these rounds; None if it has not."""
    for row in rows:
        for column, what in (("loss", "the training loss"), (f"{VALIDATION}/loss", "the validation loss")):
            value = row.get(column)
            if value is not None and not math.isfinite(value):
                return f"{what} was {value} in round {row['round']}"
        if row.get("rejected") and not row.get("clients"):
            return f"every update was rejected in round {row['round']}"
    return None


def _is_evaluated(row: Row) -> bool:
    return row.get(f"{VALIDATION}/loss") is not None


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
