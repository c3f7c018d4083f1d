"""Defines the `[client]` section: a client's local training.

Also fine-tuning: k local steps of a client on its training examples, from the evaluated model.
"""

from __future__ import annotations

from functools import reduce
from itertools import pairwise
from typing import Annotated

from pydantic import Field, model_validator

from raysim.client.augmentations.augment import Augmentation
from raysim.client.compression import ClientCompression
from raysim.client.corrections.choice import CorrectionSection
from raysim.client.corrections.feddualavg import Composite
from raysim.client.corrections.fedpa import Posterior
from raysim.client.objective import ObjectiveSection
from raysim.client.optimizers.choice import OptimizerSection
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.personalisation.choice import PersonalisationSection
from raysim.client.transform import TransformSections
from raysim.client.work import Amount, BatchSize, Change, RoundWork
from raysim.config.section import Section, replaced, with_default_name
from raysim.config.values import Count, Factor, Name, Positive, Steps


class ClientSection(Section):
    """Local training: `epochs` or `local_steps`, not both."""

    optimizer: Annotated[OptimizerSection, with_default_name(ClientSgd)] = Field(
        ClientSgd(), description="Optimizer of the local steps; its state starts anew in every round."
    )
    correction: CorrectionSection | None = Field(
        None, description="Correction of local gradients against client drift. Absent: none."
    )
    posterior: Posterior | None = Field(
        None, description="FedPA: updates from samples of the local posterior. Absent: y - x is sent."
    )
    objective: ObjectiveSection | None = Field(
        None, description="Losses of a batch as a function of the module. Absent: the task's loss of its outputs."
    )
    personalisation: PersonalisationSection | None = Field(
        None, description="What clients train and keep for themselves, and are scored with. Absent: nothing."
    )
    transform: TransformSections = Field(
        (), description="What is done to an update before it is weighed, in this order. Absent: nothing."
    )
    compression: ClientCompression | None = Field(
        None, description="How an update is sent in fewer bits. Absent: as it is."
    )
    lr_decay: float = Field(
        1.0, gt=0, le=1, description="Factor by which the client learning rate is multiplied after every round."
    )
    batch_size: BatchSize = Field(20, description='Examples of a local step; "full": all of the client\'s.')
    accumulate: Count = Field(
        1,
        description=(
            "Pieces in which a local step's batch is computed, one after the other, for less memory. Their gradients "
            "add up to the batch's."
        ),
    )
    epochs: Amount | None = Field(
        None, description="Passes over the client's examples. Absent, without `local_steps`: 1."
    )
    local_steps: Amount | None = Field(None, description="Number of local steps, in place of epochs.")
    max_local_steps: Steps | None = Field(
        None,
        description=(
            "Local steps of a client at most, but for those that keys of `personalisation` ask for. Absent: no bound."
        ),
    )
    schedule: tuple[Change, ...] = Field(
        (), max_length=1_000, description="Other epochs, local steps or batch sizes from given rounds on."
    )
    shuffle: bool = Field(True, description="Examples come in a new order in every epoch; otherwise as stored.")
    fill_last_batch: bool = Field(
        False, description="Fill an epoch's last, short batch with some of its examples drawn again."
    )
    drop_last: bool = Field(
        False,
        description=(
            "Leave out an epoch's last, short batch. A client with fewer examples than a batch keeps its only one."
        ),
    )
    max_grad_norm: Positive | None = Field(
        None, description="Norm to which the whole gradient is clipped. Absent: no clipping."
    )
    mid_round_dropout: float = Field(
        0.0, ge=0, lt=1, description="Probability that a client leaves before it sends anything."
    )
    hold_frozen_norms: bool = Field(
        False,
        description=(
            "BatchNorm layers whose parameters are frozen work as in evaluation while clients train, so their running "
            "statistics stay. Otherwise these follow the clients' batches."
        ),
    )
    augment: Augmentation | None = Field(
        None, description="Augmentation of an image each time that it is trained on. Absent: none."
    )

    @model_validator(mode="after")
    def _has_a_rate(self) -> ClientSection:
        if "lr" not in type(self.optimizer).model_fields:
            raise ValueError(
                f"a client optimizer needs a key lr, the learning rate of the first round, but the section "
                f"{type(self.optimizer).__name__} of the optimizer {self.optimizer.name!r} has "
                f"{sorted(type(self.optimizer).model_fields)}"
            )
        return self

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> ClientSection:
        if self.epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"either epochs or local_steps measures a client's work, but got epochs = {self.epochs} and "
                f"local_steps = {self.local_steps}: remove one"
            )
        rounds = [change.round for change in self.schedule]
        if any(a >= b for a, b in pairwise(rounds)):
            raise ValueError(f"the rounds of schedule must rise, but are {rounds}")
        return self

    @model_validator(mode="after")
    def _one_end_of_an_epoch(self) -> ClientSection:
        if self.fill_last_batch and self.drop_last:
            raise ValueError(
                "fill_last_batch keeps an epoch's last batch and drop_last leaves it out, but got true for "
                "both: remove one"
            )
        return self

    @model_validator(mode="after")
    def _one_gradient_in_pieces(self) -> ClientSection:
        if self.accumulate > 1 and self.objective is not None:
            raise ValueError(
                f"accumulate divides a batch, and an objective may look at the whole one, but got accumulate = "
                f"{self.accumulate} and objective.name = {self.objective.name!r}: remove one"
            )
        if self.accumulate > 1 and self.personalisation is not None and self.personalisation.gradients != "one":
            raise ValueError(
                f"accumulate adds up one gradient a local step, and personalisation.name = "
                f"{self.personalisation.name!r} takes several: remove one"
            )
        return self

    @model_validator(mode="after")
    def _one_correction(self) -> ClientSection:
        if self.posterior is None:
            return self
        if self.correction is not None:
            raise ValueError(
                f"posterior makes an update of plain local training, and correction.name = {self.correction.name!r} "
                f"changes it: remove one"
            )
        if why := self._samples_nothing(self.posterior):
            raise ValueError(f"posterior.burn_in must not be longer than local training, but {why}")
        return self

    def _samples_nothing(self, posterior: Posterior) -> str | None:
        """Say why the burn-in is longer than any client's work in any round; None if it is not."""
        most = self._most_units
        if posterior.burn_in <= most:
            return None
        return f"got burn_in = {posterior.burn_in} with {most} epochs or local steps at most"

    @property
    def _most_units(self) -> int:
        """The most epochs, or local steps, of any client in any round."""
        most = 0
        for work in (self.work_at(t) for t in {0, *(change.round for change in self.schedule)}):
            amount = work.epochs if work.local_steps is None else work.local_steps
            units = amount if isinstance(amount, int) else amount.high
            if work.local_steps is not None and work.most_steps is not None:
                units = min(units, work.most_steps)
            most = max(most, units)
        return most

    @property
    def few_samples(self) -> str | None:
        """What of `posterior` has no effect because no client takes several samples; None if nothing, or some may."""
        if (posterior := self.posterior) is None:
            return None
        most = self._most_units
        samples = (most - posterior.burn_in) // posterior.sample
        work = (
            f"burn_in = {posterior.burn_in}, sample = {posterior.sample}, at most {most} epochs or local steps a client"
        )
        if samples == 0:
            return f"no client takes a sample, so all send y - x, as FedAvg: {work}"
        return f"no client takes more than one sample, so rho has no effect: {work}" if samples == 1 else None

    def lr_at(self, round_index: int) -> float:
        """lr * decay^t, t = number of finished rounds."""
        return float(self.optimizer.lr * self.lr_decay**round_index)

    def work_at(self, round_index: int) -> RoundWork:
        """Return the work after so many finished rounds, which the schedule changes."""
        work = RoundWork(
            epochs=1 if self.epochs is None else self.epochs,
            local_steps=self.local_steps,
            batch_size=self.batch_size,
            most_steps=self.max_local_steps,
            fill_last_batch=self.fill_last_batch,
            drop_last=self.drop_last,
        )
        return reduce(RoundWork.changed, (change for change in self.schedule if change.round <= round_index), work)

    def with_work(self, epochs: Amount | None = None, local_steps: Amount | None = None) -> ClientSection:
        """Return the section with this work in every round, whatever the bounds and changes; batches stay."""
        batches = tuple(
            replaced(change, epochs=None, local_steps=None) for change in self.schedule if change.batch_size is not None
        )
        work = {"epochs": epochs, "local_steps": local_steps, "max_local_steps": None, "schedule": batches}
        return replaced(self, **work)

    @property
    def correcting(self) -> CorrectionSection | Posterior | Composite | None:
        """The section of what corrects local training: `correction`, `posterior`, or `composite`."""
        return self.correction if self.posterior is None else self.posterior

    def with_composite(self, composite: Composite | None) -> ClientSection:
        """Return the local training of FedDualAvg with this penalty; without one, the section itself."""
        return self if composite is None else replaced(self, correction=composite)

    @property
    def batch_sizes(self) -> frozenset[int]:
        """The sizes of full batches over the rounds; none of "full", where each client has its own."""
        sizes = (self.batch_size, *(change.batch_size for change in self.schedule))
        return frozenset(size for size in sizes if isinstance(size, int))

    @property
    def is_plain_sgd(self) -> bool:
        """Whether, without a correction, a local step is y <- y - lr * gradient, with nothing done to it in between."""
        optimizer = self.optimizer
        plain = isinstance(optimizer, ClientSgd) and optimizer.momentum == 0 and optimizer.weight_decay == 0
        return plain and self.max_grad_norm is None


class FineTuning(Section):
    """Local steps with the clients' optimizer and batches, and without a correction."""

    steps: Steps = Field(description="Number of local steps.")
    lr: Factor | None = Field(None, description="Learning rate. Absent: the clients' of the round.")
    split: Name = Field("test", description="Split on which clients are scored, each on its examples there.")


def fine_tuned(client: ClientSection, tuning: FineTuning) -> ClientSection:
    """The local training that fine-tunes."""
    return replaced(client.with_work(local_steps=tuning.steps), correction=None, posterior=None, personalisation=None)
