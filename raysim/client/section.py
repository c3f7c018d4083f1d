"""The `[client]` section: what a client does with the model it receives."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from raysim.client.augmentations.augment import Augmentation
from raysim.client.corrections.section import CorrectionSection
from raysim.client.optimizers import OptimizerSection
from raysim.client.sgd import Sgd
from raysim.client.work import Amount, Change, drawn
from raysim.section import Section, named_unless_said
from raysim.seeds import Int64s


class ClientSection(Section):
    """Local training: `epochs` or `local_steps`, not both.

    optimizer: of the local steps; clients keep nothing of it between rounds.
    correction: how local gradients are bent so that the cohort pulls together; absent: not at all.
    lr_decay: multiplies the client learning rate after every finished round.
    batch_size: examples of a local step; "full" is all that the client has.
    epochs: passes over the client's examples; 1 where neither is said.
    local_steps: a number of batches instead.
    max_local_steps: a client takes no more than these.
    schedule: other epochs or local steps from given rounds on.
    shuffle: examples come in another order in every epoch; otherwise as they are stored.
    fill_last_batch: an epoch's last batch, where examples are left over, is filled up with some of them drawn again.
    max_grad_norm: the whole gradient is clipped to this norm; absent: it is not.
    mid_round_dropout: the probability that a client leaves before it sends anything.
    augment: what is done to an image each time it is trained on.
    """

    optimizer: Annotated[OptimizerSection, named_unless_said(Sgd)] = Sgd()
    correction: CorrectionSection | None = None
    lr_decay: float = Field(1.0, gt=0, le=1)
    batch_size: PositiveInt | Literal["full"] = 20
    epochs: Amount | None = None
    local_steps: Amount | None = None
    max_local_steps: PositiveInt | None = None
    schedule: tuple[Change, ...] = ()
    shuffle: bool = True
    fill_last_batch: bool = False
    max_grad_norm: PositiveFloat | None = None
    mid_round_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augment: Augmentation | None = None

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

    def lr_at(self, round_index: int) -> float:
        """lr * decay^t, t = number of finished rounds."""
        return float(self.optimizer.lr * self.lr_decay**round_index)

    def local_steps_at(self, sizes: Int64s, seed: int, round_index: int, positions: Int64s) -> Int64s:
        """tau of the clients at these positions, which have so many examples, after so many finished rounds."""
        epochs, steps = self.epochs, self.local_steps
        for change in self.schedule:
            if change.round <= round_index:
                epochs, steps = change.epochs, change.local_steps
        if steps is not None:
            tau = drawn(steps, seed, round_index, positions)
        else:
            batch = sizes if self.batch_size == "full" else np.full_like(sizes, self.batch_size)
            tau = drawn(1 if epochs is None else epochs, seed, round_index, positions) * -(-sizes // batch)
        return tau if self.max_local_steps is None else np.minimum(tau, self.max_local_steps)

    def examples_at(self, sizes: Int64s, steps: Int64s) -> Int64s:
        """How many examples so many local steps of clients with so many examples process, each as often as it is met.

        An epoch's last batch is short, unless `fill_last_batch` tops it up.
        """
        batch: Int64s = sizes if self.batch_size == "full" else np.full_like(sizes, self.batch_size)
        steps_an_epoch: Int64s = -(-sizes // batch)
        an_epoch: Int64s = steps_an_epoch * batch if self.fill_last_batch else sizes
        return steps // steps_an_epoch * an_epoch + steps % steps_an_epoch * batch

    @property
    def is_plain_sgd(self) -> bool:
        """Whether, but for a correction, a local step is y <- y - lr * gradient, with nothing done to it in between."""
        optimizer = self.optimizer
        plain = isinstance(optimizer, Sgd) and optimizer.momentum == 0 and optimizer.weight_decay == 0
        return plain and self.max_grad_norm is None
