"""The `[server]` section: how updates are weighted and what the server does with their mean."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from raysim.config.section import Section, named_unless_said
from raysim.server.aggregators import ida
from raysim.server.aggregators.choice import Aggregator, Mean
from raysim.server.aggregators.rule import Rule
from raysim.server.clipping import ClipSection, Zeroing
from raysim.server.diagnostics import Diagnostics
from raysim.server.glad import Glad
from raysim.server.lr_scaling import LrScaling, scaled
from raysim.server.lr_schedule import Schedule, factor
from raysim.server.optimizers.choice import OptimizerSection
from raysim.server.optimizers.sgd import Sgd


class ServerSection(Section):
    """How the cohort's updates change the model."""

    optimizer: Annotated[OptimizerSection, named_unless_said(Sgd)] = Field(
        Sgd(), description="Server optimizer that takes the step."
    )
    weighting: Literal["examples", "uniform", "ida"] = Field(
        "examples",
        description='A client\'s weight p_i: by its training examples, equal, or by inverse distance ("ida").',
    )
    aggregator: Aggregator = Field(
        Mean(), description="How updates become one: their mean, or a robust rule over all of them."
    )
    clip: ClipSection | None = Field(None, description="Bound of each update's norm. Absent: off.")
    zeroing: Zeroing | None = Field(None, description="Leaves out updates with wild coordinates. Absent: off.")
    glad: Glad | None = Field(None, description="FedGLAD: scales the step by the clients' agreement. Absent: off.")
    lr_scaling: LrScaling = Field(
        LrScaling(), description="Scaling of the learning rate with the cohort size, and its warm-up."
    )
    lr_schedule: Schedule | None = Field(None, description="Learning rate over the rounds. Absent: constant.")
    diagnostics: Diagnostics = Field(Diagnostics(), description="Which costly measurements are taken.")

    @model_validator(mode="after")
    def _rules_that_go_together(self) -> ServerSection:
        if self.weighting == "ida" and not isinstance(self.aggregator, Mean):
            raise ValueError(
                f"weighting = 'ida' weighs a mean, so aggregator must be 'mean', but got {self.aggregator.name!r}"
            )
        return self

    @property
    def rule(self) -> Rule | None:
        """What needs every update of a round; None where their sums are enough."""
        return ida.RULE if self.weighting == "ida" else self.aggregator.rule()

    @property
    def weighs_examples(self) -> bool:
        """Whether w_i is the client's number of examples, and not 1."""
        rule = self.rule
        return self.weighting == "examples" and (rule is None or not rule.ignores_weights)

    def lr_at(self, cohort_size: float, t: int) -> float:
        """The learning rate that the step after t finished rounds applies."""
        return scaled(self.lr_scaling, self.optimizer.lr, cohort_size, t) * factor(self.lr_schedule, t)
