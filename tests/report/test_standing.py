"""How a run stands, with a clock that the test turns."""

from __future__ import annotations

import pytest

from raysim.report.standing import WINDOW, Standing


def test_the_pace_and_the_time_left() -> None:
    # Two rounds of 10 clients in 8 s: 4 s a round, 2.5 clients/s, and 8 rounds take 32 s more.
    standing = Standing.at_start(10, now_s=100)
    standing = standing.after({"round": 0, "clients": 10}, now_s=103)
    standing = standing.after({"round": 1, "clients": 10}, now_s=108)
    assert standing.done == 2
    assert standing.clients_per_s == 2.5
    assert standing.left_s(108) == 32


def test_time_left_falls_while_a_round_is_under_way_but_never_below_zero() -> None:
    standing = Standing.at_start(2, now_s=0).after({"round": 0, "clients": 1}, now_s=5)
    assert [standing.left_s(now) for now in (5, 7, 60)] == [5, 3, 0]


def test_nothing_is_known_before_the_first_round() -> None:
    standing = Standing.at_start(5, now_s=0)
    assert standing.left_s(3) is None
    assert standing.clients_per_s is None
    assert standing.quality() == []


def test_a_resumed_run_counts_earlier_rounds_as_done_but_not_as_fast() -> None:
    # Rounds 0 to 89 were run in another session; one round took 6 s in this one, and 9 are left.
    standing = Standing.at_start(100, now_s=0).after({"round": 90, "clients": 3}, now_s=6)
    assert standing.done == 91
    assert standing.left_s(6) == 54
    assert standing.clients_per_s == 0.5


def test_who_joins_a_run_under_way_sees_how_it_stands_and_measures_from_there() -> None:
    joined = Standing.at_start(10, 0.0).after({"round": 4, "clients": 20, "loss": 0.5}, 1.0).unmeasured(1.0)
    assert (joined.done, joined.loss, joined.round_s, joined.clients_per_s) == (5, 0.5, None, None)
    later = joined.after({"round": 5, "clients": 20}, 3.0)
    assert (later.round_s, later.clients_per_s, later.left_s(3.0)) == (2.0, 10.0, 8.0)


def test_the_pace_follows_a_change() -> None:
    standing = Standing.at_start(1000, now_s=0).after({"round": 0, "clients": 1}, now_s=1000)
    for index in range(1, WINDOW + 1):
        standing = standing.after({"round": index, "clients": 1}, now_s=1000 + index)
    assert standing.round_s == 1


def test_a_round_that_began_before_the_measurement_has_the_time_that_it_took() -> None:
    # Workers joined in its course: the measurement began a moment before it ended, and the round took 4 s.
    standing = Standing.at_start(11, now_s=99.99).after({"round": 0, "clients": 8, "wall_time_s": 4.0}, now_s=100)
    assert standing.clients_per_s == 2.0
    assert standing.left_s(100) == 40
    # A measurement that began with the round, or before it, stays.
    standing = Standing.at_start(11, now_s=92).after({"round": 0, "clients": 8, "wall_time_s": 4.0}, now_s=100)
    assert standing.clients_per_s == 1.0


def test_a_pause_is_not_the_pace_of_a_run_of_fast_rounds() -> None:
    # A thousand rounds of 10 ms, a pause of 1 s, and sixty more rounds: 11.6 s in all, of which the last 10 count.
    standing, now = Standing.at_start(5000, now_s=0), 0.0
    for index in range(1060):
        now += 0.01 + (index == 1000)
        standing = standing.after({"round": index, "clients": 1}, now)
    assert len(standing.finishes) <= WINDOW + 1
    assert 80 < (standing.clients_per_s or 0) < 100
    assert standing.round_s is not None
    assert standing.round_s * (standing.clients_per_s or 0) == pytest.approx(1)


def test_evaluations_stay_until_there_are_newer_ones() -> None:
    standing = Standing.at_start(9, 0).after({"round": 0, "loss": 2.0, "eval/test/accuracy": 0.25}, 1)
    standing = standing.after({"round": 1, "loss": 1.5, "accuracy": 0.5}, 2)
    assert standing.quality() == ["loss 1.5", "accuracy 50.0 %", "test 25.0 %"]
    standing = standing.after({"round": 2, "loss": 1.0, "accuracy": 0.5, "eval/test/accuracy": 0.75}, 3)
    assert standing.quality()[-1] == "test 75.0 %"


def test_a_regression_shows_losses() -> None:
    standing = Standing.at_start(9, 0).after({"round": 0, "loss": 2.0, "eval/test/loss": 3.0}, 1)
    assert standing.quality() == ["loss 2", "test loss 3"]


def test_a_round_whose_updates_were_all_rejected_says_so() -> None:
    standing = Standing.at_start(9, 0).after({"round": 0, "clients": 0, "rejected": 4, "retries": 0}, 1)
    assert standing.quality() == ["no update accepted"]
    assert standing.trouble() == ["4 updates rejected"]
    assert standing.clients_per_s == 4, "rejected clients were trained too"


def test_trouble_adds_up_and_is_silent_where_there_is_none() -> None:
    calm = Standing.at_start(9, 0).after({"round": 0, "clients": 1, "rejected": 0, "retries": 0}, 1)
    assert calm.trouble() == []
    troubled = calm.after({"round": 1, "clients": 1, "rejected": 1, "retries": 2}, 2)
    troubled = troubled.after({"round": 2, "clients": 1, "rejected": 1, "retries": 1}, 3)
    assert troubled.trouble() == ["2 updates rejected", "3 retried"]
