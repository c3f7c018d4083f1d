"""Growing cohorts: M_t = min(M_0 factor^floor(t / every), max, N), t = number of finished rounds, N clients.

Source: Charles et al. (2021), section 5.3 (50, 300, 800: start, rounds between doublings, largest).
"""

from __future__ import annotations

from pydantic import Field, PositiveInt

from raysim.section import Section


class Growth(Section):
    """every: so many rounds the size grows. factor: by which it is multiplied. max: clients at most; absent: all."""

    every: PositiveInt
    factor: float = Field(2.0, ge=1)
    max: PositiveInt | None = None


def grown(section: Growth | None, initial: int, population: int, t: int) -> int:
    """M_t, rounded down."""
    if section is None:
        return min(initial, population)
    largest = population if section.max is None else min(section.max, population)
    # A power beyond the population may be beyond a float as well.
    size, multiplications = float(initial), t // section.every
    while multiplications and size < largest and section.factor > 1:
        size, multiplications = size * section.factor, multiplications - 1
    return min(int(size), largest)
