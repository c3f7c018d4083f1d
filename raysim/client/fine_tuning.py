"""Fine-tuning: k local steps of a client on its own examples, from the model as it is, as a user of it would take."""

from __future__ import annotations

from pydantic import NonNegativeFloat, PositiveInt

from raysim.client.section import ClientSection
from raysim.section import Section


class FineTuning(Section):
    """Local steps with the clients' optimizer and batches, and without a correction.

    steps: how many.
    lr: by default the clients' of the round.
    split: where clients are scored, on the examples that they have there under the id of the training client.
    """

    steps: PositiveInt
    lr: NonNegativeFloat | None = None
    split: str = "test"


def local_training(client: ClientSection, tuning: FineTuning) -> ClientSection:
    """The local training that fine-tunes."""
    work = {"epochs": None, "local_steps": tuning.steps, "max_local_steps": None, "schedule": ()}
    return client.model_copy(update={**work, "correction": None})
