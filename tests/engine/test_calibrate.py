"""Calibration: what a round is estimated to take, and what is chosen and written down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds.calibrate import CALL_S, Timing, best, calibrate, estimate
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


@pytest.mark.parametrize(
    ("chunk_s", "workers", "expected"),
    [
        ([1.0, 1.0, 1.0, 1.0], 1, 4.0),
        ([1.0, 1.0, 1.0, 1.0], 2, 2.0),
        ([4.0], 2, 4.0),
        ([3.0, 2.0, 2.0, 1.0], 2, 4.0),
    ],
)
def test_a_round_is_its_chunks_longest_first(chunk_s: list[float], workers: int, expected: float) -> None:
    calls = {4.0: len(chunk_s) / workers, 2.0: 2}[expected] if len(chunk_s) > 1 else 1
    assert estimate(chunk_s, workers) == pytest.approx(expected + calls * CALL_S)


def test_of_equals_the_smallest_chunks_are_chosen() -> None:
    timings = [Timing("stacked", 64, (1.0,)), Timing("stacked", 16, (1.04,)), Timing("fused", 4, (1.2,))]
    assert best(timings) == timings[1]


def test_of_equals_the_chunks_that_suit_any_cohort_are_chosen() -> None:
    timings = [Timing("stacked", 4, (1.0,)), Timing("stacked", "auto", (1.04,)), Timing("vmap", "auto", (1.2,))]
    assert best(timings) == timings[1]


def test_every_way_that_the_module_allows_is_measured(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    left_out: list[str] = []
    plan = resolve(experiment(cohort={"size": 10}), dataset=dataset)
    timings = calibrate(plan, workers=2, repeats=1, tell=left_out.append)
    assert {timing.trainer for timing in timings} == {
        *("one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled")
    }
    assert {timing.chunk_size for timing in timings if timing.trainer == "stacked"} == {"auto", 4, 8, 10}
    assert left_out == []


def test_what_is_left_out_is_said_with_the_reason(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    left_out: list[str] = []

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.norm = nn.Linear(5, 3), nn.BatchNorm1d(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.norm(self.inner(x))

    plan = resolve(experiment(model=None, client={"batch_size": "full"}), dataset=dataset, model=Own)
    timings = calibrate(plan, workers=1, repeats=1, tell=left_out.append)
    assert {timing.trainer for timing in timings} == {"one_by_one"}
    assert len(left_out) == 6
    assert any("buffers" in said for said in left_out)


class Looks(nn.Module):
    """Its way through depends on its values, which vmap does not allow."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return made if made.sum() > 0 else -made


def test_a_module_that_vmap_cannot_take_is_measured_otherwise(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    left_out: list[str] = []
    timings = calibrate(
        resolve(experiment(model=None), dataset=dataset, model=Looks), workers=1, repeats=1, tell=left_out.append
    )
    assert {timing.trainer for timing in timings} == {"one_by_one"}
    assert any("engine.trainer = 'vmap' cannot be used" in said and "control flow" in said for said in left_out)


def test_a_module_that_vmap_cannot_take_is_refused_before_the_first_round(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    with pytest.raises(raysim.ModelError, match=r"'vmap' cannot be used.*control flow.*'one_by_one'"):
        resolve(experiment(model=None, engine={"workers": 0, "trainer": "vmap"}), dataset=dataset, model=Looks)


class WithNeighbour(Looks):
    """The outputs of an example depend on the others of its batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return made + torch.roll(made, 1, 0)


class TanhOfOne(Looks):
    """A batch of one example is another thing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.inner(x)
        return made.tanh() if len(x) == 1 else made


@pytest.mark.parametrize("module", [WithNeighbour, TanhOfOne])
def test_a_module_that_sees_its_batch_is_refused_by_vmap_whatever_the_first_client_has(
    module: type[nn.Module], experiment: Make
) -> None:
    """Batches are filled up there; copies of the only example of the first client would not show it."""
    dataset = raysim.FederatedDataset.from_clients(make_clients([1, 1, 5, 7, 9, 3, 4, 8]))
    with pytest.raises(raysim.ModelError, match=r"'vmap' cannot be used: with a client axis .* other gradients"):
        resolve(experiment(model=None, engine={"workers": 0, "trainer": "vmap"}), dataset=dataset, model=module)


def test_a_module_that_fails_on_one_example_is_refused_by_vmap(experiment: Make) -> None:
    dataset = raysim.FederatedDataset.from_clients(make_clients([5] * 8))

    def module() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3, track_running_stats=False))

    with pytest.raises(raysim.ModelError, match=r"'vmap' cannot be used: .*one_by_one"):
        resolve(experiment(model=None, engine={"workers": 0, "trainer": "vmap"}), dataset=dataset, model=module)
