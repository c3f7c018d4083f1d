"""The failure decision: budgets per cause, and a sentence with decision, count and limit."""

from __future__ import annotations

from collections.abc import Mapping

from raysim.engine.failure import Cause, decide


def test_a_lost_worker_is_retried_until_the_budget_is_spent() -> None:
    budgets: Mapping[Cause, int] = {"worker_lost": 2, "out_of_memory": 1}
    first, second, third = (decide("worker_lost", n, "worker 3 died", budgets) for n in range(3))
    assert (first.retry, first.reason) == (True, "worker 3 died: worker_lost; running it again, retry 1 of 2")
    assert second.retry
    assert (third.retry, third.reason) == (False, "worker 3 died: worker_lost; giving up after 2 of 2 retries")


def test_budgets_are_per_cause() -> None:
    assert decide("worker_lost", 1, "worker 3").retry
    assert not decide("out_of_memory", 1, "worker 3").retry
