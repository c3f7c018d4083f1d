"""Mean and deviation over trials, and which points are drawn."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.report.series import last_of, left_out, over_trials, rising, thin_out
from raysim.run_folder.rows import table


def test_trials_are_averaged_where_they_have_a_value() -> None:
    one = table([{"round": 0, "x": 1.0}, {"round": 1}, {"round": 2, "x": 5.0}])
    two = table([{"round": 0, "x": 3.0}, {"round": 1, "x": 7.0}])
    found = over_trials([one, two], "x")
    assert found is not None
    assert found.rounds.tolist() == [1, 2, 3]
    assert found.mean.tolist() == [2.0, 7.0, 5.0]
    # Of a sample: the squares of 1 and 3 about 2 sum to 2, over n - 1 = 1.
    assert found.deviation.tolist() == pytest.approx([np.sqrt(2), np.nan, np.nan], nan_ok=True)
    assert found.trials.tolist() == [2, 1, 1]


def test_what_is_not_finite_is_no_value() -> None:
    rounds = table([{"round": 0, "x": 1.0}, {"round": 1, "x": float("inf")}, {"round": 2, "x": float("nan")}])
    found = over_trials([rounds], "x")
    assert found is not None
    assert found.mean.tolist() == [1.0]
    assert last_of(rounds, "x") == 1.0
    assert over_trials([rounds], "y") is None


def test_times_are_summed_up() -> None:
    rounds = table([{"round": 0, "s": 1.0}, {"round": 1}, {"round": 2, "s": 2.0}])
    found = over_trials([rounds], "s", cumulated=True)
    assert found is not None
    assert found.mean.tolist() == [1.0, 1.0, 3.0]


def test_a_mean_of_times_does_not_fall_where_a_slow_trial_ends() -> None:
    slow = table([{"round": 0, "s": 10.0}, {"round": 1, "s": 10.0}])
    fast = table([{"round": t, "s": 1.0} for t in range(4)])
    found = rising([slow, fast], "s", cumulated=True)
    assert found is not None
    assert found.rounds.tolist() == [1, 2, 3, 4]
    assert found.values.tolist() == [5.5, 11.0, 12.0, 13.0]
    alone = rising([fast], "s", cumulated=True)
    assert alone is not None
    assert alone.values.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert rising([fast], "t") is None


@given(st.integers(1, 5_000), st.integers(2, 400))
def test_thinning_keeps_both_ends_and_at_most_so_many(count: int, most: int) -> None:
    kept = thin_out(count, most)
    assert kept[0] == 0
    assert kept[-1] == count - 1
    assert len(kept) == min(count, most)
    assert len(kept) == 1 or np.ptp(np.diff(kept)) <= 1, "distances are even"


def test_what_no_series_has_is_counted_and_what_was_not_recorded_is_not() -> None:
    rounds = pa.table(
        {
            "round": [0, 1, 2, 3],
            "loss": [1.0, float("nan"), -1e151, None],
            "eval/test/loss": pa.array([None, None, 2.0, None], pa.float64()),
        }
    )
    assert left_out(rounds) == {"loss": 2}
