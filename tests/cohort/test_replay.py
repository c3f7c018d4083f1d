"""Replay: the cohorts are those that were written down."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import raysim

Make = Callable[..., raysim.Experiment]


def test_cohorts_are_the_lists_in_their_order(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    cohorts = [["c3", "c1"], ["c0"], ["c19", "c2", "c7"], ["c5"]]
    replayed = experiment(cohort={"sampler": {"name": "replay", "cohorts": cohorts}})
    assert [list(r.cohort) for r in raysim.rounds(replayed, dataset=dataset)] == cohorts


def test_integer_ids_may_be_written_as_integers(experiment: Make) -> None:
    replayed = experiment(cohort={"sampler": {"name": "replay", "cohorts": [[3, "1"]]}})
    assert replayed.cohort.sampler.cohorts == (("3", "1"),)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("cohorts", "message"),
    [
        ([["c1"]] * 3, "holds 3 for rounds = 4"),
        ([["c1", "c1"]] * 4, r"repeats \['c1'\]"),
        ([["c1", "c99"]] * 4, "c99"),
    ],
)
def test_what_cannot_be_replayed_is_said_before_the_first_round(
    cohorts: list[list[str]], message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    replayed = experiment(cohort={"sampler": {"name": "replay", "cohorts": cohorts}})
    with pytest.raises(raysim.RaysimError, match=message):
        raysim.rounds(replayed, dataset=dataset)
