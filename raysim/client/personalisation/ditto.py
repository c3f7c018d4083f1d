"""Ditto: FedAvg, and beside it a personal model of each client, pulled towards the model that it receives.

v_i <- v_i - lr (grad f_i(v_i; B) + lam (v_i - x))      x as received; with the client's optimizer, begun anew

Personal model: v_i, x_0 before the client's first round. lam = 0 is local training alone. Departure: the paper's lr is
the clients' here, unless it is given.

Source: Li et al. (2021) and Wang et al. (2021), equation 22; docs/algorithms.md section 3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field, model_validator

from raysim.client.corrections.prox import Prox
from raysim.client.personalisation.personalisation import OwnPass, Personalisation, PersonalSection
from raysim.client.work import Amount
from raysim.config.section import Section, replaced
from raysim.config.values import Factor
from raysim.models.layout import Layout

if TYPE_CHECKING:
    from raysim.client.section import ClientSection


class Ditto(PersonalSection, Section):
    """Ditto, the multi-task form: a model of each client beside the model of all."""

    name: Literal["ditto"] = "ditto"
    lam: Factor = Field(description="Weight of the pull of a client's own model towards the received one.")
    lr: Factor | None = Field(None, description="Learning rate of the own models. Absent: the clients' of the round.")
    epochs: Amount | None = Field(
        None, description="Passes over the client's examples. Absent, without `local_steps`: the client's work."
    )
    local_steps: Amount | None = Field(None, description="Number of local steps, in place of epochs.")

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> Ditto:
        if self.epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"either epochs or local_steps measures the work on a client's own model, but got epochs = "
                f"{self.epochs} and local_steps = {self.local_steps}: remove one"
            )
        return self


def make(section: Ditto, client: ClientSection, layout: Layout) -> Personalisation:
    """The own pass is local training with FedProx's pull.

    >>> import torch
    >>> from raysim.client.personalisation.personalisation import Ended, PersonalAt
    >>> from raysim.client.section import ClientSection
    >>> ditto = make(Ditto(lam=0.5, lr=0.25), ClientSection(), Layout.of([("w", torch.zeros(1))]))
    >>> ditto.own.section.correction.mu, ditto.own.section.optimizer.lr
    (0.5, 0.25)
    >>> def train(own):  # f_i(v) = (v - 8)^2 / 2, x = 4
    ...     return own - 0.25 * ((own - 8) + 0.5 * (own - 4))
    >>> at = PersonalAt(torch.tensor([4.0]), torch.tensor([0.0]), train, gradient=lambda: torch.tensor([-4.0]))
    >>> ditto.scored(at), ditto.after(at, Ended(at.x, torch.tensor([1.0]), None))  # v_i, then 0 + (8 + 2) / 4
    (tensor([0.]), tensor([2.5000]))
    """
    if section.epochs is not None or section.local_steps is not None:
        client = client.with_work(epochs=section.epochs, local_steps=section.local_steps)
    if section.lr is not None:
        # Whether the pull is a plain factor of the step depends on the rate.
        client = replaced(client, optimizer=replaced(client.optimizer, lr=section.lr))
    own = OwnPass(replaced(client, correction=Prox(mu=section.lam)), section.lr)
    return Personalisation(
        scored=lambda at: at.own,
        after=lambda at, ended: at.train(at.own),
        begins_at_x0=True,
        own=own,
    )
