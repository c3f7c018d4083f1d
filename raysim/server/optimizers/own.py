"""A server optimizer of one's own: a script passes what makes it as `server_optimizer=`.

The section says in the experiment that there is one, what it is called, and its constants; so they can be swept, tuned
and compared like those of any other choice. The code itself is the script's, whose sameness only its author can vouch
for. Where it is as it should stay, it can be moved into a file of this folder without a change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pydantic import Field, NonNegativeFloat
from torch import Tensor

from raysim.config.section import Section
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.server.optimizers.optimizer import Descent, ServerOptimizer


class Own(Section):
    """A server optimizer that a script passes."""

    name: Literal["own"] = "own"
    label: str = Field("own", description="Name in reports, which tells it from another.")
    lr: NonNegativeFloat = Field(
        1.0, description="Server learning rate; scaled and scheduled, it arrives with each descent."
    )
    constants: dict[str, bool | int | float | str] = Field(
        default_factory=dict, description="Further constants of the optimizer."
    )


Maker = Callable[[Own], ServerOptimizer]
"""From the section to the pair of functions."""


def check(section: Section, maker: Maker | None) -> None:
    """ExperimentError unless a maker is passed where, and only where, the section asks for one."""
    if isinstance(section, Own) and maker is None:
        raise ExperimentError(
            "server.optimizer.name = 'own' is an optimizer that a script passes as server_optimizer=, but none was "
            "passed."
        )
    if not isinstance(section, Own) and maker is not None:
        raise ExperimentError(
            f"server_optimizer= was passed, so server.optimizer.name must be 'own', but got "
            f"{section.model_dump()['name']!r}."
        )


def check_step(optimizer: ServerOptimizer, params: Tensor, layout: Layout) -> None:
    """Take a step with a gradient of zeros, before the first round.

    Raises:
        ExperimentError: the model or a vector of the state is not what it has to be.
    """
    before = optimizer.init(params)
    stepped = optimizer.step(params, Descent(layout, params.new_zeros(params.shape), 0.0), before)
    wanted = {"params": params, **before}
    made = {"params": stepped.params, **stepped.state}
    if found := [name for name in wanted if not isinstance(made.get(name), Tensor)]:
        raise ExperimentError(f"A step of the server optimizer must return {', '.join(wanted)}, but left out {found}.")
    for name, vector in made.items():
        like = wanted.get(name)
        if like is None or vector.shape != like.shape or vector.dtype != like.dtype:
            raise ExperimentError(
                f"A step of the server optimizer must return what it was given, but {name!r} came back as "
                f"{_said(vector)} and was {_said(like)}."
            )


def _said(vector: Tensor | None) -> str:
    return "nothing" if vector is None else f"{vector.dtype} of shape {tuple(vector.shape)}"
