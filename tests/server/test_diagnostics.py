"""Figures from sums, against their definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.server import ledger
from raysim.server.diagnostics import Diagnostics, dispersion, label_similarity, mean_cosine_similarity

Make = Callable[..., raysim.Experiment]


@given(st.lists(st.lists(st.integers(-3, 3), min_size=3, max_size=3), min_size=2, max_size=7))
def test_the_cosine_from_sums_is_the_mean_over_pairs_where_a_zero_update_counts_0(updates: list[list[int]]) -> None:
    d = torch.tensor(updates, dtype=torch.float64)
    units = [v / v.norm() if v.norm() else v for v in d]
    pairs = [float(units[i] @ units[j]) for i in range(len(units)) for j in range(i)]
    moving = sum(bool(v.norm()) for v in d)
    got = mean_cosine_similarity(torch.stack(units).sum(0), moving, len(units))
    assert got == pytest.approx(sum(pairs) / len(pairs), abs=1e-12)


def test_a_single_client_has_no_cosine(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    assert mean_cosine_similarity(torch.ones(3), 1, 1) is None
    done = list(raysim.rounds(experiment(cohort={"size": 1}), dataset=dataset))
    assert [r.metrics["mean_cosine_similarity"] for r in done] == [None] * 4


def test_the_cosine_can_be_left_out(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    (first, *_) = raysim.rounds(experiment(server={"diagnostics": {"cosine": False}}), dataset=dataset)
    assert "mean_cosine_similarity" not in first.metrics


def test_dispersion_is_that_of_squared_norms() -> None:
    # Norms 1 and 2, squared 1 and 4: mean 2.5, deviation 1.5.
    assert dispersion(1.0 + 4.0, 1.0 + 16.0, 2) == pytest.approx(0.6)
    assert dispersion(0.0, 0.0, 3) == 0
    assert dispersion(1.0 + (1.0 + 1e-6), 1.0 + (1.0 + 1e-6) ** 2, 2) == pytest.approx(5e-7, rel=1e-3)
    assert dispersion(1e200, math.inf, 3) is None


@pytest.mark.parametrize("value", [0.1, 1 / 3, 7.3e-5, 1.7e30, 3.3e-100])
def test_equal_norms_have_no_dispersion(value: float) -> None:
    for clients in (*range(1, 200), 10_000, 100_003):
        squares, fourth_powers = np.add.accumulate(np.full((clients, 2), [value, value * value]), axis=0)[-1].tolist()
        assert dispersion(squares, fourth_powers, clients) == 0


def test_by_default_large_models_leave_the_cosine_out() -> None:
    assert [Diagnostics().sums_units(n) for n in (10, 4_000_000, 4_000_001)] == [True, True, False]
    assert Diagnostics(cosine=True).sums_units(10**9)
    assert not Diagnostics(cosine=False).sums_units(10)


def test_label_similarity_is_a_cosine() -> None:
    assert label_similarity(torch.tensor([3, 0]), torch.tensor([5, 0])) == 1.0
    assert label_similarity(torch.tensor([3, 0]), torch.tensor([0, 5])) == 0.0
    assert label_similarity(torch.tensor([1, 0]), torch.tensor([1, 1])) == pytest.approx(0.5**0.5)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(-10, 10)), min_size=3, max_size=20))
def test_the_running_correlation_is_pearsons(pairs: list[tuple[float, float]]) -> None:
    moments = ledger.opened()["moments"]
    for x, y in pairs:
        moments = ledger.paired(moments, x, y)
    xs, ys = np.array(pairs).T
    if min(xs.std(), ys.std()) > 1e-3:
        assert ledger.correlation(moments) == pytest.approx(np.corrcoef(xs, ys)[0, 1], abs=1e-9)


def test_the_correlation_of_one_pair_is_not_defined() -> None:
    assert ledger.correlation(ledger.paired(ledger.opened()["moments"], 1.0, 2.0)) is None


def test_a_figure_that_varies_by_rounding_alone_has_no_correlation(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    moments = ledger.opened()["moments"]
    assert ledger.correlation(moments) is None
    for similarity, index in [(0.5, 1.0), (0.7, 1.0 + 2**-52), (0.9, 1.0)]:
        moments = ledger.paired(moments, similarity, index)
        assert ledger.correlation(moments) is None
    # One client agrees with itself, to rounding.
    exp = experiment(rounds=20, cohort={"size": 1}, server={"diagnostics": {"labels": True}})
    done = list(raysim.rounds(exp, dataset=dataset))
    assert {r.metrics["label_gsi_correlation"] for r in done} == {None}


def test_a_catastrophe_is_a_fall_below_half() -> None:
    book: dict[str, Any] = dict(ledger.opened())
    assert not ledger.is_catastrophe(book, 0.0)
    book["accuracy"] = torch.tensor(0.8)
    assert ledger.is_catastrophe(book, 0.39)
    assert not ledger.is_catastrophe(book, 0.41)


def test_examples_add_up_and_labels_are_compared(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(server={"diagnostics": {"labels": True}})
    done = list(raysim.rounds(exp, dataset=dataset))
    assert [r.metrics["examples_so_far"] for r in done] == np.cumsum([r.metrics["examples"] for r in done]).tolist()
    every = np.concatenate([dataset.train.client(i)[1] for i in range(20)])
    similarities, indices = [], []
    for r in done:
        pooled = np.concatenate([dataset.train.client(dataset.train.position_of(c))[1] for c in r.cohort])
        a, b = np.bincount(pooled, minlength=3), np.bincount(every, minlength=3)
        similarities.append(a @ b / np.sqrt((a @ a) * (b @ b)))
        indices.append(r.metrics["gsi"] or 0.0)
    assert [r.metrics["label_similarity"] for r in done] == pytest.approx(similarities)
    assert done[-1].metrics["label_gsi_correlation"] == pytest.approx(np.corrcoef(similarities, indices)[0, 1])


@pytest.mark.parametrize(
    "stop", [None, {"target": {"metric": "label_similarity", "maximise": True, "value": 2.0}}], ids=["", "stop"]
)
def test_a_round_that_trains_nobody_has_no_labels_to_compare(
    stop: dict[str, Any] | None, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    sampler = {"name": "bernoulli", "probability": 0.04}
    exp = experiment(server={"diagnostics": {"labels": True}}, cohort={"sampler": sampler}, rounds=8, stop=stop, seed=1)
    done = list(raysim.rounds(exp, dataset=dataset))
    assert {len(r.cohort) > 0 for r in done} == {True, False}
    for r in done:
        assert (r.metrics["label_similarity"] is None) == (not r.cohort)


@pytest.mark.parametrize(
    ("client", "cohort_factor", "a_client"),
    [
        ({"epochs": 5}, 5, 0),
        ({"batch_size": "full", "epochs": 3}, 3, 0),
        ({"batch_size": 3, "local_steps": 7, "fill_last_batch": True}, 0, 21),
        ({"epochs": 2, "correction": {"name": "mime", "base": "momentum"}}, 3, 0),
    ],
    ids=str,
)
def test_examples_are_those_processed(
    client: dict[str, Any], cohort_factor: int, a_client: int, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    """E epochs count E times, local steps what their batches hold, and a phase of full gradients is one more pass."""
    sizes = {dataset.train.id_of(i): n for i, n in enumerate(dataset.train.sizes().tolist())}
    so_far = 0
    for done in raysim.rounds(experiment(client=client, server={"weighting": "uniform"}), dataset=dataset):
        held = sum(sizes[one] for one in done.cohort)
        so_far += cohort_factor * held + a_client * len(done.cohort)
        assert done.metrics["examples_held"] == held
        assert done.metrics["examples_so_far"] == so_far
    assert so_far


def test_a_round_without_a_step_counts_too(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    """Krum with f = 3 needs six updates: where fewer stay, the model stays, and what they processed is counted."""
    rule = {"aggregator": {"name": "krum", "f": 3}}
    exp = experiment(client={"mid_round_dropout": 0.5}, server=rule, cohort={"size": 7})
    done = [r.metrics for r in raysim.rounds(exp, dataset=dataset)]
    assert any(row["clients"] == 0 and row["examples"] for row in done)
    assert [row["examples_so_far"] for row in done] == np.cumsum([row["examples"] for row in done]).tolist()


def test_real_targets_have_no_labels_to_compare(experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train={"a": (np.ones((2, 1)), np.ones(2))})
    exp = experiment(cohort={"size": 1}, model={"name": "linear"}, server={"diagnostics": {"labels": True}})
    with pytest.raises(raysim.ExperimentError, match="targets of these data are real numbers"):
        raysim.rounds(exp, dataset=data)


def test_the_cohort_of_a_catastrophe_is_kept(experiment: Make, caplog: pytest.LogCaptureFixture, tmp_path: Any) -> None:
    # Client "good" is always right at the zero model's favourite label, "bad" never.
    x = np.zeros((4, 1))
    data = raysim.FederatedDataset.from_clients(train={"good": (x, np.zeros(4, int)), "bad": (x, np.ones(4, int))})
    exp = experiment(
        rounds=3,
        model={"name": "linear"},
        client={"optimizer": {"name": "sgd", "lr": 0.0}},
        cohort={"sampler": {"name": "replay", "cohorts": [["good"], ["bad"], ["bad"]]}},
    )
    from torch import nn

    result = raysim.run(
        exp,
        dataset=data,
        model=lambda: nn.Linear(1, 2),
        params={"weight": np.zeros((2, 1)), "bias": np.zeros(2)},
        path=tmp_path / "run",
    )
    assert result.rounds["catastrophic_failure"].to_pylist() == [False, True, False]
    assert result.rounds["catastrophic_cohort"].to_pylist() == [None, ["bad"], None]
    assert "round 1: the cohort's training accuracy fell" in caplog.text
