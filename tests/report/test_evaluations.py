"""Which columns say how good the model is."""

from __future__ import annotations

import numpy as np

from raysim.evaluation.scores import over_clients
from raysim.report.column_names import headlines, percentiles
from tuning.watched_figure import of_percentile


def test_accuracy_is_the_headline_wherever_it_stands() -> None:
    for names in (["eval/test/loss", "eval/test/accuracy"], ["eval/test/accuracy", "eval/test/loss"]):
        assert headlines(names) == {"test": "eval/test/accuracy"}


def test_loss_is_the_headline_of_a_regression() -> None:
    assert headlines(["loss", "eval/test/loss", "eval/validation/loss"]) == {
        "test": "eval/test/loss",
        "validation": "eval/validation/loss",
    }


def test_training_figures_are_no_evaluation() -> None:
    assert headlines(["loss", "accuracy", "eval/test/p5"]) == {}


def test_percentiles_rise_and_are_those_of_one_split() -> None:
    names = ["eval/test/p95", "eval/test/p5", "eval/test/p2.5", "eval/train/p50", "eval/test/loss"]
    assert percentiles(names, "test") == {2.5: "eval/test/p2.5", 5.0: "eval/test/p5", 95.0: "eval/test/p95"}
    assert list(percentiles(names, "test")) == [2.5, 5.0, 95.0]


def test_a_percentile_has_all_of_its_digits_in_its_name() -> None:
    """99.99999 was written as 100, and two that differ in the seventh digit were one column."""
    given = [0.0, 5.0, 33.333333, 33.333334, 99.99999, 100.0]
    found = percentiles([f"eval/test/{name}" for name in over_clients(np.array([0.0, 0.5, 1.0]), given)], "test")
    assert list(found) == given
    assert of_percentile(99.99999).column == "eval/validation/p99.99999"
