"""The runs on a cluster, as they are listed, and as one is spoken of once it has ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import raysim
from raysim.engine.rounds.run_status import UnderWay, run_name
from raysim.report import runs_under_way


@pytest.fixture
def night() -> UnderWay:
    given = {"name": "night", "rounds": 1500, "model": {"name": "linear"}, "cohort": {"size": 5}}
    exp = raysim.Experiment.model_validate(given)
    folder = "/home/me/runs/night"
    return UnderWay("night", exp, "atlas", Path(folder), folder, since_s=100.0, stage="running", rounds=1200)


def test_a_line_a_run(night: UnderWay) -> None:
    day = replace(night, name="day/one", stage="starting", rounds=0)
    assert runs_under_way.text([night, day], now_s=165.0).splitlines() == [
        "name     round        for         host   folder",
        "night    1,200/1,500  1 min 05 s  atlas  /home/me/runs/night",
        "day/one  starting     1 min 05 s  atlas  /home/me/runs/night",
    ]
    assert runs_under_way.text([], now_s=0.0) == "no run is under way"


def test_what_became_of_a_run_that_was_stopped(night: UnderWay) -> None:
    assert runs_under_way.outcome_of_stop(replace(night, stage="stopped")) == (
        "stopped night after round 1,200; go on, on atlas, with: raysim resume /home/me/runs/night"
    )
    assert "before its first round" in runs_under_way.outcome_of_stop(replace(night, stage="stopped", rounds=0))
    told = runs_under_way.outcome_of_stop(
        replace(night, stage="stopped", behind="s3://bucket/night is behind by 2 files")
    )
    assert told.splitlines()[1] == "on atlas: s3://bucket/night is behind by 2 files"
    assert "all of its 1,500 rounds" in runs_under_way.outcome_of_stop(replace(night, stage="done", rounds=1500))


def test_a_run_is_named_after_its_experiment_and_its_folder_where_that_is_another(night: UnderWay) -> None:
    assert run_name(night.experiment, Path("runs/night")) == "night"
    assert run_name(night.experiment, Path("runs/night/trial-3")) == "night/trial-3"
