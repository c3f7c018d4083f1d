"""The `[client]` section: what a client does with the model it receives."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from raysim.client.augmentations.augment import Augmentation
from raysim.client.sgd import Sgd
from raysim.section import Section


class ClientSection(Section):
    """Local training. `epochs` (default 1) or `local_steps`, not both; `batch_size` counts examples, or is "full".

    `lr_decay` multiplies the client learning rate after every finished round. `max_grad_norm` clips the whole gradient
    by its norm; absent, nothing is clipped. `shuffle = false` keeps the stored order of examples in every epoch.
    `augment` is done to an image each time it is trained on.
    """

    optimizer: Sgd = Sgd()
    lr_decay: float = Field(1.0, gt=0, le=1)
    batch_size: PositiveInt | Literal["full"] = 20
    epochs: PositiveInt | None = None
    local_steps: PositiveInt | None = None
    shuffle: bool = True
    fill_last_batch: bool = False
    max_grad_norm: PositiveFloat | None = None
    augment: Augmentation | None = None

    @model_validator(mode="after")
    def _one_measure_of_work(self) -> ClientSection:
        if self.epochs is not None and self.local_steps is not None:
            raise ValueError(
                f"either epochs or local_steps measures a client's work, but got epochs = {self.epochs} and "
                f"local_steps = {self.local_steps}: remove one"
            )
        return self

    def lr_at(self, round_index: int) -> float:
        """lr * decay^t, t = number of finished rounds."""
        return float(self.optimizer.lr * self.lr_decay**round_index)

    @property
    def is_plain_sgd(self) -> bool:
        """Whether a local step is y <- y - lr * gradient, with nothing done to the gradient in between."""
        return self.optimizer.momentum == 0 and self.optimizer.weight_decay == 0 and self.max_grad_norm is None
