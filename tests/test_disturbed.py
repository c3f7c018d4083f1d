"""scripts/disturb: what is done to runs, and how what came of it is counted. The runs themselves are for nights."""

from __future__ import annotations

from itertools import islice

import pytest

from scripts.disturbed import tries
from scripts.disturbed.tries import MOMENTS, VICTIMS, Outcome, Try


def test_the_same_seed_draws_the_same_tries_and_more_of_them_begin_alike() -> None:
    drawn = list(islice(tries.tries(3, 30), 40))
    assert drawn == list(islice(tries.tries(3, 30), 40))
    assert drawn != list(islice(tries.tries(4, 30), 40))


def test_every_victim_and_every_moment_comes_before_any_comes_again() -> None:
    drawn = list(islice(tries.tries(0, 30), 24))
    for begin in range(0, 24, len(VICTIMS)):
        assert sorted(one.victim for one in drawn[begin : begin + len(VICTIMS)]) == sorted(VICTIMS)
    for begin in range(0, 24, len(MOMENTS)):
        assert sorted(one.moment for one in drawn[begin : begin + len(MOMENTS)]) == sorted(MOMENTS)


def test_every_victim_meets_every_moment_in_a_night() -> None:
    drawn = list(islice(tries.tries(0, 30), 200))
    assert len({(one.victim, one.moment) for one in drawn}) == len(VICTIMS) * len(MOMENTS)
    assert {one.stop_s is None for one in drawn} == {True, False}
    assert all(1 <= one.after_round < 29 for one in drawn)


@pytest.mark.parametrize(
    ("tried", "line"),
    [
        (Try("median", "raylet", "start", None, 4, 1.23), "median   raylet     SIGKILL          start, 1.2 s on"),
        (Try("fedavg", "worker", "write", 3.0, 4, 1.23), "fedavg   worker     SIGSTOP for 3 s  write, round 4"),
    ],
)
def test_a_try_is_a_line(tried: Try, line: str) -> None:
    assert str(tried) == line


def test_the_table_counts_the_wrong_ones_by_victim_and_moment() -> None:
    same = Try("fedavg", "driver", "rounds", None, 2, 0.0)
    other = same._replace(victim="script", moment="resume")
    lines = tries.table([Outcome(same, None), Outcome(same, "params differ"), Outcome(other, None)]).splitlines()
    cells = {line.split()[0]: line.split("  ")[1:] for line in lines[1:-1]}
    assert [cell.strip() for cell in cells["driver"] if cell.strip()] == ["0 of 0", "1 of 2", "0 of 0", "0 of 0"]
    assert [cell.strip() for cell in cells["script"] if cell.strip()] == ["0 of 0", "0 of 0", "0 of 0", "0 of 1"]
    assert lines[-1] == "3 disturbed runs, 1 wrong"


def test_lines_of_rays_library_are_no_words_of_raysim() -> None:
    warned = "[2026-11-23 19:09:47,710 W 11634 11634] rpc_client.h:153: Failed to connect to GCS at 127.0.0.1.\n"
    assert tries.of_raysim(f"{warned}{warned}error: Ray's node manager ...\n") == "error: Ray's node manager ...\n"
    ended = warned.replace(" W ", " E ")
    assert tries.of_raysim(f"{ended}error: Ray ended\n") == "error: Ray ended\n"
    traceback = "Traceback (most recent call last):\n"
    assert tries.of_raysim(f"{traceback}{warned}") == traceback
