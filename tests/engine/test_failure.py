"""The failure decision: budgets per cause, and a sentence with decision, count and limit."""

from __future__ import annotations

from raysim.engine.failure import decide


def test_a_lost_worker_is_retried_until_the_budget_is_spent() -> None:
    first, second, third, fourth = (decide("worker_lost", n, "worker 3 died") for n in range(4))
    assert (first.retry, first.reason) == (True, "worker 3 died: retry 1 of 3")
    assert second.retry
    assert third.retry
    assert (fourth.retry, fourth.reason) == (False, "worker 3 died: giving up after 3 of 3 retries")


def test_budgets_are_per_cause() -> None:
    assert decide("worker_lost", 1, "worker 3").retry
    assert not decide("out_of_memory", 1, "worker 3").retry
