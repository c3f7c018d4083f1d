"""Names the columns of percentiles."""

from __future__ import annotations

import numpy as np


def percentile_name(percentile: float) -> str:
    """Return the name of a percentile's column, which has all of its digits: 99.99999 is not 100.

    >>> percentile_name(5.0), percentile_name(99.99999), percentile_name(-0.0), percentile_name(1e-7)
    ('p5', 'p99.99999', 'p0', 'p0.0000001')
    """
    return f"p{np.format_float_positional(percentile + 0.0, trim='-')}"
