"""Defines a local objective: the losses of a batch as a function of the module, so not of its outputs alone.

    losses = objective(module, x, y, at)      (batch,), whose mean is differentiated

Mixup, distillation from the broadcast and regularisers are objectives. Where there is none, the objective is
`task.losses(module(x), y)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from raysim.config.own import Constant, OwnObjective
from raysim.config.part import Choice, Packaged


class ObjectiveAt(NamedTuple):
    """Where in a run a batch's losses are asked for.

    broadcast: the received model, by parameter name, without gradients; not to be written to. client: its id. round: 0
    for the first. local_step: 0 for the round's first. generator: on the device of x, addressed by run, round, client
    and local step: draws from it are the same wherever the client trains. constants: of the section.
    """

    broadcast: Mapping[str, Tensor]
    client: str
    round: int
    local_step: int
    generator: torch.Generator
    constants: Mapping[str, Constant]


Objective = Callable[[nn.Module, Tensor, Tensor, ObjectiveAt], Tensor]
"""(module, x (batch, ...), y (batch, ...), at) -> losses (batch,)."""

ObjectiveSection = Annotated[OwnObjective, Packaged("objective", "client.objective")]

OBJECTIVES: Choice[Objective] = Choice("objective", {}, own=lambda section: section.passed)
