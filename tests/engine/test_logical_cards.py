"""Cards that are only said to be there: Ray counts, places and hides them as it does real ones."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, cast
from unittest import mock

import pytest
import ray
import torch

import raysim
from raysim import card
from raysim.engine import numerics
from raysim.engine.on_ray.cluster import cluster, handles
from raysim.engine.on_ray.executor import on_ray
from raysim.engine.on_ray.executor.client_pool import ClientPool
from raysim.engine.plan.resolve import resolve
from raysim.errors import ResourceError
from raysim.experiment.experiment import EngineSection

Make = Callable[..., raysim.Experiment]

CARDS = 2


class Seen(NamedTuple):
    """What a worker finds: visible cards, as CUDA reads them; Ray's numbers of them; limits of memory; its node."""

    visible: str | None
    ids: list[Any]
    limits: list[float]
    node: str


class Looking(ClientPool):
    """A pool that says what it found. It takes the card for one, but trains on the CPU."""

    def __init__(self, sent: Any, index: int, gpus: float) -> None:
        self._limits: list[float] = []
        with (
            mock.patch.object(card, "is_there", return_value=True),
            mock.patch.object(card, "limit_memory", self._limits.append),
            mock.patch.object(numerics, "choose_device", return_value=torch.device("cpu")),
        ):
            super().__init__(sent, index, gpus)

    def seen(self) -> Seen:
        """See there."""
        node = ray.get_runtime_context().get_node_id()
        return Seen(os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_gpu_ids(), self._limits, node)


@pytest.fixture(scope="module")
def cards(ray_cluster: Any) -> Iterator[str]:
    """A node with two cards; returns its identity in Ray."""
    added = ray_cluster.add_node(num_cpus=2, num_gpus=CARDS)
    yield added.node_id
    ray_cluster.remove_node(added)


@pytest.fixture
def look(
    cards: str, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., list[Seen]]:
    """Start the workers of an engine, and return what each one finds."""
    monkeypatch.setattr(on_ray, "ClientPool", Looking)

    def started(**engine: Any) -> list[Seen]:
        plan = resolve(experiment(engine={"cpus_per_worker": 0.25, **engine}), dataset=dataset)
        placement = cluster.place(plan.experiment.engine)
        pools = on_ray.start_pools(plan, placement)
        try:
            return ray.get([cast(Any, pool).seen.remote() for pool in pools.actors])
        finally:
            for pool in pools.actors:
                handles.kill(pool)
            while ray.available_resources().get("GPU", 0.0) < CARDS:
                time.sleep(0.05)

    return started


@pytest.mark.ray
def test_a_worker_with_a_whole_card_sees_that_one_alone(look: Callable[..., list[Seen]], cards: str) -> None:
    found = look(workers=2)
    assert {seen.node for seen in found} == {cards}
    assert sorted(seen.visible or "" for seen in found) == ["0", "1"]
    # Nobody shares it, so nobody is limited.
    assert [seen.limits for seen in found] == [[], []]


@pytest.mark.ray
def test_workers_that_share_cards_are_limited_to_their_share(look: Callable[..., list[Seen]], cards: str) -> None:
    found = look(workers=3)
    assert {seen.node for seen in found} == {cards}
    assert sorted(Counter(seen.visible for seen in found).values()) == [1, 2]
    assert [seen.limits for seen in found] == [[0.5]] * 3


@pytest.mark.ray
def test_a_worker_without_a_share_takes_no_card(look: Callable[..., list[Seen]]) -> None:
    (found,) = look(workers=1, gpus_per_worker=0)
    assert found.ids == []
    assert found.limits == []
    with mock.patch.object(card, "is_there", return_value=True):
        assert numerics.choose_device(0) == torch.device("cpu")


@pytest.mark.parametrize(
    ("gpus", "each", "workers"), [(2, 0.5, 4), (2, 0.6, 2), (3, 2, 1), (0, 1, 0), (1.5, 0.5, 3), (0.3, 0.25, 1)]
)
def test_a_share_is_never_of_two_cards(gpus: float, each: float, workers: int) -> None:
    assert cluster.on_cards(gpus, each) == workers


@pytest.mark.ray
@pytest.mark.parametrize(
    ("engine", "workers", "gpus"),
    [
        # "auto": a card each, and what is left over when there are more workers than cards.
        ({"workers": "auto"}, 2, 1.0),
        ({"workers": 1}, 1, 1.0),
        ({"workers": 3}, 3, 0.5),
        ({"workers": "auto", "gpus_per_worker": 0.25}, 8, 0.25),
        # Of a card that 0.6 is taken of, 0.4 is left for nobody.
        ({"workers": "auto", "gpus_per_worker": 0.6}, 2, 0.6),
    ],
    ids=str,
)
def test_workers_and_shares_follow_from_the_cards(
    cards: str, engine: dict[str, Any], workers: int, gpus: float
) -> None:
    placed = cluster.place(EngineSection.model_validate({"cpus_per_worker": 0.25, **engine}))
    assert (placed.workers, placed.gpus) == (workers, gpus)


@pytest.mark.ray
@pytest.mark.parametrize("share", [1, 0.6])
def test_shares_that_no_card_has_are_refused_at_once(cards: str, share: float) -> None:
    engine = {"workers": 3, "cpus_per_worker": 0.25, "gpus_per_worker": share}
    with pytest.raises(ResourceError, match=rf"{share} GPU, but Ray has .* and 2 GPU"):
        cluster.place(EngineSection.model_validate(engine))


@pytest.mark.ray
def test_a_run_on_shares_of_cards_has_the_bits_of_one_process(
    cards: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    here = list(raysim.rounds(experiment(rounds=2), dataset=dataset))[-1].params
    engine = {"workers": 2, "cpus_per_worker": 0.25, "gpus_per_worker": 0.5}
    there = list(raysim.rounds(experiment(rounds=2, engine=engine), dataset=dataset))[-1].params
    assert all(torch.equal(here[name], there[name]) for name in here)
