"""`[tuning]`: its defaults, and what is refused before anything runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
from tuning import pruners, section_of, study_plan
from tuning.study_plan import parts_and_section

Make = Callable[..., raysim.Experiment]
GRID = {"client.optimizer.lr": {"grid": [0.1, 1]}, "server.optimizer.lr": {"grid": [0.1, 1, 10]}}
RANGE = {"client.optimizer.lr": {"log": [0.1, 1]}}


@pytest.mark.parametrize(
    ("keys", "name", "trials", "at_a_time"),
    [
        ({"space": GRID}, "grid", 6, 64),
        ({"space": GRID, "trials": 4}, "grid", 4, 64),
        ({"space": GRID, "trials": 40}, "grid", 6, 64),
        ({"space": GRID, "sampler": {"name": "random"}, "trials": 40}, "random", 40, 64),
        ({"space": RANGE}, "tpe", 50, 3),
        ({"space": RANGE, "concurrent": 7}, "tpe", 50, 7),
    ],
)
def test_what_is_not_said_follows_from_the_space(
    keys: dict[str, Any], name: str, trials: int, at_a_time: int, experiment: Make
) -> None:
    tuning = section_of(experiment(tuning=keys))
    assert (tuning.chosen_sampler().name, tuning.num_trials(), tuning.at_a_time(3)) == (name, trials, at_a_time)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"trials": 5}, r"tuning\.space must be given"),
        ({"space": GRID, "trails": 5}, r"unknown key 'tuning\.trails'.*did you mean 'trials'"),
        ({"space": GRID, "sampler": {"name": "tpe", "startups": 1}}, r"unknown key 'tuning\.sampler\.startups'"),
        ({"space": GRID, "sampler": {"name": "bayes"}}, r"tuning\.sampler\.name must be one of grid, random"),
        ({"space": GRID, "holdout": 1.0}, r"tuning\.holdout must be less than 1, but got 1"),
        ({"space": GRID, "objective": {"name": "percentile", "percentile": 101}}, r"tuning\.objective\.percentile"),
        ({"space": GRID, "objective": {"window": [0, 0]}}, "none of rounds 0 to 0 is evaluated"),
        (
            {"space": GRID, "budget": 100},
            r"did you mean tuning.budget.rounds = 100\? \[tuning.budget\] takes r",
        ),
        (
            {"space": {"rounds": {"grid": [2, 4]}}, "objective": {"name": "rounds_to_target", "target": 0.5}},
            r"tuning\.space\.rounds: a run that misses the target of rounds_to_target is measured by its number",
        ),
        ({"space": GRID, "final": 3}, r"tuning\.final must be less than or equal to 2"),
        ({"space": GRID, "pruner": {"name": "wilcoxon"}, "seeds": 4}, r"cannot stop a trial of 4 seeds.*= 0\.125"),
    ],
)
def test_what_is_refused(keys: dict[str, Any], said: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        section_of(experiment(tuning=keys))


@pytest.mark.parametrize(("keyword", "word"), [("sampler", "bayes"), ("objective", "acc")])
def test_a_word_is_not_taken_for_a_part_of_the_trials(keyword: str, word: str, experiment: Make) -> None:
    # What it names as an example is one.
    with pytest.raises(raysim.ExperimentError, match=rf"such as .'name': '(tpe|accuracy)'., but got the text '{word}'"):
        parts_and_section(experiment(), GRID, {keyword: word})


def test_a_pruner_that_meets_no_round_is_refused(experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="only the last of 4 rounds"):
        section_of(experiment(tuning={"space": GRID, "pruner": {"name": "median"}}, evaluation={"every": 4}))


@pytest.mark.parametrize(
    ("pruner", "last"),
    [
        ({"name": "median", "warmup_rounds": 4}, 3),
        ({"name": "halving", "min_rounds": 4}, 3),
        ({"name": "hyperband", "min_rounds": 9}, 3),
    ],
)
def test_a_pruner_that_begins_after_the_last_evaluation_is_refused(
    pruner: dict[str, Any], last: int, experiment: Make
) -> None:
    [key] = pruner.keys() - {"name"}
    keys = {"rounds": 4, "evaluation": {"every": 1}}
    with pytest.raises(raysim.ExperimentError, match=f"{key} = .* of 4 rounds, of which the last .* after {last}"):
        section_of(experiment(tuning={"space": GRID, "pruner": pruner}, **keys))
    section_of(experiment(tuning={"space": GRID, "pruner": {**pruner, key: last}}, **keys))
    # The longest of a study's trials counts.
    longer = {**GRID, "rounds": {"grid": [4, 40]}}
    section_of(experiment(tuning={"space": longer, "pruner": pruner}, **keys))


@pytest.mark.parametrize(
    ("objective", "said"),
    [({"window": [1, 4]}, r"window must end with one of the rounds, 0 to 3"), ({"last": 5}, "at most .* rounds, 4")],
)
def test_a_mean_of_rounds_that_no_run_has_is_refused(objective: dict[str, Any], said: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=rf"tuning\.objective\..*{said}"):
        section_of(experiment(tuning={"space": GRID, "objective": objective}, rounds=4))
    section_of(experiment(tuning={"space": GRID, "objective": objective}, rounds=5))


def test_keys_without_a_part_in_a_study_are_said(
    small: raysim.FederatedDataset, experiment: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def plan(startup: int, **keys: Any) -> None:
        pruner = {"name": "median", "startup": startup}
        study = experiment(**keys, tuning={"space": GRID, "pruner": pruner}, evaluation={"every": 1})
        study_plan.plan(study, None, tmp_path / "study", {"dataset": small})

    plan(6, trials=3)
    assert [message.partition(":")[0] for message in caplog.messages] == [
        "trials = 3 has no part in a study",
        "tuning.pruner stops no trial",
    ]
    caplog.clear()
    plan(5)
    assert not caplog.messages


def test_keys_of_final_runs_are_said_where_there_are_none(
    small: raysim.FederatedDataset, experiment: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    evaluation = {"split": ["test", "train"], "fine_tuning": {"steps": 2, "split": "train"}}

    def plan(**keys: Any) -> list[str]:
        caplog.clear()
        tuned = {"space": GRID, **keys}
        study = experiment(tuning=tuned, evaluation=evaluation, checkpoint={"best": "eval/test/loss"})
        study_plan.plan(study, None, tmp_path / "study", {"dataset": small})
        return [message.partition(":")[0] for message in caplog.messages]

    assert plan() == []
    assert plan(final=0) == ["evaluation.split, evaluation.fine_tuning, checkpoint.best"]


def test_no_section_is_said(experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"no \[tuning\] section"):
        section_of(experiment())


def test_wilcoxon_is_taken_where_it_can_stop_a_trial() -> None:
    pruners.check(pruners.Wilcoxon(p=0.1), seeds=5, rounds=10, every=5)
