"""Defines the `[server]` section: the weights of updates, and the server's step with their mean."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, model_validator

from raysim.config.own_part import OwnPart, is_unbound
from raysim.config.section import Section, with_default_name
from raysim.config.values import Constant
from raysim.server.aggregators import ida
from raysim.server.aggregators.choice import AGGREGATORS, Aggregator, Mean
from raysim.server.aggregators.rule import Rule
from raysim.server.clipping import ClipSection, Zeroing
from raysim.server.compression import ServerCompression
from raysim.server.diagnostics import Diagnostics
from raysim.server.fairness.choice import FairnessSection
from raysim.server.glad import Glad
from raysim.server.levels import Limiting
from raysim.server.lr_scaling import LrScaling, lr_after
from raysim.server.lr_schedule import Schedule, factor
from raysim.server.optimizers.choice import OptimizerSection
from raysim.server.optimizers.sgd import Sgd
from raysim.server.privacy.choice import PrivacyChoice
from raysim.server.secure_sum import SecureSum
from raysim.server.weighting import WEIGHTINGS, Weighting, WeightingSection


class ServerSection(Section):
    """How the cohort's updates change the model."""

    optimizer: Annotated[OptimizerSection, with_default_name(Sgd)] = Field(
        Sgd(), description="Server optimizer that takes the step."
    )
    weighting: WeightingSection = Field(
        "examples",
        description='A client\'s weight p_i; "examples": the number of its training examples; "uniform": the same for '
        'all; "ida": its inverse distance from the mean; "own": a function that a script passes. The aggregators '
        "median, trimmed_mean, krum and multi_krum count all clients alike.",
    )
    aggregator: Aggregator = Field(
        Mean(), description="How updates become one: their mean, or a robust rule over all of them."
    )
    fairness: FairnessSection | None = Field(
        None, description="Weights by the clients' losses of the model that they receive. Absent: off."
    )
    clip: ClipSection | None = Field(None, description="Bound of each update's norm. Absent: off.")
    privacy: PrivacyChoice | None = Field(
        None, description="Noise of the clients' sum, and an accountant of (epsilon, delta); needs a clip. Absent: off."
    )
    secure_sum: SecureSum | None = Field(
        None, description="Fixed-point numbers that are added modulo 2^bits, as secure aggregation does. Absent: off."
    )
    zeroing: Zeroing | None = Field(None, description="Leaves out updates with wild coordinates. Absent: off.")
    compression: ServerCompression | None = Field(
        None, description="How the model is sent to clients in fewer bits. Absent: as it is."
    )
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
    def limiting(self) -> Limiting:
        """Clipping and zeroing."""
        return Limiting(self.clip, self.zeroing)

    @property
    def rule(self) -> Rule | None:
        """The rule over every update; None if their sums are enough, or if a script has not passed its rule yet."""
        if self.weighting == "ida":
            return ida.RULE
        if is_unbound(self.aggregator):
            return None
        return AGGREGATORS.make(self.aggregator)

    @property
    def has_own_rule(self) -> bool:
        """Whether the rule is a script's or a package's."""
        return type(self.aggregator) not in AGGREGATORS.makers

    @property
    def weighting_name(self) -> str:
        """The word that chooses the weighting."""
        return self.weighting if isinstance(self.weighting, str) else self.weighting.name

    @property
    def weighting_rule(self) -> Weighting | None:
        """The function from a client's facts to its weight; None for a weighting by name."""
        given = self.weighting
        return None if isinstance(given, str) or is_unbound(given) else WEIGHTINGS.make(given)

    @property
    def weighting_constants(self) -> Mapping[str, Constant]:
        """The constants of a user-defined weighting."""
        return self.weighting.constants if isinstance(self.weighting, OwnPart) else {}

    @property
    def weighs_examples(self) -> bool:
        """Whether w_i is the client's number of examples, and not 1."""
        rule = self.rule
        return self.weighting == "examples" and (rule is None or not rule.ignores_weights)

    def lr_at(self, cohort_size: float, t: int) -> float:
        """The learning rate that the step after t finished rounds applies."""
        return lr_after(self.lr_scaling, self.optimizer.lr, cohort_size, t) * factor(self.lr_schedule, t)
