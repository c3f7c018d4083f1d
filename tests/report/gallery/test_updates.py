"""Figures of updates and failures: norms, similarity indices by parameter group, and what is predicted of them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from raysim.report.gallery import (
    client_gain,
    config_shares,
    failures,
    glad_factors,
    gradient_norm,
    similarity_index,
    update_norm,
)
from raysim.report.gallery.curves import Against
from raysim.report.gallery.gallery import kinds
from raysim.report.groups import Group, group_runs
from raysim.report.runs import read_all
from tests.support.drawn import drawn
from tests.support.run_folders import accuracies, write


def groups(folder: Path) -> list[Group]:
    return group_runs(read_all([folder])[0])[0]


def test_a_trial_failed_if_one_of_its_rounds_did(tmp_path: Path) -> None:
    for size, seed in ((5, 0), (5, 1), (10, 0), (10, 1)):
        failed = [False, size == 10 and seed == 1, False]
        rows = [{"accuracy": 0.5, "catastrophic_failure": found} for found in failed]
        write(tmp_path / f"{size}-{seed}", rows, cohort={"size": size}, seed=seed, rounds=3)
    (figure,) = failures.make(groups(tmp_path))
    assert "fell below half of the last round's" in figure.caption
    assert figure.data.select(["cohort_size", "failed", "trials", "share"]).to_pylist() == [
        {"cohort_size": 5.0, "failed": 0, "trials": 2, "share": 0.0},
        {"cohort_size": 10.0, "failed": 1, "trials": 2, "share": 0.5},
    ]
    assert "1 of 4 in all" in figure.caption
    (axes,) = drawn(figure)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients in a round", "trials that failed")


@pytest.mark.parametrize(("sizes", "reference"), [((10, 50, 200), 50), ((20, 80), 20)])
def test_norms_are_predicted_round_by_round_from_fifty_or_the_smallest(
    sizes: tuple[int, ...], reference: int, tmp_path: Path
) -> None:
    for size in sizes:
        rows = [{"pseudo_gradient_norm": size * (t + 1.0)} for t in range(2)]
        write(tmp_path / f"{size}", rows, cohort={"size": size})
    (figure,) = gradient_norm.predicted(groups(tmp_path))
    found = {(row["of"], row["cohort_size"], row["round"]): row["mean"] for row in figure.data.to_pylist()}
    for size in sizes:
        for t in (1, 2):
            assert found["recorded", size, t] == size * t
            predicted = found[f"predicted from M = {reference}", size, t]
            assert predicted == pytest.approx(reference * t * math.sqrt(reference / size))
    panels = drawn(figure)
    assert [axes.get_title() for axes in panels] == ["recorded", f"predicted from M = {reference}"]
    assert {axes.get_xlabel() for axes in panels} == {Against("rounds", "finished rounds").label}
    assert panels[0].get_legend_handles_labels()[1] == [f"M = {size}" for size in sizes]


def test_the_index_of_each_parameter_group_is_a_line(tmp_path: Path) -> None:
    rows = [{"gsi": 1.5, "gsi/a": 1.0 + t, "gsi/b": 2.0 + t, "gsi/c": 2.0 + t} for t in range(3)]
    write(tmp_path / "run", rows, rounds=3)
    (figure,) = similarity_index.by_parameters(groups(tmp_path))
    # Two of one course share a line.
    assert figure.data["parameters"].to_pylist() == ["a"] * 3 + ["b"] * 3
    (axes,) = drawn(figure)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("finished rounds", "similarity index")


def test_the_baseline_stands_beside_the_index_of_all_clients(tmp_path: Path) -> None:
    rows = [
        {"gsi/a": 1.5, "gsi_baseline/a": 1.4, "probe/gsi/a": true, "gsi/b": 1.0, "gsi_baseline/b": 1.1}
        for true in (1.3, None)
    ]
    write(tmp_path / "run", rows, server={"glad": {}})
    (figure,) = similarity_index.beside_true(groups(tmp_path))
    panels = {axes.get_title(): axes for axes in drawn(figure)}
    assert panels["a"].get_legend_handles_labels()[1] == ["of the cohort", "baseline B", "of all clients"]
    assert panels["b"].get_legend_handles_labels()[1] == ["of the cohort", "baseline B"]
    true = [row for row in figure.data.to_pylist() if row["of"] == "probe/gsi"]
    assert [(row["parameters"], row["round"], row["mean"]) for row in true] == [("a", 1, 1.3)]


def test_the_whole_model_is_one_unit_where_its_index_is_the_scope(tmp_path: Path) -> None:
    rows = [{"gsi": 1.5, "gsi/a": 1.4, "gsi_baseline": 1.6, "gsi_unbounded": 1.5 / 1.6, "probe/gsi": 1.7}] * 2
    write(tmp_path / "run", rows, server={"glad": {"scope": "universal", "gamma": 0.02}})
    (figure,) = similarity_index.beside_true(groups(tmp_path))
    assert [axes.get_title() for axes in drawn(figure)] == ["whole model"]
    assert set(figure.data["mean"].to_pylist()) == {1.5, 1.6, 1.7}
    (ratio,) = glad_factors.before_bounds(groups(tmp_path))
    assert ratio.data["mean"].to_pylist() == [1.5 / 1.6] * 2
    (axes,) = drawn(ratio)
    assert axes.get_ylabel() == "GSI / B"
    # Beside the ratio and the line at 1: the bounds 1 -+ gamma t, at t = 0 and 1.
    gamma = 0.02
    drawn_lines = [np.asarray(line.get_ydata(), np.float64).tolist() for line in axes.get_lines()]
    expected = [[1.0, 1.0], [1.5 / 1.6] * 2, [1.0, 1 - gamma], [1.0, 1 + gamma]]
    assert sorted(line for line in drawn_lines if len(line) == 2) == sorted(expected)


def test_norms_of_cohort_and_of_all_clients_are_on_one_axis(tmp_path: Path) -> None:
    write(tmp_path / "run", [{"mean_update_norm": 1.0, "mean_norm_all_clients": 1.5}] * 2)
    (figure,) = update_norm.make(groups(tmp_path))
    assert [axes.get_title() for axes in drawn(figure)] == ["of the cohort", "of all clients"]
    assert figure.data.select(["of", "mean"]).to_pylist()[::2] == [
        {"of": "mean_update_norm", "mean": 1.0},
        {"of": "mean_norm_all_clients", "mean": 1.5},
    ]


def test_the_models_norm_is_drawn_against_rounds(tmp_path: Path) -> None:
    write(tmp_path / "run", [{"params_norm": 3.0}, {"params_norm": 4.0}])
    (figure,) = (figure for kind in kinds() for figure in kind.make(groups(tmp_path)) if figure.name == "params_norm")
    assert figure.data["mean"].to_pylist() == [3.0, 4.0]


def test_gains_on_clients_own_training_examples_have_a_picture(tmp_path: Path) -> None:
    for gamma, scores in ((0.0, (0.5, 0.6)), (0.02, (0.7, 0.5))):
        clients = dict(zip("ab", scores, strict=True))
        server = {"glad": {"gamma": gamma}}
        write(tmp_path / f"{gamma}", accuracies(0.5, 0.6), clients, clients_of="train", server=server)
    (figure,) = client_gain.make(groups(tmp_path))
    assert figure.name == "client-gain-train"
    # A pooled split is one client, and no distribution.
    for gamma, seed in ((0.0, 0), (0.0, 1), (0.02, 0), (0.02, 1)):
        server = {"glad": {"gamma": gamma}}
        write(tmp_path / "pooled" / f"{gamma}-{seed}", accuracies(0.5, 0.6), {"all": 0.5}, server=server, seed=seed)
    assert not list(client_gain.make(groups(tmp_path / "pooled")))
    assert figure.data["gain"].to_pylist() == pytest.approx([-0.1, 0.2])
    assert "a client's own training examples" in figure.caption


def test_the_share_of_each_configuration_is_a_line(tmp_path: Path) -> None:
    rows = [{"fedex/theta/0": 10.0**-t / 2, "fedex/theta/1": 1 - 10.0**-t / 2} for t in range(3)]
    configs = [{}, {"optimizer.lr": 0.5, "optimizer.name": "adam"}]
    write(tmp_path / "with", rows, rounds=3, fedex={"configs": configs})
    write(tmp_path / "without", accuracies(0.1, 0.2))
    (figure,) = config_shares.make(groups(tmp_path))
    assert figure.data["parameters"].to_pylist() == ["0"] * 3 + ["1"] * 3
    assert figure.data["mean"].to_pylist() == [0.5, 0.05, 0.005, 0.5, 0.95, 0.995]
    assert "on validation" in figure.caption
    (axes,) = drawn(figure)
    assert set(axes.get_legend_handles_labels()[1]) == {
        "0: [client] as it is",
        '1: optimizer.lr = 0.5, optimizer.name = "adam"',
    }
    assert (axes.get_yscale(), axes.get_ylim()) == ("linear", (0, 1))
