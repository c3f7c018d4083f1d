"""Figures that a part says of itself are columns beside raysim's: numbers, under names of their own."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim.config import columns
from raysim.server import ServerOptimizer, Stepped

Make = Callable[..., raysim.Experiment]


def saying(figures: Any) -> Any:
    def step(params: Tensor, descent: Any, state: Any) -> Stepped:
        return Stepped(params - descent.lr * descent.g, {}, figures)

    return lambda section: ServerOptimizer(lambda params: {}, step)


def correcting(figures: Any) -> Any:
    server = raysim.ServerHalf(figures=lambda params, layout: figures)
    return lambda section: raysim.Correction(raysim.ClientHalf(), server)


PRIVATE = {
    "server.clip": {"fixed": 0.5},
    "server.weighting": "uniform",
    "server.privacy": {"name": "gaussian", "noise_multiplier": 1.0},
}

PARTS = {"server_optimizer": saying, "correction": correcting}


@pytest.mark.parametrize("keyword", PARTS)
@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"loss": -1.0}, r"names figures as columns of raysim's are named, loss"),
        ({"clients": 99, "pseudo_gradient_norm": 0.0}, r"are named, clients, pseudo_gradient_norm"),
        ({"accuracy": 0.0}, r"are named, accuracy"),
        ({"params_norm": 0.0}, r"are named, params_norm"),
        ({"round": 7.0}, r"are named, round"),
        ({"rejected_clients": 1}, r"are named, rejected_clients"),
        ({"wall_time_s": 0.0}, r"are named, wall_time_s"),
        ({"eval/test/loss": 0.0}, r"are named, eval/test/loss"),
        ({"x": "abc"}, r"must return figures .* but 'x' is 'abc'"),
        ({"x": [1.0]}, r"but 'x' is \[1\.0\]"),
        ({"x": None}, r"but 'x' is None"),
        ({"x": torch.ones(2)}, r"but 'x' is torch\.float32 of shape \(2,\)"),
        ({"x": 1j}, r"but 'x' is 1j"),
        ({"x": np.ones(1)}, r"but 'x' is "),
        ({"x": np.array(1j)}, r"but 'x' is "),
        ({"x": np.datetime64(1, "s")}, r"but 'x' is "),
        ({"x": np.timedelta64(1, "s")}, r"but 'x' is "),
        ({"x": np.ma.masked}, r"but 'x' is "),
        ({"x": 10**400}, r"has one beyond them"),
        ({3: 1.0}, r"but a name is 3"),
        ({"": 1.0}, r"but a name is ''"),
        ({"\ud800": 1.0}, r"but a name is '\\ud800'"),
        ([("x", 1.0)], r"as a mapping from names to numbers, but returned \[\('x', 1\.0\)\]"),
    ],
)
def test_what_is_no_figure_of_its_own_is_refused(
    keyword: str, figures: Any, said: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        next(raysim.rounds(experiment(evaluation={"every": 1}), dataset=dataset, **{keyword: PARTS[keyword](figures)}))


@pytest.mark.parametrize("keyword", PARTS)
@pytest.mark.parametrize(
    "name",
    ["wall_time_s", "round", "rejected_clients", "catastrophic_cohort", "clients", "bytes_up", "seconds/mine"],
)
def test_a_name_that_every_run_has_is_refused_before_the_first_round(
    keyword: str, name: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    said = rf"^{keyword}=: .* names figures as columns of raysim's are named, {name}: give"
    with pytest.raises(raysim.ExperimentError, match=said):
        raysim.rounds(experiment(), dataset=dataset, **{keyword: PARTS[keyword]({name: 1.0})})


def test_the_names_that_every_run_has_are_in_every_run(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    metrics = next(raysim.rounds(experiment(server={"clip": {"fixed": 1.0}}), dataset=dataset)).metrics
    assert {*columns.OF_THE_SERVER, *columns.COSTS} - {"zeroing_level"} <= set(metrics)
    assert any(name.startswith(columns.SECONDS) for name in metrics)
    assert any(name.startswith(columns.TRAFFIC) for name in metrics)


@pytest.mark.parametrize(
    ("keyword", "name", "keys"),
    [
        ("server_optimizer", "compression_error", {"client.compression": {"name": "top_k", "fraction": 0.5}}),
        ("server_optimizer", "asked", {"cohort.sampler": {"name": "power_of_choice", "candidates": 9}}),
        ("server_optimizer", "epsilon", PRIVATE),
        ("correction", "asked", {"cohort.sampler": {"name": "power_of_choice", "candidates": 9}}),
    ],
)
def test_no_figure_of_its_own_is_lost_to_one_that_is_added_later(
    keyword: str, name: str, keys: Any, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment().changed(keys)
    assert name in next(raysim.rounds(exp, dataset=dataset)).metrics
    with pytest.raises(raysim.ExperimentError, match=rf"names figures as columns of raysim's are named, {name}: give"):
        next(raysim.rounds(exp, dataset=dataset, **{keyword: PARTS[keyword]({name: -7.0})}))


@pytest.mark.parametrize("keyword", PARTS)
def test_numbers_of_all_kinds_are_columns(
    keyword: str, dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    figures = {"own/a": 1, "own/b": np.float32(0.5), "own/c": torch.tensor(3), "own/d": True, "own/e": float("nan")}
    figures |= {"own/f": np.bool_(True), "own/g": np.array(2.0), "own/h": torch.tensor(4.0, requires_grad=True)}
    figures |= {"own/i": Fraction(1, 4), "own/j": np.array(3), "own/k": torch.tensor(True), "own/l": np.float16(0.5)}
    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", **{keyword: PARTS[keyword](figures)})
    read = raysim.read(tmp_path / "run")
    expected = {"a": 1, "b": 0.5, "c": 3, "d": 1, "f": 1, "g": 2, "h": 4, "i": 0.25, "j": 3, "k": 1, "l": 0.5}
    for name, value in expected.items():
        assert result.rounds[f"own/{name}"].to_pylist() == read.rounds[f"own/{name}"].to_pylist() == [value] * 4
    assert np.isnan(read.rounds["own/e"].to_pylist()).all()
