"""APFL: each client mixes a model of its own with the local one.

m = alpha v_i + (1 - alpha) w                            w: the client's local model, which is sent as in FedAvg
v_i <- v_i - lr alpha grad f(m; B)    w <- w - lr grad f(w; B)      per batch, both from the same (v_i, w)

Personal model: alpha v_i + (1 - alpha) x; v_i is x_0 before the client's first round. alpha = 0 is FedAvg, scored as it
is. Departure: alpha is fixed.

Source: Deng et al. (2020); docs/algorithms.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim.client.personalisation.personalisation import (
    Ended,
    Gradients,
    PersonalAt,
    Personalisation,
    PersonalSection,
    StepAt,
    StepGradients,
)
from raysim.config.section import Section
from raysim.models.layout import Layout

if TYPE_CHECKING:
    from raysim.client.section import ClientSection


class Apfl(PersonalSection, Section):
    """APFL: a mixture of a client's own model and the model of all."""

    name: Literal["apfl"] = "apfl"
    alpha: Annotated[float, Field(ge=0, le=1)] = Field(
        description="Share of the own model in the mixture (0: FedAvg, 1: local training alone)."
    )

    @property
    def gradients(self) -> Gradients:
        """At w, and at the mixture."""
        return "several"


def make(section: Apfl, client: ClientSection, layout: Layout) -> Personalisation:
    """Close the functions over alpha.

    >>> from raysim.client.section import ClientSection
    >>> apfl = make(Apfl(alpha=0.25), ClientSection(), Layout.of([("w", torch.zeros(1))]))
    >>> w, own, loss_gradient = torch.tensor([4.0]), torch.tensor([0.0]), lambda y: y - 8  # f(y) = (y - 8)^2 / 2, m = 3
    >>> step = StepAt((w, own), loss_gradient(w), loss_gradient, lambda vector: vector)
    >>> [gradient.item() for gradient in apfl.step.gradients(step)]  # of w, of v_i
    [-4.0, -1.25]
    >>> apfl.scored(PersonalAt(w, own, train=lambda start: start, gradient=lambda: loss_gradient(w)))
    tensor([3.])
    """
    alpha = section.alpha

    def mixed(own: Tensor, model: Tensor) -> Tensor:
        # 0 and 1 are the models themselves, to the bit.
        return model if alpha == 0 else own if alpha == 1 else torch.add(own * alpha, model, alpha=1 - alpha)

    def gradients(step: StepAt) -> Sequence[Tensor]:
        w, own = step.rows
        return step.gradient, step.at(mixed(own, w)) * alpha

    def after(at: PersonalAt, ended: Ended) -> Tensor:
        assert ended.beside is not None
        return ended.beside

    return Personalisation(
        scored=lambda at: mixed(at.own, at.x),
        after=after,
        begins_at_x0=True,
        step=StepGradients(gradients, own=True),
    )
