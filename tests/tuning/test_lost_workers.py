"""Studies whose workers hang, on a simulated Ray with virtual time; the training is real."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
import tuning
from raysim.engine.many.segment import SegmentUnit
from tests.support.training_ray import training

Make = Callable[..., raysim.Experiment]
Seconds = Callable[[int, SegmentUnit], float]
Study = Callable[..., tuning.Study]

NEVER_S = 1e9


@pytest.fixture
def study(small: raysim.FederatedDataset, tuned: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Study:
    """Tune three rates with two seeds: in this process, or on two workers, by the seconds that a segment takes them."""

    def run(name: str, seconds: Seconds | None = None) -> tuning.Study:
        exp, where = tuned(seeds=2, final=0), tmp_path / name
        if seconds is None:
            return tuning.tune(exp, dataset=small, path=where)
        with training(monkeypatch, {"here": 2}) as ray:
            ray.seconds = seconds
            return tuning.tune(exp.changed(["engine.workers=2"]), dataset=small, path=where)

    return run


def told(found: tuning.Study) -> list[dict[str, Any]]:
    """What the study has recorded of every trial, but times."""
    return found.trials.drop_columns(["seconds"]).to_pylist()


def test_a_worker_that_hangs_in_a_study_is_replaced(study: Study) -> None:
    came: list[tuple[int, tuple[int, ...]]] = []

    def seconds(worker: int, unit: SegmentUnit) -> float:
        came.append((worker, tuple(unit.plans)))
        # The first worker never ends its second segment.
        return NEVER_S if worker == 0 and [by for by, _ in came].count(0) == 2 else 2.0

    assert told(study("ray", seconds)) == told(study("here"))
    # Trials that are trained together hang together, and are carried out again together.
    assert len(came[0][1]) == 3
    first, second, again = (worker for worker, runs in came if runs == came[0][1])
    assert (first, second) == (0, 0)
    assert again != 0


def test_a_trial_that_hangs_wherever_it_goes_is_one_trial_less(study: Study) -> None:
    came: list[tuple[int, ...]] = []

    def seconds(worker: int, unit: SegmentUnit) -> float:
        came.append(tuple(unit.plans))
        return NEVER_S if 0 in unit.plans and sum(0 in runs for runs in came) > 1 else 1.0

    found = study("ray", seconds)
    assert found.counts == {"finished": 2, "failed": 1}
    # Once more with the runs in its stack, and once more alone.
    assert [len(runs) for runs in came if 0 in runs] == [3, 3, 3, 1, 1]
    (why,) = [row["why"] for row in found.trials.to_pylist() if row["outcome"] == "failed"]
    assert "has not replied for" in why
    assert "giving up after 1 of 1 retries" in why
    others = [row for row in told(study("here")) if row["trial"] != 0]
    assert [row for row in told(found) if row["outcome"] == "finished"] == others
