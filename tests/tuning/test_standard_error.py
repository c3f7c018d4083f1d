"""Standard errors, against what can be computed by hand."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import raysim
import tuning
from raysim.run_folder.files import client_file
from tests.support.run_folders import accuracies, experiment, write
from tuning import standard_error
from tuning.pictures import curves


def test_clients_of_one_size_have_the_standard_error_of_a_mean() -> None:
    # Accuracies 1/4, 2/4, 3/4 of four examples each: s = 1/4, so s / sqrt(3).
    assert standard_error.over_clients([1, 2, 3], [4, 4, 4]) == pytest.approx(0.25 / math.sqrt(3))


def test_clients_that_are_all_alike_leave_no_doubt() -> None:
    assert standard_error.over_clients([2, 5, 10], [4, 10, 20]) == pytest.approx(0.0)


def test_it_is_the_spread_of_the_figure_over_samples_of_clients() -> None:
    rng = np.random.default_rng(0)
    sizes = rng.integers(5, 40, size=2000)
    hits = rng.binomial(sizes, rng.beta(4, 2, size=2000))
    figures, errors = [], []
    for _ in range(400):
        drawn = rng.choice(2000, size=50, replace=False)
        figures.append(hits[drawn].sum() / sizes[drawn].sum())
        errors.append(standard_error.over_clients(hits[drawn].tolist(), sizes[drawn].tolist()))
    assert np.mean([error for error in errors if error is not None]) == pytest.approx(np.std(figures), rel=0.1)


def test_seeds() -> None:
    assert standard_error.over_seeds([0.1, 0.2, 0.3]) == pytest.approx(0.1 / math.sqrt(3))


def test_one_of_a_kind_tells_nothing() -> None:
    assert standard_error.over_seeds([0.5]) is None
    assert standard_error.over_clients([1], [4]) is None
    assert standard_error.over_clients([0, 0], [0, 0]) is None


def test_a_mean_of_evaluations_has_the_error_of_the_clients_means() -> None:
    # Each client is right half of the time; in each evaluation they are apart.
    tables = [
        [{"client": "a", "examples": 4, "accuracy": a}, {"client": "b", "examples": 4, "accuracy": b}]
        for a, b in ((0.0, 1.0), (1.0, 0.0))
    ]
    assert standard_error.of_evaluations(tables, "accuracy") == 0.0
    assert standard_error.of_evaluations(tables[:1], "accuracy") == 0.5
    assert standard_error.of_evaluations([], "accuracy") is None


@pytest.mark.parametrize("objective", [{"window": [1, 3]}, {"name": "loss", "last": 4}], ids=["window", "last"])
def test_a_value_s_error_is_that_of_the_evaluations_of_which_it_is_the_mean(
    objective: dict[str, Any], tmp_path: Path
) -> None:
    exp = experiment(rounds=6, evaluation={"every": 1}, tuning={"objective": objective})
    space = {"client.optimizer.lr": {"grid": [0.1]}}
    study = tuning.tune(exp, space, executor="local", final=0, path=tmp_path / "study", seeds=1)
    rounds = (1, 2, 3) if "window" in objective else (2, 3, 4, 5)
    name = objective.get("name", "accuracy")
    run = tmp_path / "study" / "trials" / "0000" / "seed-0"
    tables = [pq.read_table(client_file(run, index)).to_pylist() for index in rounds]
    tables = [[row for row in rows if row["split"] == "validation" and row["examples"]] for rows in tables]
    sizes = np.array([row["examples"] for row in tables[0]])
    sums = np.mean([[row[name] * row["examples"] for row in rows] for rows in tables], axis=0)
    ratio, clients = sums.sum() / sizes.sum(), len(sizes)
    expected = math.sqrt(clients / (clients - 1) * ((sums - ratio * sizes) ** 2).sum()) / sizes.sum()
    (row,) = study.trials.to_pylist()
    assert row["value"] == pytest.approx(ratio)
    assert row["standard_error/clients"] == pytest.approx(expected)


def test_a_copy_by_a_file_manager_is_no_evaluation(tmp_path: Path) -> None:
    scores = {"a": 0.25, "b": 0.75}
    run = write(tmp_path / "run", accuracies(0.5, 0.5), scores, clients_of="validation")
    found = standard_error.of_run(run, "accuracy", range(2))
    assert found == pytest.approx(0.25)
    other = write(tmp_path / "other", accuracies(0.5, 0.5), {"a": 0.5, "b": 0.5}, clients_of="validation")
    file = client_file(run, 1)
    shutil.copy(client_file(other, 1), file.with_name("round-000001_copy.parquet"))
    assert standard_error.of_run(run, "accuracy", range(2)) == found


def test_a_damaged_evaluation_is_not_used(tmp_path: Path) -> None:
    run = write(tmp_path / "run", accuracies(0.5, 0.5), {"a": 0.25, "b": 0.75}, clients_of="validation")
    flip(client_file(run, 1))
    with pytest.raises(raysim.RunFolderError, match="is damaged"):
        standard_error.of_run(run, "accuracy", range(2))


def flip(file: Path) -> None:
    """Flip a bit in the table's footer, which pages' checksums leave out."""
    content = bytearray(file.read_bytes())
    content[content.rfind(b"accuracy")] ^= 1
    file.write_bytes(bytes(content))


def test_of_a_trial_only_its_own_runs_are_drawn(tmp_path: Path) -> None:
    write(tmp_path / "seed-0", accuracies(0.5, 0.5))
    write(tmp_path / "seed-0 (copy)", accuracies(0.9, 0.9))
    write(tmp_path / "seed-10", accuracies(0.7, 0.7))
    drawn = curves.mean_curve(tmp_path, "eval/test/accuracy")
    assert drawn is not None
    assert drawn.mean.tolist() == pytest.approx([0.6, 0.6])


def test_figures_that_are_not_finite_have_no_error() -> None:
    error = standard_error.over_seeds([0.1, math.inf])
    assert error is not None
    assert math.isnan(error)
