"""When a call is late, by what its units have been measured to cost: whether somebody else should do them too, or
whether its worker is given up. Pure decisions; the executor carries them out."""

from __future__ import annotations

SLOW, SLOW_S = 3.0, 5.0
"""Slow: it runs longer than this many times what is expected, and longer than this. A free worker does it too."""

HUNG, HUNG_S = 20.0, 60.0
"""Hung: the same, and its worker is ended."""


def is_slow(running_s: float, expected_s: float | None) -> bool:
    """Whether units that were to take `expected_s` (None: never measured) are worth doing twice."""
    return expected_s is not None and running_s > max(SLOW_S, SLOW * expected_s)


def is_hung(running_s: float, expected_s: float | None) -> bool:
    """Whether a call that was to take `expected_s` will never end."""
    return expected_s is not None and running_s > max(HUNG_S, HUNG * expected_s)
