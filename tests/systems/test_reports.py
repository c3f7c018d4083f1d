"""Whose reports count, and when a round closes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.systems.reports import close

NEVER = math.inf
TIMES = st.lists(st.one_of(st.integers(1, 20).map(float), st.just(NEVER)), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("times", "wanted", "deadline", "counts", "time_s", "dropped", "late", "discarded"),
    [
        # All are waited for: the round is as long as its slowest client.
        ([3, 9, 4], 3, None, [1, 1, 1], 9, 0, 0, 0),
        # Over-selection: it closes with the second report.
        ([3, 9, 4], 2, None, [1, 0, 1], 4, 0, 0, 1),
        # Ties go to who was drawn first.
        ([5, 5, 5], 2, None, [1, 1, 0], 5, 0, 0, 1),
        # The deadline is waited for where a report that is wanted does not come.
        ([3, 9, 4], 3, 8.0, [1, 0, 1], 8, 0, 1, 0),
        ([3, NEVER, 4], 3, 8.0, [1, 0, 1], 8, 1, 0, 0),
        # Not where it is not needed; a report on the deadline counts.
        ([3, 9, 8], 2, 8.0, [1, 0, 1], 8, 0, 1, 0),
        ([3, 4, 5], 9, 8.0, [1, 1, 1], 5, 0, 0, 0),
        # Without a deadline the server learns who has left.
        ([3, NEVER, 4], 3, None, [1, 0, 1], 4, 1, 0, 0),
        ([NEVER], 1, None, [0], 0, 1, 0, 0),
        ([], 3, None, [], 0, 0, 0, 0),
    ],
)
def test_a_round_closes(
    times: list[float],
    wanted: int,
    deadline: float | None,
    counts: list[int],
    time_s: float,
    dropped: int,
    late: int,
    discarded: int,
) -> None:
    closed = close(np.array(times, dtype=float), wanted, deadline)
    assert closed.counts.tolist() == [bool(c) for c in counts]
    assert closed[1:5] == (time_s, dropped, late, discarded)


def test_with_too_few_reports_none_counts() -> None:
    closed = close(np.array([3.0, 9.0, 4.0]), 3, 5.0, min_reports=3)
    assert closed.abandoned
    assert not closed.counts.any()
    assert (closed.time_s, closed.late, closed.discarded) == (5.0, 1, 2)
    assert not close(np.array([3.0, 9.0, 4.0]), 3, 5.0, min_reports=2).abandoned


@given(TIMES, st.integers(1, 12), st.one_of(st.none(), st.integers(1, 20).map(float)))
def test_who_counts_is_a_prefix_of_the_order_of_reports(
    times: list[float], wanted: int, deadline: float | None
) -> None:
    given_s = np.array(times)
    closed = close(given_s, wanted, deadline)
    order = [i for i in np.argsort(given_s, kind="stable") if closed.counts[i] or math.isfinite(given_s[i])]
    count = int(closed.counts.sum())
    assert set(order[:count]) == set(np.flatnonzero(closed.counts))
    assert count + closed.dropped + closed.late + closed.discarded == len(times)
    assert count <= wanted


@given(TIMES, st.integers(1, 12))
def test_more_clients_to_choose_from_never_make_a_round_longer(times: list[float], wanted: int) -> None:
    finite = np.array([t for t in times if math.isfinite(t)])
    asked = close(finite[:wanted], wanted)
    assert close(finite, wanted).time_s <= asked.time_s or len(finite) <= wanted
