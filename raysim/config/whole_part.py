"""Says which whole number a share or a factor of a number means."""


def whole_part(product: float) -> int:
    """Return the product rounded down, where binary fractions leave it a little below a whole number to that one.

    >>> whole_part(2.9), whole_part(0.29 * 100), whole_part(1.15 * 100)
    (2, 29, 115)
    """
    return int(round(product, 6))
