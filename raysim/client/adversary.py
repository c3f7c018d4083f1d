"""Defines adversaries: clients that replace their updates, or train on false labels.

scale: delta <- factor delta. sign_flip: delta <- -delta. noise: delta <- delta + std z, z standard normal, addressed by
(seed, round, client). label_flip: local training sees the label L - 1 - y for y, of L classes.

Attacks come after local training and before norms and clipping (docs/algorithms.md section 0).
"""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from raysim import seeds
from raysim.config.section import Section
from raysim.config.values import ClientId, NonNegative
from raysim.config.whole_part import whole_part
from raysim.data.dataset import Split
from raysim.models.layout import Layout

Whom = Annotated[
    Annotated[float, Field(gt=0, le=1)] | Annotated[tuple[ClientId, ...], Field(min_length=1, max_length=100_000)],
    Field(description="Fraction of the training clients, rounded down and drawn once by the seed, or their ids."),
]


class Scale(Section):
    """Attackers multiply their update by a factor."""

    name: Literal["scale"] = "scale"
    clients: Whom
    factor: float = Field(ge=-1e300, le=1e300, description="Factor of the update.")


class SignFlip(Section):
    """Attackers send their update with the opposite sign."""

    name: Literal["sign_flip"] = "sign_flip"
    clients: Whom


class Noise(Section):
    """Attackers add Gaussian noise to their update."""

    name: Literal["noise"] = "noise"
    clients: Whom
    std: NonNegative = Field(description="Standard deviation of the noise on every coordinate.")


class LabelFlip(Section):
    """Attackers train on flipped labels: class c becomes C - 1 - c."""

    name: Literal["label_flip"] = "label_flip"
    clients: Whom


Adversary = Annotated[Scale | SignFlip | Noise | LabelFlip, Field(discriminator="name")]


def num_attackers(fraction: float, total: int) -> int:
    """Return how many of so many training clients attack.

    >>> num_attackers(0.58, 50)  # their product is a little less than 29
    29
    """
    return whole_part(fraction * total)


def positions(section: Adversary | None, seed: int, train: Split) -> frozenset[int]:
    """Return the adversaries among the training clients.

    Raises:
        DataError: an id does not exist.
    """
    if section is None:
        return frozenset()
    if isinstance(section.clients, float):
        order = seeds.permutation(seeds.key(seed, "adversary"), len(train))
        return frozenset(order[: num_attackers(section.clients, len(train))].tolist())
    return frozenset(train.position_of(client) for client in section.clients)


def attack(section: Adversary, delta: Tensor, layout: Layout, seed: int, round_index: int, position: int) -> Tensor:
    """Return the vector that the adversary sends instead of its update."""
    match section:
        case Scale():
            return delta * section.factor
        case SignFlip():
            return -delta
        case Noise():
            sent = delta.clone()
            generator = torch.Generator().manual_seed(seeds.key(seed, "adversary", round_index, position) >> 1)
            for piece in layout.pieces(sent):
                # Drawn on the CPU in the model's dtype: the same numbers for every device.
                piece.add_(torch.randn(len(piece), generator=generator, dtype=piece.dtype).to(piece), alpha=section.std)
            return sent
        case LabelFlip():
            return delta


def flip(y: Tensor, num_classes: int, padding: int | None) -> Tensor:
    """L - 1 - y, where y is not padding."""
    flipped = num_classes - 1 - y
    return flipped if padding is None else torch.where(y == padding, y, flipped)
