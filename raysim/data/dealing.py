"""Deals a common test set to the clients of a partition."""

from __future__ import annotations

import numpy as np

from raysim.arrays import Int64s
from raysim.data.partitions.cut import apportion
from raysim.seeds import key, permutation


def deal_test(parts: list[Int64s], train_labels: Int64s, test_labels: Int64s, seed: int) -> list[Int64s]:
    """Give each client the same share of a class's test examples as it has of the class's training examples.

    Counts are rounded by largest remainder; clients with equal remainders are ordered at random, anew for each class.
    A class without training examples is dealt evenly. Each test example goes to exactly one client. A client may get
    none.

    >>> parts = [np.array([0, 1]), np.array([2, 3])]
    >>> [part.tolist() for part in deal_test(parts, np.array([0, 0, 1, 1]), np.array([1, 0, 0]), seed=0)]
    [[1, 2], [0]]

    Args:
        parts: indices of each client's training examples; together all examples.
        train_labels: (training examples,).
        test_labels: (test examples,).
        seed: the data's seed.

    Returns:
        Sorted indices of each client's test examples, int64.
    """
    num_clients = len(parts)
    trained_by = np.empty(len(train_labels), np.int64)
    for client, part in enumerate(parts):
        trained_by[part] = client
    tested_by = np.empty(len(test_labels), np.int64)
    for label in np.unique(test_labels).tolist():
        weights = np.bincount(trained_by[train_labels == label], minlength=num_clients).astype(np.float64)
        examples = np.flatnonzero(test_labels == label)
        counts = apportion(
            len(examples),
            weights if weights.any() else np.ones(num_clients),
            permutation(key(seed, "test/priority", label), num_clients),
        )
        order = permutation(key(seed, "test/examples", label), len(examples))
        tested_by[examples[order]] = np.repeat(np.arange(num_clients), counts)
    by_client = np.argsort(tested_by, kind="stable").astype(np.int64, copy=False)
    return np.split(by_client, np.cumsum(np.bincount(tested_by, minlength=num_clients))[:-1])
