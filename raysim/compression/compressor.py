"""Defines a compressor: what of a vector is sent, and in how many bits.

It is a record of pure functions of one vector v of d numbers, the whole update or one tensor of it. Q(0) = 0.

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from pydantic import Field
from torch import Tensor

from raysim.compression.passes import Groups, Loss

Scale = Literal["unbiased", "least"]

Scope = Literal["model", "group"]

Scoped: Any = Field("model", description="What is compressed at a time: the whole vector, or each tensor by itself.")

Share = Field(gt=0, le=1, description="Share of the numbers that is sent, k / d.")

Scaling = Field(
    None,
    description=('Factor of what is sent: "unbiased", or of the "least" error. Absent: "least" with error feedback.'),
    examples=["least"],
)


Compressed = Literal["model", "change"]

ErrorFeedback = Field(
    False, description="Whether a client adds what it did not send to its next update; it keeps that vector."
)
"""Of a compressor of updates."""

Of: Any = Field("model", description="What is compressed: the model, or its change since the last step.")
"""Of a compressor of models."""


class Compressor(NamedTuple):
    """How a vector is sent.

    apply(v, key, out): writes Q(v), (d,), as the receiver has it, to `out`, and returns it; `key` addresses its draws
    (seeds.py), and v is not written to. bits(d): of what is sent. keeps_zeros: zeros stay zeros, and change nothing.
    send(v, key, out, groups): does the same and measures it, where one pass does both.
    """

    apply: Callable[[Tensor, int, Tensor], Tensor]
    bits: Callable[[int], int]
    keeps_zeros: bool = False
    send: Callable[[Tensor, int, Tensor, Groups], Loss] | None = None


def num_kept(fraction: float, length: int) -> int:
    """Return k, the number of places of d that are sent.

    >>> num_kept(0.1, 4), num_kept(0.5, 5), num_kept(1.0, 5)
    (1, 3, 5)
    """
    return max(1, int(fraction * length + 0.5))
