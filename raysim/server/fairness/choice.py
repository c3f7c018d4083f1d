"""Lists the fair objectives, and returns the record of a section."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Annotated, Any

from pydantic import Field

from raysim.config.section import Section
from raysim.server.fairness import afl, qffl, superquantile, tilt
from raysim.server.fairness.fairness import Fairness

FairnessSection = Annotated[
    qffl.Qffl | tilt.Tilt | superquantile.Superquantile | afl.Afl,
    Field(discriminator="name"),
]

_MAKERS: Mapping[type[Section], Callable[[Any], Fairness]] = MappingProxyType(
    {
        qffl.Qffl: qffl.make,
        tilt.Tilt: tilt.make,
        superquantile.Superquantile: superquantile.make,
        afl.Afl: afl.make,
    }
)


def make(section: FairnessSection | None) -> Fairness | None:
    """Return the record of pure functions; None without a section."""
    return None if section is None else _MAKERS[type(section)](section)
