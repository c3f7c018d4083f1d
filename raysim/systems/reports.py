"""Computes the reports that count in a round, and its closing time: a pure function of the times, before any training.

The server waits for the wanted number of reports, or for all clients that it asked if they are fewer, at most until
the deadline. The first reports count; of equal times, the client drawn first comes first. Without a deadline the
server learns which clients have left, and closes with the last report.

Source: over-selection, deadline and abandoned rounds are those of Bonawitz et al. (2019), section 2.2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from raysim.arrays import Float64s


class Closed(NamedTuple):
    """counts: (clients,) bool, the clients whose reports count. time_s: from the request to the close of the round.

    Of the other clients, `dropped` ones left before they reported, `late` ones would have reported after the deadline,
    and `discarded` ones reported after the last wanted report, or in a round that was abandoned.
    """

    counts: npt.NDArray[np.bool_]
    time_s: float
    dropped: int
    late: int
    discarded: int
    abandoned: bool


def close(times_s: Float64s, size: int, deadline_s: float | None = None, min_reports: int = 1) -> Closed:
    """Close the round.

    Args:
        times_s: report time of each client that was asked, (clients,); infinite for a client that never reports.
        size: number of reports that the server waits for.
        deadline_s: the latest report that counts; None waits for all.
        min_reports: with fewer reports the round is abandoned.
    """
    reports = np.isfinite(times_s)
    in_time = reports if deadline_s is None else reports & (times_s <= deadline_s)
    come = int(in_time.sum())
    first = np.argsort(times_s, kind="stable")[: min(size, come)]
    counts = np.zeros(len(times_s), dtype=np.bool_)
    counts[first] = True
    if deadline_s is not None and come < min(size, len(times_s)):
        time_s = deadline_s
    else:
        time_s = float(times_s[first].max(initial=0.0))
    abandoned = len(first) < min_reports
    if abandoned:
        counts[:] = False
    dropped, late = int((~reports).sum()), int((reports & ~in_time).sum())
    return Closed(counts, time_s, dropped, late, come - int(counts.sum()), abandoned)
