"""Says which of the numbers of other data look like which of a run's own."""

from __future__ import annotations

from collections.abc import Sequence

NAMED = 3
"""Of them; the others are dots."""


def listed(pairs: Sequence[tuple[int, int]]) -> str:
    """Return the first pairs as text.

    >>> listed([(0, 2), (2, 0)]), listed([(0, 1), (1, 2), (2, 3), (3, 0)])
    ('0 like 2, 2 like 0', '0 like 1, 1 like 2, 2 like 3, ...')
    """
    more = ["..."] if len(pairs) > NAMED else []
    return ", ".join([*(f"{at} like {like}" for at, like in pairs[:NAMED]), *more])
