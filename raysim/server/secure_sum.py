"""Secure sums: the arithmetic of secure aggregation, by which a server learns the sum of updates and none of them.

    e_i = round(2^f w_i h_i), ties to even         mean = centred(sum e_i mod 2^bits) 2^-f / sum w_i

f is `fraction_bits`, w_i is n_i or 1. A protocol adds masks that cancel modulo 2^bits, which changes no sum: there are
none here (tests/test_secure_sums.py shows them). Metric `secure_sum/wrapped`: numbers whose true sum is outside.

Source: Bonawitz et al. (2017), "Practical secure aggregation"; docs/algorithms.md section 4.
"""

from __future__ import annotations

from dataclasses import replace

from pydantic import Field, model_validator

from raysim.config.section import Section
from raysim.models.layout import Layout
from raysim.server.encoding import WRAPPED, Encoding, centred, wrapped
from raysim.server.release import Release
from raysim.server.sums import Sums

MOST_BITS = 48
"""Sums of doubles are exact integers some way beyond."""


class SecureSum(Section):
    """Fixed-point numbers that are added modulo a power of 2."""

    bits: int = Field(32, ge=2, le=MOST_BITS, description="Bits of a number: sums are taken modulo 2^bits.")
    fraction_bits: int = Field(16, ge=0, lt=MOST_BITS, description="Bits behind the point, fewer than bits.")

    @model_validator(mode="after")
    def _bits_before_the_point(self) -> SecureSum:
        if self.fraction_bits >= self.bits:
            raise ValueError(
                f"fraction_bits < bits must hold, but got fraction_bits = {self.fraction_bits} and bits = {self.bits}"
            )
        return self


def encoding(section: SecureSum, layout: Layout) -> Encoding:
    """Return how clients send updates of this layout."""
    unit = 2.0**section.fraction_bits
    return Encoding(
        length=layout.size,
        num_values=layout.num_values,
        encode=lambda sent: (sent.vector * (unit * sent.weight)).round_(),
        decode=lambda t, total: centred(total, section.bits) / unit,
        bits=section.bits,
    )


def released(section: SecureSum, encoding: Encoding, t: int, sums: Sums) -> Release:
    """Return what the server learns of a round's sums."""
    if not len(sums.encoded):
        return Release(sums, None, {WRAPPED: 0})
    figures = {WRAPPED: wrapped(sums.encoded, section.bits)}
    return Release(replace(sums, delta=encoding.decode(t, sums.encoded)), None, figures)
