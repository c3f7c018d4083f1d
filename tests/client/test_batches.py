"""Local batches: which examples in which local step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from raysim.client import batches
from raysim.client.batches import Batches, draw
from raysim.client.section import ClientSection
from raysim.errors import ExperimentError


def slices(batches: Batches) -> list[list[int]]:
    cuts = zip(batches.bounds, batches.bounds[1:], strict=False)
    return [batches.order[start:stop].tolist() for start, stop in cuts]


def drawn(num_examples: int, *, round_index: int = 0, client: int = 0, **keys: Any) -> list[list[int]]:
    (batches,) = draw(ClientSection(**keys), [num_examples], seed=1, round_index=round_index, clients=[client])
    return slices(batches)


def test_the_stored_order_is_cut_into_slices_and_the_short_one_kept() -> None:
    assert drawn(5, batch_size=2, shuffle=False) == [[0, 1], [2, 3], [4]]


def test_every_epoch_is_a_fresh_permutation() -> None:
    steps = drawn(20, batch_size=5, epochs=2)
    first, second = ([example for step in half for example in step] for half in (steps[:4], steps[4:]))
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_rounds_and_clients_have_permutations_of_their_own() -> None:
    base = drawn(20, batch_size=5)
    assert drawn(20, batch_size=5) == base
    assert drawn(20, batch_size=5, round_index=1) != base
    assert drawn(20, batch_size=5, client=1) != base


def test_a_full_batch_is_every_example_once() -> None:
    assert drawn(3, batch_size="full", epochs=2) == [[0, 1, 2], [0, 1, 2]]


def test_local_steps_repeat_epochs_and_cut_them() -> None:
    assert drawn(3, batch_size=2, local_steps=3, shuffle=False) == [[0, 1], [2], [0, 1]]


def test_a_short_batch_is_filled_from_the_clients_own_examples() -> None:
    steps = drawn(5, batch_size=4, fill_last_batch=True, shuffle=False)
    assert [len(step) for step in steps] == [4, 4]
    assert steps[0] == [0, 1, 2, 3]
    assert steps[1][0] == 4
    assert set(steps[1]) <= set(range(5))
    assert [len(step) for step in drawn(2, batch_size=4, fill_last_batch=True)] == [4]


def test_a_short_last_batch_is_left_out_of_every_epoch() -> None:
    assert drawn(5, batch_size=2, drop_last=True, shuffle=False, epochs=2) == [[0, 1], [2, 3]] * 2
    assert drawn(5, batch_size=2, drop_last=True, shuffle=False, local_steps=3) == [[0, 1], [2, 3], [0, 1]]
    left_out = {*range(5)} - {example for step in drawn(5, batch_size=2, drop_last=True) for example in step}
    assert len(left_out) == 1
    assert drawn(4, batch_size=2, drop_last=True, shuffle=False) == [[0, 1], [2, 3]]


def test_a_client_with_less_than_a_batch_keeps_it() -> None:
    assert drawn(3, batch_size=4, drop_last=True, shuffle=False) == [[0, 1, 2]]
    assert drawn(3, batch_size="full", drop_last=True, shuffle=False) == [[0, 1, 2]]


def test_a_short_batch_is_not_both_filled_and_left_out() -> None:
    with pytest.raises(
        ValidationError, match=r"fill_last_batch keeps .* drop_last leaves it out, but got true for both: remove one"
    ):
        ClientSection(fill_last_batch=True, drop_last=True)


@pytest.mark.parametrize(
    ("keys", "steps"),
    [
        ({"batch_size": 4}, 3),
        ({"batch_size": 4, "epochs": 5}, 15),
        ({"batch_size": "full"}, 1),
        ({"local_steps": 7}, 7),
        ({"batch_size": 4, "epochs": 5, "drop_last": True}, 10),
    ],
)
def test_the_number_of_local_steps(keys: dict[str, Any], steps: int) -> None:
    assert len(drawn(10, **keys)) == steps


def test_order_is_int64_for_torch() -> None:
    (batches,) = draw(ClientSection(), [3], 0, 0, [0])
    assert batches.order.dtype == np.int64


@pytest.mark.parametrize(
    "keys",
    [
        {"local_steps": 3, "fill_last_batch": True},
        {"local_steps": 4, "fill_last_batch": True, "shuffle": False},
        {"epochs": 2, "max_local_steps": 3, "fill_last_batch": True},
        {"local_steps": 3, "drop_last": True},
        {"epochs": 2},
    ],
    ids=str,
)
def test_a_client_alone_has_the_batches_that_it_has_among_others(keys: dict[str, Any]) -> None:
    """Of three examples an epoch's fill is as long as what two epochs lack of three."""
    section, sizes = ClientSection(batch_size=2, **keys), [3, 5, 2, 1, 8]
    together = draw(section, sizes, seed=0, round_index=0, clients=range(5))
    alone = [draw(section, [size], seed=0, round_index=0, clients=[client])[0] for client, size in enumerate(sizes)]
    assert [slices(batches) for batches in alone] == [slices(batches) for batches in together]


def test_what_a_client_gets_does_not_depend_on_the_others() -> None:
    section = ClientSection(batch_size=4, epochs=2, fill_last_batch=True)
    together = draw(section, [10, 3, 25], 1, 0, [7, 8, 9])
    for size, client, drawn_together in zip([10, 3, 25], [7, 8, 9], together, strict=True):
        (alone,) = draw(section, [size], 1, 0, [client])
        assert slices(alone) == slices(drawn_together)


@pytest.mark.parametrize(
    ("sizes", "keys", "said"),
    [
        (
            [60],
            {"epochs": 10},
            r"a client processes 600 examples in round 3, .*: take less local work and more rounds\.$",
        ),
        ([60], {"local_steps": 200, "batch_size": 2}, "a client processes 420 examples"),
        ([1], {"local_steps": 2, "batch_size": 300, "fill_last_batch": True}, "a client processes 600 examples"),
        ([60, 40], {"epochs": 3}, r"2 clients of a chunk process 300 examples .* or a smaller engine\.chunk_size\.$"),
    ],
)
def test_more_examples_than_can_be_ordered_at_once_are_refused(
    sizes: list[int], keys: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MOST_ORDERED", 250)
    with pytest.raises(ExperimentError, match=said):
        draw(ClientSection(**keys), sizes, seed=1, round_index=3, clients=list(range(len(sizes))))


def test_a_million_epochs_are_refused_before_they_are_ordered() -> None:
    with pytest.raises(ExperimentError, match="a client processes 1,000,000,000 examples"):
        draw(ClientSection(epochs=10**6), [1000], seed=1, round_index=0, clients=[0])
    # A bound of the steps is one of the epochs.
    assert len(draw(ClientSection(epochs=10**6, max_local_steps=3), [1000], 1, 0, [0]).order) == 60
