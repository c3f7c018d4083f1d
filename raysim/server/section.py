"""The `[server]` section: how updates are weighted and what the server does with their mean."""

from __future__ import annotations

from typing import Literal

from raysim.section import Section
from raysim.server.clipping import ClipSection
from raysim.server.diagnostics import Diagnostics
from raysim.server.glad import Glad
from raysim.server.lr_scaling import LrScaling, scaled
from raysim.server.lr_schedule import Schedule, factor
from raysim.server.optimizers import OptimizerSection
from raysim.server.sgd import Sgd
from raysim.server.zeroing import Zeroing


class ServerSection(Section):
    """`weighting`: p_i proportional to the client's number of training examples, or equal for all.

    Absent sections are off: no clipping, no zeroing, no FedGLAD, no decay.
    """

    optimizer: OptimizerSection = Sgd()
    weighting: Literal["examples", "uniform"] = "examples"
    clip: ClipSection | None = None
    zeroing: Zeroing | None = None
    glad: Glad | None = None
    lr_scaling: LrScaling = LrScaling()
    lr_schedule: Schedule | None = None
    diagnostics: Diagnostics = Diagnostics()

    def lr_at(self, cohort_size: float, t: int) -> float:
        """The learning rate that the step after t finished rounds applies."""
        return scaled(self.lr_scaling, self.optimizer.lr, cohort_size, t) * factor(self.lr_schedule, t)
