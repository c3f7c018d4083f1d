"""Where two experiments differ, as a person would say it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raysim import Experiment
from raysim.experiment import differences


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"name": "other"},
        {"rounds": 99},
        {"checkpoint": {"every": 1}},
        {"engine": {"workers": 3, "cpus_per_worker": 0.5, "gpus_per_worker": 0}},
        {"engine": {"workers": 0, "examples": "host"}},
    ],
)
def test_length_placement_and_name_may_differ(
    experiment: Callable[..., Experiment], sections: dict[str, object]
) -> None:
    assert differences.settings(experiment(), experiment(**sections)) == []


def test_the_same_data_may_lie_elsewhere(experiment: Callable[..., Experiment]) -> None:
    here, there = ({"name": "mnist", "root": root, "clients": 5} for root in ("here", "there"))
    assert differences.settings(experiment(data=here), experiment(data=there)) == []


def test_every_other_key_that_differs_is_named_with_both_values(experiment: Callable[..., Experiment]) -> None:
    stored = experiment()
    # Fair weights are of losses, whose last digits depend on how many examples are scored at a time.
    scored = experiment(evaluation={"every": 2, "batch_size": 3})
    assert differences.settings(stored, scored) == ["evaluation.batch_size was 256, and is 3"]
    asked = experiment(
        seed=7,
        engine={"workers": 0, "dtype": "float64"},
        client={"optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": 4},
    )
    assert differences.settings(stored, asked) == [
        "seed was 0, and is 7",
        "client.optimizer.lr was 0.3, and is 0.5",
        "engine.dtype was 'float32', and is 'float64'",
    ]


def test_a_section_that_came_or_went_is_named(experiment: Callable[..., Experiment]) -> None:
    data = {"name": "digits", "clients": 5}
    (line,) = differences.settings(experiment(), experiment(data=data))
    assert line.startswith("data was absent, and is {'clients': 5")


def test_what_tells_records_apart_is_told_of_each() -> None:
    same = {"a": 1, "b": {"c": 2}}
    assert differences.distinguishing([same, same]) == [{}, {}]
    assert differences.distinguishing([{"a": 1, "b": {"c": 2}}, {"a": 1, "b": {"c": 3}}, {"a": 0, "b": {"c": 3}}]) == [
        {"a": 1, "b.c": 2},
        {"a": 1, "b.c": 3},
        {"a": 0, "b.c": 3},
    ]


def test_keys_of_a_choice_count_among_those_who_chose_alike() -> None:
    adam, tuned, sgd = (
        {"name": "adam", "lr": 1, "eps": 0},
        {"name": "adam", "lr": 2, "eps": 0},
        {"name": "sgd", "lr": 5},
    )
    assert differences.distinguishing([{"o": adam}, {"o": tuned}, {"o": sgd}]) == [
        {"o": "adam", "o.lr": 1},
        {"o": "adam", "o.lr": 2},
        {"o": "sgd"},
    ]


def test_a_table_that_some_lack_is_on_or_none() -> None:
    assert differences.distinguishing([{"clip": None}, {"clip": {"fixed": 1.0}}, {"clip": {"fixed": 2.0}}]) == [
        {"clip": None},
        {"clip": "on", "clip.fixed": 1.0},
        {"clip": "on", "clip.fixed": 2.0},
    ]
