"""A script's own examples are divided as `[data]` divides a source's, and what does not fit is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raysim
from raysim.data.prepare import prepare
from raysim.data.sources import digits
from raysim.errors import DataError, ExperimentError
from raysim.experiment.experiment_file import of_source

X, Y = np.arange(12.0).reshape(6, 2), np.array([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    "keys",
    [
        {"clients": 7, "partition": {"name": "dirichlet", "alpha": 0.3}, "holdout": 0.3, "seed": 5},
        {"clients": 5, "partition": {"name": "shards", "shards": 10}, "mix": 0.5, "test_clients": "pooled"},
        {"clients": 4, "partition": {"name": "quantity", "sigma": 1.0}, "holdout_examples": 0.2, "test_clients": 3},
    ],
)
def test_own_arrays_are_dealt_as_those_of_a_source(keys: dict[str, Any]) -> None:
    section: Any = of_source("digits", None).changed({f"data.{key}": value for key, value in keys.items()}).data
    source = prepare(section, keys.get("seed", 0))
    examples = digits.open_source(keys.get("seed", 0)).load()
    own = raysim.FederatedDataset.from_arrays(
        (examples.train_x, examples.train_y), (examples.test_x, examples.test_y), **keys
    )
    assert own.splits.keys() == source.splits.keys()
    for name, split in source.splits.items():
        mine = own.split(name)
        assert [mine.id_of(k) for k in range(len(mine))] == [split.id_of(k) for k in range(len(split))]
        for k in range(len(split)):
            assert all(np.array_equal(*pair) for pair in zip(mine.client(k), split.client(k), strict=True))


def test_targets_without_classes_are_dealt_by_sizes() -> None:
    made = raysim.FederatedDataset.from_arrays((X, Y / 2), (X, Y / 2), clients=3)
    assert made.num_classes is None
    assert made.test is not None
    assert [made.test.sizes(np.arange(3)).tolist(), made.train.sizes(np.arange(3)).tolist()] == [[2, 2, 2], [2, 2, 2]]
    with pytest.raises(ExperimentError, match=r"'dirichlet' divides by label, but y has rows of float64"):
        raysim.FederatedDataset.from_arrays((X, Y / 2), clients=3, partition={"name": "dirichlet", "alpha": 1.0})


def test_without_test_examples_there_is_no_such_split() -> None:
    assert list(raysim.FederatedDataset.from_arrays((X, Y), clients=2, test_clients=3).splits) == ["train"]


@pytest.mark.parametrize(
    ("train", "keys", "error", "said"),
    [
        ((X, Y[:4]), {"clients": 2}, DataError, "x has 6 rows and y 4"),
        (X, {"clients": 2}, DataError, "the train examples: expected a pair"),
        ((X, Y), {}, ExperimentError, "data.clients must be given"),
        ((X, Y), {"clients": 7}, ExperimentError, r"data.clients must be in 1\.\.6"),
        ((X, Y), {"clients": 2, "partitoin": {"name": "iid"}}, ExperimentError, "did you mean 'partition'"),
    ],
)
def test_what_does_not_fit_is_named(train: Any, keys: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        raysim.FederatedDataset.from_arrays(train, **keys)


@pytest.mark.parametrize("partition", [{"name": "iid"}, {"name": "dirichlet", "alpha": 0.5}], ids=str)
def test_truth_values_are_dealt_as_the_classes_0_and_1(partition: dict[str, Any]) -> None:
    kinds = (bool, np.int64)
    given = [(X, (Y % 2).astype(kind)) for kind in kinds]
    made = [raysim.FederatedDataset.from_arrays(pair, pair, clients=4, partition=partition) for pair in given]
    for split in ("train", "test"):
        for position in range(4):
            of_truth, of_numbers = (one.splits[split].client(position) for one in made)
            np.testing.assert_array_equal(of_truth[0], of_numbers[0])
            np.testing.assert_array_equal(of_truth[1], of_numbers[1])
