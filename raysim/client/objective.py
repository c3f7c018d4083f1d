"""Defines a local objective: the losses of a batch as a function of the module, so not of its outputs alone.

    losses = objective(module, x, y, at)      (batch,), whose mean is differentiated

Mixup, distillation from the broadcast and regularisers are objectives. Where there is none, the objective is
`task.losses(module(x), y)`. Every gradient of a client is its objective's: those of local steps, of a pass before
training, and of fine-tuning. Evaluation knows the task's loss only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn

from raysim import seeds
from raysim.config.own_part import OwnObjective, OwnPart, PartSection
from raysim.config.part import Choice, Packaged, passed_part
from raysim.config.values import Constant
from raysim.models.model import Model, Weights


class RoundAt(NamedTuple):
    """What addresses an objective's draws, beside client and local step; `id_of` names the client at a position."""

    seed: int
    round: int
    id_of: Callable[[int], str]


class ObjectiveAt:
    """The place of a batch in a run; properties that are not read cost nothing.

    local_step: 0 for the round's first. constants: of the section; of a package's section, its keys.
    """

    __slots__ = ("_at", "_broadcast", "_device", "_generator", "_position", "_received", "constants", "local_step")

    def __init__(
        self,
        at: RoundAt,
        position: int,
        local_step: int,
        constants: Mapping[str, Constant],
        received: Received,
        device: torch.device,
    ) -> None:
        self._at, self._position, self._received, self._device = at, position, received, device
        self.local_step, self.constants = local_step, constants
        self._broadcast: dict[str, Tensor] | None = None
        self._generator: torch.Generator | None = None

    @property
    def client(self) -> str:
        """Id of the client that trains."""
        return self._at.id_of(self._position)

    @property
    def round(self) -> int:
        """Number of finished rounds."""
        return self._at.round

    @property
    def broadcast(self) -> dict[str, Tensor]:
        """The received model by name, without gradients and not to be written to; torch.func.functional_call takes it.

        Parameters come first. Buffers are copies, fresh at every local step: a forward in training mode writes to them.
        """
        if self._broadcast is None:
            self._broadcast = self._received.named()
        return self._broadcast

    @property
    def generator(self) -> torch.Generator:
        """A generator on the device of x, addressed by run, round, client and local step."""
        if self._generator is None:
            key = seeds.key(self._at.seed, "objective", self._at.round, self._position, self.local_step)
            self._generator = torch.Generator(self._device)
            self._generator.manual_seed(key >> 1)
        return self._generator


class Received:
    """The model that a client received, by name; its parameters are named once."""

    def __init__(self, model: Model, weights: Weights) -> None:
        self._model, self._weights = model, weights
        self._params: dict[str, Tensor] | None = None

    def named(self) -> dict[str, Tensor]:
        """Views of the parameters, copies of the buffers."""
        model, weights = self._model, self._weights
        if self._params is None:
            self._params = model.params.views(weights.params)
        others = model.buffers.views(weights.buffers) | model.counters.views(weights.counters)
        return self._params | {name: value.clone() for name, value in others.items()}


Objective = Callable[[nn.Module, Tensor, Tensor, ObjectiveAt], Tensor]
"""(module, x (batch, ...), y (batch, ...), at) -> losses (batch,)."""

ObjectiveSection = Annotated[OwnObjective, Packaged("objective", "client.objective")]

OBJECTIVES: Choice[Objective] = Choice("objective", {}, passed_part)


@dataclass(frozen=True)
class LocalObjective:
    """An objective with its constants; it travels as its section."""

    section: PartSection

    @cached_property
    def function(self) -> Objective:
        """The function that a script passed, or that a package created."""
        return OBJECTIVES.make(self.section)

    @cached_property
    def constants(self) -> Mapping[str, Any]:
        """`at.constants`: the constants of a script's objective, or the keys of a package's section."""
        section = self.section
        keys = section.constants if isinstance(section, OwnPart) else section.model_dump(exclude={"name"})
        return MappingProxyType(keys)

    def __getstate__(self) -> dict[str, Any]:
        return {"section": self.section}
