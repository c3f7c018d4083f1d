"""Whose reports count in a round, and when it closes: a pure function of the times, known before anybody is trained.

The server waits for as many reports as it wants, or for all clients that it asked where they are fewer, at most until
the deadline. The reports that count are a prefix of the order in which they come; ties go to who was drawn first.
Without a deadline the server learns who has left, and closes with the last report that comes.

Source: over-selection, deadline and abandoned rounds are those of Bonawitz et al. (2019), section 2.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.systems.quantity import Floats


class Closed(NamedTuple):
    """counts: (clients,) bool, whose reports count. time_s: from asking to closing.

    Of the others, `dropped` left before they reported, `late` ones would have reported after the deadline, and
    `discarded` ones reported when no more reports were wanted, or in a round that was abandoned.
    """

    counts: npt.NDArray[np.bool_]
    time_s: float
    dropped: int
    late: int
    discarded: int
    abandoned: bool


def close(times_s: Floats, wanted: int, deadline_s: float | None = None, min_reports: int = 1) -> Closed:
    """Close the round.

    Args:
        times_s: when each client that was asked would report, (clients,); infinite for one that never does.
        wanted: reports that are waited for.
        deadline_s: the latest report that counts; None waits for all.
        min_reports: with fewer the round is abandoned.
    """
    reports = np.isfinite(times_s)
    in_time = reports if deadline_s is None else reports & (times_s <= deadline_s)
    come = int(in_time.sum())
    first = np.argsort(times_s, kind="stable")[: min(wanted, come)]
    counts = np.zeros(len(times_s), dtype=np.bool_)
    counts[first] = True
    if deadline_s is not None and come < min(wanted, len(times_s)):
        time_s = deadline_s
    else:
        time_s = float(times_s[first].max(initial=0.0))
    abandoned = len(first) < min_reports
    if abandoned:
        counts[:] = False
    dropped, late = int((~reports).sum()), int((reports & ~in_time).sum())
    return Closed(counts, time_s, dropped, late, come - int(counts.sum()), abandoned)
