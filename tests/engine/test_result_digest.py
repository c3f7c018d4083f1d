"""A result's checksum: of its bits, shapes and kinds, and not of addresses."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from raysim.engine.worker.result_digest import digest


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (torch.zeros(2), -torch.zeros(2)),
        (torch.zeros(2), torch.zeros(2, dtype=torch.float64)),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ((torch.ones(1), torch.ones(2)), (torch.ones(2), torch.ones(1))),
        ({1: 0.5}, {2: 0.5}),
        (0.1 + 0.2, 0.3),
        (((), (1,)), ((1,), ())),
    ],
)
def test_a_digest_tells_bits_shapes_and_kinds(one: object, other: object) -> None:
    assert digest(one) == digest(one)
    assert digest(one) != digest(other)


class Listed:
    """Another one."""


class Held:
    """An object without a `repr` of its own, which holds itself."""

    def __init__(self, *held: object) -> None:
        self.held = held
        self.itself = self


@pytest.mark.parametrize(
    ("make", "other"),
    [
        (lambda: Held(1), Listed()),
        (lambda: [Held(3), 1.0], [Held(3), 2.0]),
        (lambda: {1, 2, "three"}, {1, 2}),
        (lambda: np.array([Held(1), None]), Held(1)),
        (lambda: threading.Lock(), threading.Event()),
    ],
    ids=["object", "list", "set", "array", "lock"],
)
def test_a_digest_of_an_object_is_of_its_kind_and_not_of_its_address(make: Callable[[], object], other: object) -> None:
    one, same = make(), make()
    assert digest(one) == digest(same)
    assert digest(one) != digest(other)


def test_a_digest_of_nothing_and_of_one_number() -> None:
    assert digest(torch.zeros(0)) != digest(torch.zeros(()))
    assert digest(float("nan")) == digest(float("nan"))
