"""Defines `[stop]`: the conditions under which a run ends before its last round. stopping.py decides by them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from raysim.config.section import Section
from raysim.config.values import Count, NonNegative, Positive, Real, TotalAmount
from raysim.experiment import direction

Column = Annotated[str, Field(min_length=1, max_length=300)]
"""The name of a recorded figure."""


EVALUATIONS = ("eval/", "eval_average/", "eval_tuned/", "eval_personal/")
"""Prefixes of columns that only evaluated rounds have."""

_MAXIMISE = "Whether the metric is to be large. Absent: by its name, which tells it of accuracies and losses."


OF_OPTIMUM = ("distance_to_optimum", "excess_loss")
"""Columns that only evaluated rounds have, too, where the data know the best model."""


def without_evaluation(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without what an evaluation has found.

    >>> without_evaluation({"round": 3, "loss": 0.5, "eval/test/loss": 0.6, "excess_loss": 0.1})
    {'round': 3, 'loss': 0.5}
    """
    return {name: value for name, value in row.items() if not name.startswith((*EVALUATIONS, *OF_OPTIMUM))}


class WatchedMetric(BaseModel):
    """A recorded metric, and whether it is to be large."""

    metric: Column = Field(description="A recorded metric.", examples=["eval/validation/accuracy"])
    maximise: bool | None = Field(None, description=_MAXIMISE, examples=[True])

    @model_validator(mode="after")
    def _direction_that_is_known(self) -> Self:
        if (why := direction.refusal(self.metric, self.maximise)) is not None:
            raise ValueError(why)
        return self

    @property
    def is_maximised(self) -> bool:
        """Whether the metric is to be large."""
        return bool(direction.is_maximised(self.metric, self.maximise))


class BestMetric(WatchedMetric, Section):
    """The metric by which the best model is kept; a text is a table with this metric."""

    @model_validator(mode="after")
    def _metric_of_a_kept_model(self) -> Self:
        # The cohort trains on the model before the step, which is not kept.
        if not self.metric.startswith(EVALUATIONS):
            raise ValueError(f"metric must be one of the evaluations, such as eval/test/loss, but got {self.metric!r}")
        return self


def _named(given: Any) -> Any:
    return {"metric": given} if isinstance(given, str) else given


BestModel = Annotated[BestMetric, BeforeValidator(_named)]
"""`best = "eval/validation/accuracy"` is `best = { metric = "eval/validation/accuracy" }`."""


class StopTarget(WatchedMetric, Section):
    """The run ends when a metric reaches a value."""

    value: Real = Field(description="The value to be reached; an accuracy is from 0 to 1.")
    last: Count = Field(1, description="Number of last records of the metric whose mean is to reach the value.")

    @model_validator(mode="after")
    def _value_that_can_be_reached(self) -> Self:
        is_accuracy = self.is_maximised and direction.is_maximised(self.metric)
        if is_accuracy and not 0 < self.value <= 1:
            raise ValueError(f"value must be an accuracy, above 0 and at most 1, but got {self.value:g}")
        return self


class Patience(WatchedMetric, Section):
    """The run ends when a metric has not become better for some time."""

    evaluations: Count = Field(description="Records of the metric in a row without a new best one.")
    min_change: NonNegative = Field(0.0, description="A new best one is better than the old by more than this.")


class StopBudget(Section):
    """The run ends with the round in which any of these is used up."""

    rounds: Count | None = Field(None, description="Rounds.")
    client_updates: TotalAmount | None = Field(
        None, description="Updates that clients sent, summed over the rounds, rejected ones included."
    )
    simulated_s: Positive | None = Field(None, description="Simulated seconds; needs `[systems]`.")
    bytes: TotalAmount | None = Field(None, description="Bytes that clients transfer, down and up.")
    wall_s: Positive | None = Field(
        None,
        description=(
            "Seconds of this machine in rounds, those before a resume included. The one condition that depends on the "
            "machine: a repeated run may end in another round."
        ),
    )

    @model_validator(mode="after")
    def _some_budget(self) -> Self:
        if not self.amounts:
            raise ValueError(f"budget must have at least one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def amounts(self) -> dict[str, float]:
        """The given budgets, by key."""
        return {name: value for name in type(self).model_fields if (value := getattr(self, name)) is not None}


class Divergence(Section):
    """The run ends when a figure is not finite, or too large, or when every update of a round was rejected."""

    metric: Column = Field("loss", description="A recorded metric.")
    above: Real | None = Field(
        None, description="The metric has diverged above this. Absent: only if it is not a number."
    )


class StopSection(Section):
    """When a run ends before its last round: when the first of these conditions holds after a round."""

    target: StopTarget | None = Field(None, description="A value of a metric that is good enough. Absent: none.")
    patience: Patience | None = Field(None, description="Evaluations without a better metric. Absent: any number.")
    budget: StopBudget | None = Field(None, description="Work, traffic or time that may be used. Absent: no bound.")
    divergence: Divergence | None = Field(None, description="What counts as diverged. Absent: nothing.")

    @model_validator(mode="after")
    def _some_condition(self) -> Self:
        if not any(getattr(self, name) for name in type(self).model_fields):
            raise ValueError(f"stop must have at least one of {', '.join(type(self).model_fields)}")
        return self

    @property
    def metrics(self) -> dict[str, str]:
        """The metrics that the conditions watch, by dotted key."""
        watched = {"target": self.target, "patience": self.patience, "divergence": self.divergence}
        return {f"stop.{name}.metric": each.metric for name, each in watched.items() if each is not None}
