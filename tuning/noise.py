"""Draws the Laplace noise of scores: what a study sees where evaluations must be private.

Source: Kuo et al. (2023): a study that evaluates T scores, each the plain mean of M clients' accuracies, is
epsilon-private with the scale T / (epsilon M).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def laplace(scale: float, address: Sequence[int]) -> float:
    """Return a draw of Laplace(0, scale) that depends on the address only: the study's seed, the trial, the step.

    >>> laplace(0.0, [0, 1, 2]), laplace(2.0, [7, 1, 2]) == 2 * laplace(1.0, [7, 1, 2])
    (0.0, True)
    """
    if not scale:
        return 0.0
    draw = int(np.random.SeedSequence([part % 2**63 for part in address]).generate_state(1, np.uint64)[0])
    # The middle of one of 2^53 parts, so that neither end is drawn.
    centred = ((draw >> 11) + 0.5) / 2**53 - 0.5
    return math.copysign(scale * -math.log1p(-2 * abs(centred)), centred)
