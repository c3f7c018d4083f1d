"""Meta-learning (Per-FedAvg): clients train the model that is best after one gradient step of their own.

local gradient = (I - alpha H) u      u = grad f_B(y - alpha grad f_B(y)), H the Hessian of f_B at y

hessian = "exact"       H u, by two passes of autograd
hessian = "difference"  H u = [grad f_B(y + delta u) - grad f_B(y - delta u)] / (2 delta)
hessian = "none"        the gradient is u

Personal model: x - alpha grad f_i(x), one full batch. Clients keep nothing. alpha = 0 is FedAvg. Departure: one batch
for all, where the paper draws three. At scoring the gradient is that of a module in training mode: dropout and batch
norm act as in a local step.

Source: Fallah et al. (2020) and Wang et al. (2021), equation 23; docs/algorithms.md section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from raysim.client.personalisation.personalisation import (
    Gradients,
    Personalisation,
    PersonalSection,
    StepAt,
    StepGradients,
)
from raysim.config.section import Section, has_other
from raysim.config.values import Factor, Positive
from raysim.models.layout import Layout

if TYPE_CHECKING:
    from raysim.client.section import ClientSection


class Maml(PersonalSection, Section):
    """Meta-learning: the model that is best after one gradient step of a client's own."""

    name: Literal["maml"] = "maml"
    alpha: Factor = Field(description="Learning rate of a client's own step (0: FedAvg).")
    hessian: Literal["exact", "difference", "none"] = Field(
        "exact", description='Product with the Hessian: "exact", of a central "difference", or "none" (first order).'
    )
    delta: Positive = Field(1e-3, description="Length of the difference, in lengths of the vector.")

    @model_validator(mode="after")
    def _delta_of_a_difference(self) -> Self:
        if self.hessian != "difference" and has_other(self, "delta"):
            raise ValueError(
                f"delta is the length of a difference, and hessian = {self.hessian!r} takes none: set hessian = "
                f"'difference', or leave delta out"
            )
        return self

    @property
    def keeps(self) -> bool:
        """Clients keep nothing."""
        return False

    @property
    def gradients(self) -> Gradients:
        """At y, and behind one or two steps from it."""
        return "twice" if self.hessian == "exact" else "several"


def make(section: Maml, client: ClientSection, layout: Layout) -> Personalisation:
    """Close the functions over alpha and delta.

    >>> from raysim.client.section import ClientSection
    >>> y, loss_gradient = torch.tensor([4.0]), lambda y: 2 * y  # f(y) = y^2, H = 2: u = 2 (4 - 8 / 4) = 4
    >>> step = StepAt((y,), loss_gradient(y), loss_gradient, curved=lambda vector: 2 * vector)
    >>> for keys in ({}, {"hessian": "difference", "delta": 0.5}, {"hessian": "none"}):
    ...     maml = make(Maml(alpha=0.25, **keys), ClientSection(), Layout.of([("w", torch.zeros(1))]))
    ...     (gradient,) = maml.step.gradients(step)
    ...     print(gradient.item())
    2.0
    2.0
    4.0
    """
    alpha, delta, hessian = section.alpha, section.delta, section.hessian

    def gradients(step: StepAt) -> Sequence[Tensor]:
        (y,) = step.rows
        u = step.at(torch.sub(y, step.gradient, alpha=alpha))
        if hessian == "none":
            return (u,)
        if hessian == "exact":
            curved = step.curved(u)
        else:
            ahead, behind = step.at(torch.add(y, u, alpha=delta)), step.at(torch.sub(y, u, alpha=delta))
            curved = (ahead - behind) / (2 * delta)
        return (torch.sub(u, curved, alpha=alpha),)

    return Personalisation(
        scored=lambda at: torch.sub(at.x, at.gradient(), alpha=alpha),
        step=StepGradients(gradients, curved=hessian == "exact"),
        needs_gradient=True,
    )
