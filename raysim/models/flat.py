"""Says how many numbers an example has for a module that flattens it."""

from __future__ import annotations

import math

from raysim.errors import ModelError


def num_inputs(name: str, x_shape: tuple[int, ...]) -> int:
    """Return the number of values of an example.

    Args:
        name: of the model, for the message.
        x_shape: of an example.

    Raises:
        ModelError: an example is a number alone, so a batch has no dimension to flatten.

    >>> num_inputs("linear", (3, 4))
    12
    """
    if not x_shape:
        raise ModelError(
            f"{name} takes examples that are lists of numbers, but each x is a number alone (shape ()): data.shape = "
            f"[1] makes a list of one of each in a table's column, and x[:, None] in a script."
        )
    return math.prod(x_shape)
