"""Defines `[client.compression]`: how a client sends its update (raysim/compression/), and what becomes of the rest.

With error feedback a client keeps e_i = 0 at first: a = h_i + e_i, Q(a) is sent, e_i <- a - Q(a).

Source: Wang et al. (2021), section 3.1.2; docs/algorithms.md section 7.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysim.compression import eden, quantise, random_k, sign, top_k
from raysim.compression.compressor import CompressionKeys


class SentKeys(CompressionKeys):
    """Keys of every compressor of updates."""

    error_feedback: bool = Field(
        False, description="Whether a client adds what it did not send to its next update; it keeps that vector."
    )

    @property
    def keeps_rest(self) -> bool:
        """See there."""
        return self.error_feedback


class SentQuantise(SentKeys, quantise.QuantiseKeys):
    """Numbers rounded to a few levels at random.

    Source: Alistarh et al. (2017), QSGD; Wen et al. (2017), TernGrad.
    """

    name: Literal["quantise"] = "quantise"


class SentSign(SentKeys, sign.SignKeys):
    """Signs of numbers, and their mean size.

    Source: Bernstein et al. (2018), signSGD; Karimireddy et al. (2019), with the norm.
    """

    name: Literal["sign"] = "sign"


class SentTopK(SentKeys, top_k.TopKKeys):
    """The k largest numbers and their places."""

    name: Literal["top_k"] = "top_k"


class SentRandomK(SentKeys, random_k.RandomKKeys):
    """The numbers at k random places."""

    name: Literal["random_k"] = "random_k"


class SentEden(SentKeys, eden.EdenKeys):
    """EDEN, and DRIVE with one bit: the nearest centroids after a random rotation.

    Source: Vargaftik et al. (2021), DRIVE; Vargaftik et al. (2022), EDEN.
    """

    name: Literal["eden"] = "eden"


ClientCompression = Annotated[
    SentQuantise | SentSign | SentTopK | SentRandomK | SentEden,
    Field(discriminator="name"),
]
