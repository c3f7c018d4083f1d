"""Clipping and zeroing: what enters the mean, and how the levels follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import raysim
from raysim.server.clipping import Limits, follow, scale

Make = Callable[..., raysim.Experiment]


def test_updates_beyond_the_level_are_scaled_to_it() -> None:
    assert scale(np.array([0.0, 1.0, 2.0, 4.0, 8.0]), 2.0).tolist() == [1.0, 1.0, 1.0, 0.5, 0.25]


def test_a_level_that_too_many_are_within_falls() -> None:
    assert follow(2.0, fraction_within=1.0, quantile=0.5, lr=math.log(4)) == pytest.approx(1.0)
    assert follow(2.0, fraction_within=0.0, quantile=0.5, lr=math.log(4)) == pytest.approx(4.0)
    assert follow(2.0, fraction_within=0.5, quantile=0.5, lr=3.0) == 2.0


def test_a_wild_update_is_zeroed_and_counts_as_within_the_clip_level() -> None:
    limits = Limits(clip=1.0, zeroing=2.0)  # lets coordinates up to 5 through
    norms = np.array([5.0, 5.1, 2.0])
    scales, within_clip, within_zeroing = limits.judge(torch.tensor([[5.0, 0.0], [5.1, 0.0], [2.0, 0.0]]), norms)
    assert scales.tolist() == [0.2, 0.0, 0.5]
    assert within_clip.tolist() == [False, True, False]
    assert within_zeroing.tolist() == [False, False, True]


def test_without_levels_every_update_enters_as_it_is() -> None:
    scales, within_clip, within_zeroing = Limits().judge(torch.ones(2, 3), np.array([0.0, np.inf]))
    assert scales.tolist() == [1.0, 1.0]
    assert within_clip.all()
    assert within_zeroing.all()


def run(experiment: Make, updates: list[float], rounds: int = 1, **server: Any) -> list[Any]:
    """Rounds of one weight w with clients whose single full-batch step moves it by the given updates, whatever w is.

    loss = -u * output at x = 1 has gradient -u; client i has i + 1 examples.
    """
    made = {str(i): (np.ones((i + 1, 1)), np.full(i + 1, u)) for i, u in enumerate(updates)}
    exp = experiment(
        rounds=rounds,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
        cohort={"size": len(updates)},
        server=server,
        engine={"workers": 0, "dtype": "float64"},
    )
    data = raysim.FederatedDataset.from_clients(train=made)
    return list(
        raysim.rounds(exp, dataset=data, model=one_weight, loss=pushing_loss, params={"weight": np.zeros((1, 1))})
    )


def one_weight() -> nn.Module:
    return nn.Linear(1, 1, bias=False)


def pushing_loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return -targets * outputs[:, 0]


def test_fixed_clipping_acts_on_every_client_before_the_mean(experiment: Make) -> None:
    (done,) = run(experiment, [4.0, -1.0, 3.0], clip={"fixed": 2.0})
    assert done.params["weight"].item() == pytest.approx((1 * 2 + 2 * -1 + 3 * 2) / 6)
    assert done.metrics["clip_level"] == 2.0
    assert done.metrics["clipped_fraction"] == pytest.approx(2 / 3)
    assert done.metrics["mean_update_norm"] == pytest.approx(8 / 3)
    assert done.metrics["pseudo_gradient_norm"] == pytest.approx(1.0)


def test_the_adaptive_level_follows_the_unweighted_fraction_before_clipping(experiment: Make) -> None:
    clip = {"initial": 2.0, "quantile": 0.5, "lr": 1.0}
    levels = [done.metrics["clip_level"] for done in run(experiment, [4.0, -1.0, 3.0], rounds=3, clip=clip)]
    # A third is within 2, then within 2 exp(1/6) = 2.36, then within 2.79.
    assert levels == pytest.approx([2.0, 2 * math.exp(1 / 6), 2 * math.exp(2 / 6)])


def test_a_level_on_the_norm_itself_counts_as_within(experiment: Make) -> None:
    (done,) = run(experiment, [2.0, -2.0], clip={"fixed": 2.0})
    assert done.metrics["clipped_fraction"] == 0


def test_a_zeroed_client_keeps_its_weight(experiment: Make) -> None:
    (done,) = run(experiment, [100.0, 1.0], zeroing={"initial": 3.0})
    assert done.params["weight"].item() == pytest.approx((1 * 0 + 2 * 1) / 3)
    assert (done.metrics["zeroed_fraction"], done.metrics["zeroing_level"]) == (0.5, 3.0)


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        ({"fixed": 1, "quantile": 0.5}, r"unknown key 'server.clip.quantile': \[server.clip\] takes fixed"),
        ({"fixed": 0}, "server.clip.fixed must be greater than or equal to 1e-12, but got 0"),
        (
            {"quantil": 0.5},
            r"unknown key 'server.clip.quantil': .*takes initial, quantile, lr \(did you mean 'quantile'",
        ),
        ({"quantile": 2}, "server.clip.quantile must be less than or equal to 1, but got 2"),
    ],
)
def test_what_is_wrong_with_a_clip_is_named(clip: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(server={"clip": clip})
