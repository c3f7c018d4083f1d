"""A study finds the same however fast the seeds of its trials advance, on a simulated Ray; the training is real."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
import tuning
from tests.support.training_ray import training
from tuning.in_order import InOrder, SeedNews

Make = Callable[..., raysim.Experiment]

SPACE = {"client.optimizer.lr": {"log": [1e-4, 3.0]}}


def exploding(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that is no number once the model has moved far."""
    loss = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    return loss * math.nan if outputs.abs().max() > 1e3 else loss


@pytest.mark.parametrize(
    "keys",
    [
        {"budget": {"rounds": 60}, "pruner": {"name": "median", "startup": 1}},
        {"trials": 6, "pruner": {"name": "halving", "min_rounds": 1, "factor": 2}},
        {"trials": 6, "space": {"client.optimizer.lr": {"grid": [0.01, 0.1, 1.0, 3e2, 1e3, 1e6]}}},
    ],
    ids=["budget", "halving", "diverging"],
)
@pytest.mark.parametrize("slow", [0, 1])
def test_seeds_of_unequal_speed_change_no_figure(
    slow: int,
    keys: dict[str, Any],
    small: raysim.FederatedDataset,
    tuned: Make,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = {"space": SPACE, "sampler": {"name": "random", "seed": 2}} | keys
    exp = tuned(seeds=2, final=0, concurrent=1, **keys).changed(["rounds=8", "evaluation.every=1"])
    here = tuning.tune(exp, dataset=small, loss=exploding, path=tmp_path / "here")
    assert {"pruned", "diverged"} & here.counts.keys()
    with training(monkeypatch, {"here": 2}) as ray:
        # A trial's two runs have numbers that follow each other.
        ray.seconds = lambda worker, unit: 4.0 if min(unit.plans) % 2 == slow else 1.0
        there = tuning.tune(exp.changed(["engine.workers=2"]), dataset=small, loss=exploding, path=tmp_path / "there")
    told = [found.trials.drop_columns(["seconds"]).to_pylist() for found in (here, there)]
    # Not a number is equal to none, also in its text.
    assert repr(told[1]) == repr(told[0])


def report(run: int, rounds: range, **end: Any) -> raysim.Report:
    """A report of so many rounds."""
    return raysim.Report(run, Path(), tuple({"round": index, "loss": 1.0} for index in rounds), **end)


def told(news: list[SeedNews]) -> list[tuple[int, list[int]]]:
    """The place and the rounds of each."""
    return [(one.place, [row["round"] for row in one.rows]) for one in news]


def test_segments_of_seeds_take_turns(tuned: Make) -> None:
    run = tuned().changed(["evaluation.every=2", "checkpoint.every=3"])
    reports = InOrder([run, run])
    reports.add(0, report(0, range(4), finished=True))
    assert told(list(reports.take())) == [(0, [0, 1])]
    assert reports.num_waiting == 2
    # A part of a segment that takes long.
    reports.add(1, report(1, range(1)))
    assert told(list(reports.take())) == []
    reports.add(1, report(1, range(1, 3)))
    assert told(list(reports.take())) == [(1, [0, 1]), (0, [2]), (1, [2]), (0, [3])]
    lost = raysim.ClientError("its loss")
    reports.add(1, report(1, range(0), error=lost))
    (last,) = reports.take()
    assert (last.place, last.error) == (1, lost)


def test_a_divergence_does_not_wait_for_the_end_of_its_segment(tuned: Make) -> None:
    run = tuned().changed(["evaluation.every=4"])
    reports = InOrder([run])
    reports.add(0, raysim.Report(0, Path(), ({"round": 0, "loss": float("nan")},)))
    assert told(list(reports.take())) == [(0, [0])]


@pytest.mark.parametrize("parts", [(4,), (2, 2), (3, 1), (1, 1, 1, 1)])
def test_what_a_divergence_counts_does_not_depend_on_the_parts_of_its_segment(
    parts: tuple[int, ...], tuned: Make
) -> None:
    reports = InOrder([tuned().changed(["evaluation.every=4"])])
    rows = [{"round": index, "loss": float("nan") if index == 1 else 1.0} for index in range(4)]
    for part in parts:
        reports.add(0, raysim.Report(0, Path(), tuple(rows[:part])))
        del rows[:part]
    assert told(list(reports.take())) == [(0, [0, 1]), (0, [2, 3])]
