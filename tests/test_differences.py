"""Where two experiments differ, as a person would say it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from raysim import Experiment, differences


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"name": "other"},
        {"rounds": 99},
        {"checkpoint": {"every": 1}},
        {"engine": {"workers": 3, "cpus_per_worker": 0.5, "gpus_per_worker": 0}},
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
