"""Defines a transform: a function of a client's update, applied before weighting.

Compression, noise and clipping of one's own are transforms; the server sees what they return. Several are applied in
their order, each to what the one before returned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BeforeValidator, Field, SerializerFunctionWrapHandler, WrapSerializer
from torch import Tensor

from raysim.config.own_part import OwnTransform
from raysim.config.part import Choice, Packaged
from raysim.config.section import Section
from raysim.models.layout import Layout


class TransformAt(NamedTuple):
    """A client's update, and its facts.

    delta: y_i - x, (P,), in the dtype of the weights; not to be written to. layout: where each parameter lies in it.
    state: what the transform returned for this client last time, (P,); zeros before its first round, and where the
    transform keeps none. client: its id. round: 0 for the first. generator: on the device of delta, addressed by run,
    round, client and the transform's place in the list. num_examples, steps, lr: of the client's training.

    The gaps between parameters stay zero: `layout.map(function, delta)` sees to that where a function adds something.
    """

    delta: Tensor
    layout: Layout
    state: Tensor
    client: str
    round: int
    generator: torch.Generator
    num_examples: int
    steps: int
    lr: float


class Transformed(NamedTuple):
    """The vector that is sent, (P,), and the client's next state, (P,)."""

    delta: Tensor
    state: Tensor


class Transform(NamedTuple):
    """`apply(at)` returns the vector that is sent, (P,), with the same gaps of zeros; or, where the transform
    `keeps_state`, a `Transformed`. Arguments are not written to. `bits(layout)`: what a client sends after it, where it
    is the last one; None: every number as it is."""

    apply: Callable[[TransformAt], Tensor | Transformed]
    keeps_state: bool = False
    bits: Callable[[Layout], int] | None = None


TransformSection = Annotated[OwnTransform, Packaged("transform", "client.transform")]


def _listed(given: object) -> object:
    # A name chooses a transform without keys, as it chooses any other part.
    given = {"name": given} if isinstance(given, str) else given
    return (given,) if isinstance(given, Mapping | Section) else given


def _one_or_list(value: object, dump: SerializerFunctionWrapHandler) -> object:
    # A table's keys have dotted names, by which they are swept and tuned; those of a list have none.
    dumped = dump(value)
    return dumped[0] if isinstance(dumped, list | tuple) and len(dumped) == 1 else dumped


TransformSections = Annotated[
    tuple[TransformSection, ...],
    Field(max_length=100),
    BeforeValidator(_listed),
    WrapSerializer(_one_or_list, return_type=Any),
]
"""One table, or a list of them."""

TRANSFORMS: Choice[Transform] = Choice("transform", {}, records=(Transform,))


def num_bytes(transforms: Sequence[Transform], layout: Layout) -> int | None:
    """Return the bytes that the last transform says are sent; None if it does not say."""
    bits = transforms[-1].bits if transforms else None
    return None if bits is None else -(-bits(layout) // 8)


def make(sections: Sequence[TransformSection]) -> tuple[Transform, ...]:
    """Return the records of pure functions, in the order of the sections."""
    return tuple(TRANSFORMS.make(section) for section in sections)
