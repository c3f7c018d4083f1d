"""A rule of a script: its equation in NumPy, the order of its rows, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import pytest
import torch
from torch import Tensor

import raysim
from raysim.config import part
from raysim.server.aggregators import updates as shards
from tests.support.chosen_updates import SIZES, UPDATES, Array, Make, moved, run
from tests.support.executors import bits

COUNT = itertools.count(1.0)
"""What a function has kept that is not a function of its arguments."""

NORMS = np.linalg.norm(UPDATES, axis=1)


def by_norm(gram: Tensor, weights: Tensor) -> Tensor:
    return weights / gram.diagonal().sqrt()


def median(updates: Tensor, weights: Tensor) -> Tensor:
    ordered, dropped = updates.sort(dim=0).values, (len(updates) - 1) // 2
    return ordered[dropped : len(updates) - dropped].mean(dim=0)


def got(make: Make, aggregator: Any, **sections: Any) -> Array:
    return moved(make, parts={"aggregator": aggregator}, **sections)


def test_coefficients_are_those_of_a_weighted_mean(experiment: Make) -> None:
    p = SIZES / NORMS
    np.testing.assert_allclose(got(experiment, raysim.Coefficients(by_norm)), p @ UPDATES / p.sum(), rtol=1e-12)


def test_coefficients_may_be_below_0(experiment: Make) -> None:
    c = np.where(NORMS.max() == NORMS, -0.5, 1.0)
    assert c @ NORMS**2 < 0
    rule = raysim.Coefficients(
        lambda gram, w: torch.where(gram.diagonal() == gram.diagonal().max(), -0.5, 1.0).double()
    )
    (done,) = run(experiment, parts={"aggregator": rule})
    np.testing.assert_allclose(done.params["weight"].numpy()[0], c @ UPDATES / c.sum(), rtol=1e-12)
    assert done.metrics["gsi"] == 1


@pytest.mark.parametrize("width", [1 << 22, 9], ids=["one shard", "a shard a coordinate"])
def test_rows_and_weights_are_in_the_order_of_the_cohort(
    width: int, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shards, "NUMBERS_PER_SHARD", width)
    order = [4, 7, 0, 2, 8, 1]
    cohort = {"sampler": {"name": "replay", "cohorts": [[f"c{i}" for i in order]]}}
    rank = np.arange(1, 7)
    by_rank = torch.arange(1.0, 7.0, dtype=torch.float64)
    expected = (rank * SIZES[order]) @ UPDATES[order]
    vector = raysim.Coordinatewise(lambda updates, weights: (by_rank * weights) @ updates)
    np.testing.assert_allclose(got(experiment, vector, cohort=cohort), expected, rtol=1e-12)
    mean = raysim.Coefficients(lambda gram, weights: by_rank * weights)
    total = (rank * SIZES[order]).sum()
    np.testing.assert_allclose(got(experiment, mean, cohort=cohort), expected / total, rtol=1e-12)


@pytest.mark.parametrize(
    "aggregator",
    [
        raysim.Coordinatewise(median, ignores_weights=True),
        lambda section: raysim.Coordinatewise(median, ignores_weights=True),
    ],
    ids=["rule", "make"],
)
def test_a_median_has_the_built_in_one_s_bits(
    aggregator: Any, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    built_in = raysim.rounds(experiment(server={"aggregator": {"name": "median"}}), dataset=dataset)
    own = raysim.rounds(experiment(), dataset=dataset, aggregator=aggregator)
    assert [bits(r) for r in built_in] == [bits(r) for r in own]


def test_what_a_rule_makes_of_the_gaps_between_tensors_is_nothing(experiment: Make) -> None:
    # Between tensors all updates are 0, and 0 / 0 is not a number.
    snr = raysim.Coordinatewise(lambda updates, weights: updates.mean(0) / updates.std(0))
    expected = UPDATES.mean(0) / UPDATES.std(0, ddof=1)
    np.testing.assert_allclose(got(experiment, snr), expected, rtol=1e-12)


def test_writing_to_the_arguments_reaches_nobody(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "NUMBERS_PER_SHARD", 9)

    def writing(updates: Tensor, weights: Tensor) -> Tensor:
        summed = weights @ updates
        updates.zero_()
        weights.zero_()
        return summed

    # The next shard has the same weights, and the sampler looks at the updates again.
    cohort = {"size": 9, "sampler": {"name": "adafl"}}
    one, other = (
        run(experiment, rounds=2, cohort=cohort, parts={"aggregator": raysim.Coordinatewise(fn)})
        for fn in (writing, lambda updates, weights: weights @ updates)
    )
    assert [bits(r) for r in one] == [bits(r) for r in other]


def test_what_it_differentiated_by_may_be_returned(experiment: Make) -> None:
    """As a rule does that minimises something by autograd."""
    mean = raysim.Coordinatewise(lambda updates, weights: updates.mean(0).requires_grad_())
    np.testing.assert_allclose(got(experiment, mean), UPDATES.mean(0), rtol=1e-12)
    examples = raysim.Coefficients(lambda gram, weights: weights.requires_grad_())
    np.testing.assert_allclose(got(experiment, examples), SIZES @ UPDATES / SIZES.sum(), rtol=1e-12)


def test_its_constants_are_swept(dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path) -> None:
    def make(section: Any) -> raysim.Coefficients:
        power = section.constants["power"]
        return raysim.Coefficients(lambda gram, weights: weights * gram.diagonal() ** power)

    exp = experiment(server={"aggregator": {"name": "own", "label": "by norm", "constants": {"power": 0.0}}})
    key = "server.aggregator.constants.power"
    swept = raysim.run_sweep(exp, {key: [0.0, -0.5]}, dataset=dataset, aggregator=make, path=tmp_path / "sweep")
    plain = raysim.run(experiment(), dataset=dataset, path=tmp_path / "plain")
    mean, by_norm_ = (point.rounds["loss"].to_pylist() for point in swept.points)
    assert mean == pytest.approx(plain.rounds["loss"].to_pylist())
    assert by_norm_ != mean


class Scaled(raysim.Section):
    """An aggregator of a package."""

    name: Literal["scaled"] = "scaled"
    by: float = 2.0


def test_a_package_s_aggregator_is_a_choice_like_others(experiment: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(section: Scaled) -> raysim.Coordinatewise:
        return raysim.Coordinatewise(lambda updates, weights: section.by * updates.mean(0), name="scaled", fewest=3)

    installed = part.Installed(raysim.Part("aggregator", "scaled", Scaled, make), "theirs")
    monkeypatch.setattr(part, "load_installed", lambda: ((installed,), ()))
    server = {"aggregator": {"name": "scaled", "by": 3.0}}
    np.testing.assert_allclose(moved(experiment, server=server), 3 * UPDATES.mean(0), rtol=1e-12)
    few = {"sampler": {"name": "replay", "cohorts": [["c1", "c2"]]}}
    with pytest.raises(raysim.ExperimentError, match="scaled needs M >= 3 updates, but the cohort has 2"):
        run(experiment, server=server, cohort=few)


def half(section: Any) -> raysim.Coefficients:
    return raysim.Coefficients(by_norm, fewest=10)


def failing(updates: Tensor, weights: Tensor) -> Tensor:
    raise KeyError("my own mistake")


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (raysim.Coordinatewise(lambda u, w: u.mean(0) * next(COUNT)), r"returned something else when .* again"),
        (raysim.Coordinatewise(lambda u, w: u.mean(0) - u.mean()), r"compute each coordinate from this coordinate"),
        (raysim.Coordinatewise(lambda u, w: u), r"must return torch.float64 of shape \(5,\), .* shape \(9, 5\)"),
        (raysim.Coordinatewise(lambda u, w: u.mean(0).float()), r"torch.float64 .*, but returned torch.float32"),
        (
            raysim.Coordinatewise(cast(Any, lambda u, w: u.mean(0).numpy())),
            r"but returned numpy.float64 of shape \(5,\)",
        ),
        (raysim.Coefficients(lambda gram, w: gram), r"torch.float64 of shape \(9,\), .* shape \(9, 9\)"),
        (raysim.Coefficients(cast(Any, lambda gram, w: None)), r"but returned None"),
        (raysim.Coefficients(lambda gram, w: w.to("meta")), r"but returned torch.float64 of shape \(9,\) on meta"),
        (raysim.Coefficients(lambda gram, w: w.to_sparse()), r"but returned .* \(sparse_coo\)"),
        (raysim.Coefficients(lambda gram, w: torch.nested.nested_tensor([w])), r"but returned a nested tensor"),
        (raysim.Coordinatewise(lambda u, w: u[0].to("meta")), r"but returned torch.float64 of shape \(5,\) on meta"),
        (raysim.Coordinatewise(lambda u, w: u[0].to_sparse()), r"but returned .* \(sparse_coo\)"),
        (
            raysim.Coefficients(failing),
            r"tried before the first round, failed: KeyError\('my own mistake'\)\nTraceback",
        ),
        (median, r"function make\(section\) .*, but called with the section it raised TypeError: median\(\) missing"),
        (lambda section: median, r"must be a raysim.Coordinatewise\(fn\) or .*, but returned <function"),
        ("median", r"but got 'median'"),
        (half, r"server.aggregator: own needs M >= 10 updates, but the cohort has 9"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_round(
    aggregator: Callable[..., Any], message: str, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        run(experiment, parts={"aggregator": aggregator})


@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (raysim.Coordinatewise(lambda u, w: u.mean(0) / (u.mean(0) * 0)), r"in round 0, must return finite numbers"),
        (raysim.Coefficients(lambda gram, w: w / 0), r"in round 0, must return finite coefficients whose sum is > 0"),
        (raysim.Coefficients(lambda gram, w: w - w), r"sum is > 0, but returned \[0.0, "),
        (
            raysim.Coordinatewise(lambda u, w: {9: u.mean(0)}[int(w.max()) + 8]),
            r"in round 0 on .*failed: KeyError\(17\)",
        ),
    ],
)
def test_what_goes_wrong_later_says_the_round(aggregator: Any, message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        run(experiment, parts={"aggregator": aggregator})


def test_it_goes_where_its_choice_is_defined(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    parts: dict[str, Any] = {"dataset": dataset, "aggregator": raysim.Coefficients(by_norm)}
    with pytest.raises(
        raysim.ExperimentError, match=r"'feddyn' is defined with server.aggregator.name 'mean', but got"
    ):
        raysim.rounds(experiment(client={"correction": {"name": "feddyn", "mu": 0.1}}), **parts)
    with pytest.raises(raysim.ExperimentError, match="'ida' weighs a mean"):
        experiment(server={"weighting": "ida", "aggregator": {"name": "own"}})
    with pytest.raises(raysim.ExperimentError, match="must be 'own' or be left out, but got 'median'"):
        raysim.rounds(experiment(server={"aggregator": {"name": "median"}}), **parts)
