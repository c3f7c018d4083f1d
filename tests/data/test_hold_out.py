"""Holding clients out of a dataset that a script made: the choice that `data.holdout` makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

import raysim
from raysim.data.holdout import Holdout


def test_the_clients_of_the_holdout_become_the_validation_split(dataset: raysim.FederatedDataset) -> None:
    held = dataset.hold_out(0.2, seed=3)
    chosen = Holdout(20, 0.2, 3)
    for split, positions in ((held.train, chosen.train()), (held.validation, chosen.validation())):
        assert split is not None
        assert [split.id_of(i) for i in range(len(split))] == [dataset.train.id_of(p) for p in positions.tolist()]
    assert held.test is dataset.test


def test_another_division_is_another_dataset(dataset: raysim.FederatedDataset) -> None:
    made = [dataset, dataset.hold_out(0.2), dataset.hold_out(0.3), dataset.hold_out(0.2, seed=1)]
    assert len({each.fingerprint for each in made}) == 4
    assert dataset.hold_out(0.2).fingerprint == made[1].fingerprint


def test_numbers_of_numpy_s_kinds_hold_out_the_same(dataset: raysim.FederatedDataset) -> None:
    wanted = dataset.hold_out(0.25, 3)
    held = dataset.hold_out(cast(Any, np.float32(0.25)), cast(Any, np.int64(3)))
    assert held.fingerprint == wanted.fingerprint
    assert [held.train.id_of(i) for i in range(15)] == [wanted.train.id_of(i) for i in range(15)]


@pytest.mark.parametrize(
    ("share", "said"), [(0.0, r"in \(0, 1\)"), (0.01, "at least one training"), (0.99, "at least one")]
)
def test_clients_must_be_left_on_both_sides(dataset: raysim.FederatedDataset, share: float, said: str) -> None:
    with pytest.raises(raysim.DataError, match=said):
        dataset.hold_out(share)
    with pytest.raises(raysim.DataError, match="validation clients of its own"):
        dataset.hold_out(0.2).hold_out(0.2)


def test_the_same_as_data_holdout() -> None:
    section = {"name": "digits", "clients": 10, "seed": 4}
    whole, held = (
        raysim.dataset_of(raysim.Experiment.model_validate({"data": section | more, "cohort": {"size": 1}}))
        for more in ({}, {"holdout": 0.3})
    )
    for mine, its in ((whole.hold_out(0.3, 4).train, held.train), (whole.hold_out(0.3, 4).validation, held.validation)):
        assert mine is not None
        assert its is not None
        assert [mine.id_of(i) for i in range(len(mine))] == [its.id_of(i) for i in range(len(its))]
        assert (mine.client(0)[0] == its.client(0)[0]).all()


def test_no_data_section_is_said(experiment: Callable[..., raysim.Experiment]) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"no \[data\] section"):
        raysim.dataset_of(experiment())
