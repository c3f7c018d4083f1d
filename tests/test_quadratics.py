"""Quadratic functions as data, of Wang et al. (2021), section 4.3.1: FedAvg tends to where its equations say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from torch import nn

import raysim
import tuning
from raysim.data import FederatedDataset
from raysim.data.prepare import prepare
from raysim.data.sources.quadratic import Quadratic, drawn
from tuning import protocol

FILE = Path(__file__).parents[1] / "configs" / "field_guide" / "quadratic.toml"
SMALL = (
    "engine.workers=0",
    "data.clients=6",
    "cohort.size=6",
    "data.dimension=3",
    "data.convexity=0.5",
    "engine.dtype=float64",
)
SEED = 5


def made(**settings: object) -> FederatedDataset:
    return prepare(Quadratic.model_validate({"clients": 6, "dimension": 3} | settings), SEED)


def functions(data: FederatedDataset) -> tuple[np.ndarray, np.ndarray]:
    """The clients' A_i and c_i, from their examples alone."""
    examples = [data.train.client(k) for k in range(len(data.train))]
    curvatures = np.stack([2 / len(y) * x.T @ x for x, y in examples])
    return curvatures, np.stack([np.linalg.solve(x, y) for x, y in examples])


def test_examples_are_the_functions() -> None:
    data = made(smoothness=2.0, convexity=0.5, spread=3.0)
    curvatures, centres = functions(data)
    for k, (a, c) in enumerate(zip(curvatures, centres, strict=True)):
        np.testing.assert_allclose(np.linalg.eigvalsh(a), [0.5, 1.0, 2.0])
        rows, targets = data.train.client(k)
        np.testing.assert_allclose(rows, rows.T)
        x = np.array([1.0, -2.0, 0.5])
        np.testing.assert_allclose(np.mean((rows @ x - targets) ** 2), (x - c) @ a @ (x - c) / 2)
    assert len(np.unique(curvatures[:, 0, 0])) == len(np.unique(centres)) / 3 == 6


def test_the_optimum_is_that_of_least_squares_over_all_examples() -> None:
    data = made()
    assert data.optimum is not None
    rows, targets = (np.concatenate(each) for each in zip(*map(data.train.client, range(6)), strict=True))
    best = data.optimum()
    np.testing.assert_allclose(best.point, np.linalg.lstsq(rows, targets)[0])
    at = np.array([1.0, 2.0, 3.0])
    worse, least = (np.mean((rows @ x - targets) ** 2) for x in (at, best.point))
    np.testing.assert_allclose(best.excess(at), worse - least)


def test_draws_are_uniform_and_independent_of_the_population() -> None:
    section = Quadratic(clients=1, dimension=2, spread=4.0)
    bases, centres = zip(*(drawn(section, SEED, k) for k in range(2000)), strict=True)
    # Of a uniform rotation or reflection of the plane, every entry is the cosine of a uniform angle.
    entries = np.sort(np.reshape(bases, (-1, 4)), axis=0)
    uniform = -np.cos(np.pi * (np.arange(2000) + 0.5) / 2000)
    assert np.abs(entries - uniform[:, None]).max() < 0.15
    assert abs(np.std(centres) / 4 - 1) < 0.05
    np.testing.assert_array_equal(made().train.client(4)[0], made(clients=1000).train.client(4)[0])


def test_other_populations_have_no_such_optimum() -> None:
    held = made(holdout=0.5)
    assert held.optimum is None
    assert held.validation is not None
    assert len(held.train) == len(held.validation) == 3


def test_a_study_holds_clients_out_and_concludes_with_all() -> None:
    experiment = raysim.load(FILE, set=[*SMALL, "evaluation.split=train"])
    section = tuning.TuningSection.checked({"objective": {"name": "loss"}, "space": {"client.optimizer.lr": [0.1]}})
    of_trials = protocol.evaluated_on_validation(experiment, section, None)
    assert of_trials.data.holdout > 0  # type: ignore[union-attr]
    assert protocol.final_experiment(of_trials, {}).data == experiment.data


def test_convexity_is_at_most_smoothness() -> None:
    with pytest.raises(ValueError, match="convexity = 2 and smoothness = 1"):
        made(convexity=2.0)


@pytest.mark.parametrize("steps", [1, 20])
def test_fedavg_tends_to_its_fixed_point(steps: int) -> None:
    experiment = raysim.load(FILE, set=[*SMALL, f"client.local_steps={steps}", "rounds=100"])
    *_, last = raysim.rounds(experiment)
    data = prepare(experiment.data, experiment.seed)  # type: ignore[arg-type]
    curvatures, centres = functions(data)
    # A client goes from x to c + M (x - c) with M = (I - lr A)^K; the mean of these is x at x = fixed.
    lr = experiment.client.optimizer.lr
    left = np.eye(3) - [np.linalg.matrix_power(np.eye(3) - lr * a, steps) for a in curvatures]
    fixed = np.linalg.solve(left.sum(0), np.einsum("kij,kj->i", left, centres))
    np.testing.assert_allclose(last.params["fc.weight"].numpy()[0], fixed, rtol=1e-6)
    best = np.linalg.solve(curvatures.sum(0), np.einsum("kij,kj->i", curvatures, centres))
    away = fixed - best
    assert last.metrics["distance_to_optimum"] == pytest.approx(np.linalg.norm(away), abs=1e-9)
    assert last.metrics["excess_loss"] == pytest.approx(away @ curvatures.mean(0) @ away / 2, abs=1e-12)
    assert (np.linalg.norm(away) > 0.01) == (steps > 1)


def test_the_distance_is_written_at_evaluations_and_for_that_model_alone() -> None:
    experiment = raysim.load(FILE, set=[*SMALL, "rounds=4", "evaluation.every=2"])
    found = ["distance_to_optimum" in each.metrics for each in raysim.rounds(experiment)]
    assert found == [False, True, False, True]
    own = list(raysim.rounds(experiment, model=lambda: nn.Linear(3, 1, bias=False)))[-1]
    assert "excess_loss" in own.metrics
    for others in ({"model": lambda: nn.Linear(3, 1)}, {"loss": lambda out, y: (out[:, 0] - y).abs()}):
        assert "excess_loss" not in list(raysim.rounds(experiment, **others))[-1].metrics
