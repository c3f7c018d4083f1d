"""A run waits longer for workers that are starting than for room that others hold."""

from __future__ import annotations

import pytest

from raysim.engine.on_ray.cluster.patience import ROOM_S, START_S, Room

EACH = {"CPU": 0.5}


@pytest.mark.parametrize(
    ("free", "workers", "is_there", "said"),
    [
        (3.5, 1, True, "starting"),  # It may hold its share already.
        (0.5, 2, True, "starting"),
        (0.0, 8, True, "Other jobs"),  # All that is held may be this run's.
        (0.0, 7, False, "Other jobs"),
        (0.4, 2, False, "Other jobs"),
    ],
)
def test_room_is_free_or_held_by_the_run_itself(free: float, workers: int, is_there: bool, said: str) -> None:
    room = Room({"CPU": 4.0}, {"CPU": free}, EACH)
    assert room.is_there(workers) is is_there
    assert not room.is_over(ROOM_S - 1, workers)
    assert room.is_over(ROOM_S + 1, workers) is not is_there
    assert room.is_over(START_S + 1, workers)
    assert said in room.why


def test_a_card_that_others_hold_is_no_room_though_cpus_are_free() -> None:
    room = Room({"CPU": 4.0, "GPU": 1.0}, {"CPU": 4.0}, {"CPU": 1.0, "GPU": 0.25})
    assert not room.is_there(1)
    assert room.why.startswith("each needs 1 CPU and 0.25 GPU, and Ray has 4 CPU and 0 GPU free. Other jobs")


def test_sums_of_shares_are_not_exact() -> None:
    assert Room({"CPU": 1.0}, {"CPU": 0.1 + 0.2 - 0.3}, {"CPU": 0.1}).is_there(10)
    assert Room({"CPU": 1.0}, {"CPU": 0.7999999999}, {"CPU": 0.8}).is_there(0)
