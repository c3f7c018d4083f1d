"""Defines the objective of a study: one number of a run, from the rows of its rounds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from raysim import Section
from raysim.config.values import Count, Name, Real, Whole
from raysim.experiment.row import Row, lost_every_update
from tuning import watched_figure
from tuning.mean import mean
from tuning.target import RoundsToTarget
from tuning.watched_figure import VALIDATION, WatchedFigure


class Objective(Section):
    """The mean of a figure over some rounds, or the number of rounds until a figure reaches a target.

    A run that does not reach its target has the value T (1 + d), T being its rounds and d > 0 what its best figure
    lacks. So it is worse than all that do, and the better the nearer it came.

    Source: Reddi et al. (2021) and Yang et al. (2023) tune by the training loss, averaged over a window of rounds;
    McMahan et al. (2017) by the rounds to a target.
    """

    name: Literal["accuracy", "loss", "percentile", "metric", "train_loss", "rounds_to_target"] = Field(
        "accuracy",
        description=(
            '"accuracy" and "loss" are those of the validation clients\' examples; "percentile" is one of the '
            'accuracies of validation clients; "metric" is one of evaluation.metrics; "train_loss" is the loss of the '
            'cohort as it trains; "rounds_to_target" is the number of rounds until accuracy, or a metric, reaches a '
            "target."
        ),
    )
    percentile: float | None = Field(None, ge=0, le=100, description="Which percentile, from 0 to 100.")
    metric: Name | None = Field(
        None, description="Name of the columns of a metric beside loss and accuracy.", examples=["f1"]
    )
    maximise: bool = Field(True, description="Whether the metric is to be large.")
    target: Real | None = Field(None, description="The figure to be reached; an accuracy is from 0 to 1.")
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
        if self.metric is None if self.name == "metric" else self.metric is not None and not self.has_target:
            raise ValueError(
                f"metric is the name of a metric, which name = 'metric' needs and 'rounds_to_target' takes, but got "
                f"name = {self.name!r} and metric = {self.metric!r}"
            )
        if not self.maximise and self.metric is None:
            raise ValueError(f"maximise says how a metric is meant, and is not of name = {self.name!r}")
        if self.has_target != (self.target is not None):
            raise ValueError(
                f"target is the number that name = 'rounds_to_target' needs and no other takes, but got name = "
                f"{self.name!r} and target = {self.target}"
            )
        if self.target is not None and self.metric is None and not 0 < self.target <= 1:
            raise ValueError(f"target must be an accuracy, above 0 and at most 1, but got {self.target:g}")
        if self.has_target and (self.last is not None or self.window is not None):
            raise ValueError("a target may be reached in any round: remove last and window")
        if self.last is not None and self.window is not None:
            raise ValueError(f"last and window both say which rounds: give one, but got {self.last} and {self.window}")
        if self.window is not None and self.window[0] > self.window[1]:
            raise ValueError(f"window must be [first, last] with first <= last, but got {list(self.window)}")
        return self

    @property
    def figure(self) -> WatchedFigure:
        """The figure that is averaged, or that is to reach the target."""
        match self.name:
            case "percentile":
                assert self.percentile is not None
                return watched_figure.of_percentile(self.percentile)
            case "loss":
                return watched_figure.LOSS
            case "train_loss":
                return watched_figure.TRAIN_LOSS
        return watched_figure.ACCURACY if self.metric is None else watched_figure.of_metric(self.metric, self.maximise)

    @property
    def aim(self) -> RoundsToTarget | None:
        """The target; None: the value is a mean over rounds."""
        return None if self.target is None else RoundsToTarget(self.figure, self.target)

    @property
    def has_target(self) -> bool:
        """Whether the value is a number of rounds."""
        return self.name == "rounds_to_target"

    @property
    def column(self) -> str:
        """The column of the figure."""
        return self.figure.column

    @property
    def is_maximised(self) -> bool:
        """True for accuracies, False for losses and numbers of rounds; the section decides for a metric."""
        return self.figure.rises and not self.has_target

    @property
    def worst(self) -> float:
        """A bound: no trial is worse."""
        return 0.0 if self.is_share else -math.inf if self.is_maximised else math.inf

    @property
    def is_share(self) -> bool:
        """True if values are written in percent."""
        return self.figure.is_share and not self.has_target

    @property
    def is_ratio(self) -> bool:
        """Whether the value is a ratio of sums over validation clients."""
        return self.figure.is_ratio and not self.has_target

    @property
    def label(self) -> str:
        """The objective's name for people."""
        return self.figure.label if self.aim is None else self.aim.label

    def rounds(self, total: int) -> range:
        """Return the rounds that count, of a run with `total` rounds."""
        if self.has_target:
            return range(total)
        if self.window is not None:
            return range(self.window[0], self.window[1] + 1)
        return range(max(0, total - (self.last or 1)), total)

    def value(self, rows: Iterable[Row], total: int) -> float | None:
        """Return the value of a run with `total` rounds, from its rows; None if no round that counts has the figure."""
        if self.aim is not None:
            return max(self.aim.so_far(rows, total).items(), default=(0, None))[1]
        chosen, figure = self.rounds(total), self.figure
        known = [row[figure.column] for row in rows if row["round"] in chosen and figure.is_known(row)]
        return mean(known) if known else None

    def combined(self, values: Sequence[float], total: int) -> float:
        """Return a trial's value, from those of its seeds: their mean; if one missed the target, worse than `total`.

        >>> aim = Objective(name="rounds_to_target", target=0.9)
        >>> aim.combined([20.0, 30.0], total=100), aim.combined([20.0, 150.0], total=100)
        (25.0, 125.0)
        """
        return mean(values) if self.aim is None else self.aim.combined(values, total)

    def missed(self, value: float, total: int) -> bool:
        """Return whether the value of a run, or of a trial, is of one that did not reach its target."""
        return self.has_target and value > total


def reports(objective: Objective, runs: Sequence[Sequence[Row]], total: int) -> dict[int, float]:
    """Return a trial's intermediate values: finished rounds -> the figure's mean over the runs, of `total` rounds.

    With a target they are the value that the trial would have if it ended there. Only evaluated rounds that every run
    has finished count.
    """
    figure = objective.figure
    evaluated = (
        [
            {row["round"]: row[figure.column] for row in rows if _is_evaluated(row) and figure.is_known(row)}
            for rows in runs
        ]
        if objective.aim is None
        else [objective.aim.so_far(rows, total) for rows in runs]
    )
    common = set.intersection(*(set(values) for values in evaluated)) if evaluated else set()
    return {index + 1: objective.combined([values[index] for values in evaluated], total) for index in sorted(common)}


def divergence(rows: Iterable[Row]) -> str | None:
    """Return why a run has diverged in one of these rounds; None if it has not."""
    for row in rows:
        for column, what in (("loss", "the training loss"), (f"{VALIDATION}/loss", "the validation loss")):
            value = row.get(column)
            if value is not None and not math.isfinite(value):
                return f"{what} was {value} in round {row['round']}"
        if lost_every_update(row):
            return f"every update was rejected in round {row['round']}"
    return None


def _is_evaluated(row: Row) -> bool:
    return row.get(f"{VALIDATION}/loss") is not None
