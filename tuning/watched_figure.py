"""Defines the figure that an objective looks at: its column, its name for people, and which way it is better."""

from __future__ import annotations

import math
from typing import NamedTuple

from raysim.config.percentile_name import percentile_name
from raysim.experiment.row import Row
from raysim.report import number_formats

VALIDATION = "eval/validation"
"""Prefix of the columns that a study may use."""


class WatchedFigure(NamedTuple):
    """A figure of a round.

    column: of the records. label: for people. is_share: an accuracy, written in percent. is_ratio: a ratio of sums over
    validation clients. rises: whether it is to be large. may_be_undefined: whether NaN means that a round has none.
    """

    column: str
    label: str
    is_share: bool = False
    is_ratio: bool = False
    rises: bool = False
    may_be_undefined: bool = False

    def is_known(self, row: Row) -> bool:
        """Return whether the round has the figure; a metric may be undefined there."""
        value = row.get(self.column)
        return value is not None and not (self.may_be_undefined and math.isnan(value))

    def text(self, value: float) -> str:
        """Return a value for people."""
        return number_formats.share(value) if self.is_share else number_formats.loss(value)


ACCURACY = WatchedFigure(f"{VALIDATION}/accuracy", "validation accuracy", is_share=True, is_ratio=True, rises=True)
LOSS = WatchedFigure(f"{VALIDATION}/loss", "validation loss", is_ratio=True)
TRAIN_LOSS = WatchedFigure("loss", "training loss")


def of_percentile(percentile: float) -> WatchedFigure:
    """Return an accuracy of validation clients, in the order of accuracies."""
    name = percentile_name(percentile)
    label = f"percentile {name.removeprefix('p')} of validation accuracy by client"
    return WatchedFigure(f"{VALIDATION}/{name}", label, is_share=True, rises=True)


def of_metric(name: str, maximise: bool) -> WatchedFigure:
    """Return a metric beside loss and accuracy."""
    return WatchedFigure(f"{VALIDATION}/{name}", f"validation {name}", rises=maximise, may_be_undefined=True)
