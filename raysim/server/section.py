"""The `[server]` section: how updates are weighted and what the server does with their mean."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import model_validator

from raysim.section import Section, named_unless_said
from raysim.server.aggregators import Aggregator, Ida, Mean, Rule, ignores_weights
from raysim.server.clipping import ClipSection
from raysim.server.diagnostics import Diagnostics
from raysim.server.fednova import FedNova
from raysim.server.glad import Glad
from raysim.server.lr_scaling import LrScaling, scaled
from raysim.server.lr_schedule import Schedule, factor
from raysim.server.optimizers import OptimizerSection
from raysim.server.sgd import Sgd
from raysim.server.zeroing import Zeroing


class ServerSection(Section):
    """What becomes of the cohort's updates.

    optimizer: takes the step.
    weighting: p_i is proportional to the client's number of training examples, equal for all, or by inverse distance.
    aggregator: what stands for the updates: their mean, or a rule that looks at each.
    clip: bounds each update's norm; absent: off.
    zeroing: leaves out wild updates; absent: off.
    glad: FedGLAD, which scales the step by the clients' agreement; absent: off.
    lr_scaling: of the learning rate with the cohort, and its warm-up.
    lr_schedule: of the learning rate over the rounds; absent: it stays.
    diagnostics: which of the costly measurements are taken.
    """

    optimizer: Annotated[OptimizerSection, named_unless_said(Sgd)] = Sgd()
    weighting: Literal["examples", "uniform", "ida"] = "examples"
    aggregator: Aggregator = Mean()
    clip: ClipSection | None = None
    zeroing: Zeroing | None = None
    glad: Glad | None = None
    lr_scaling: LrScaling = LrScaling()
    lr_schedule: Schedule | None = None
    diagnostics: Diagnostics = Diagnostics()

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
        if self.weighting == "ida":
            return Ida()
        return None if isinstance(self.aggregator, Mean | FedNova) else self.aggregator

    @property
    def weighs_examples(self) -> bool:
        """Whether w_i is the client's number of examples, and not 1."""
        return self.weighting == "examples" and (self.rule is None or not ignores_weights(self.rule))

    def lr_at(self, cohort_size: float, t: int) -> float:
        """The learning rate that the step after t finished rounds applies."""
        return scaled(self.lr_scaling, self.optimizer.lr, cohort_size, t) * factor(self.lr_schedule, t)
