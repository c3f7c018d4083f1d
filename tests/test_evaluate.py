"""Evaluation: pooled figures and one row per client, whatever the slices."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import raysim
from raysim.config.section import Section
from raysim.evaluation import scores
from raysim.experiment import metric_columns
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]


class Named(Section):
    name: str


class Sizes:
    """A split that only has sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self._sizes = np.array(sizes, dtype=np.int64)

    def __len__(self) -> int:
        return len(self._sizes)

    def sizes(self, positions: np.ndarray) -> np.ndarray:
        return self._sizes[positions]


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=30))
def test_the_stream_holds_every_example_once_in_order(sizes: list[int]) -> None:
    everything = scores.sample_examples(Sizes(sizes), np.arange(len(sizes)), "all", seed=0)  # type: ignore[arg-type]
    units = scores.plan("test", everything)
    seen = [(p, i) for _, segments in units for p, start, stop in segments for i in (start, stop - 1)]
    assert seen == sorted(seen)
    lengths = [sum(stop - start for _, start, stop in segments) for _, segments in units]
    assert sum(lengths) == sum(sizes)
    assert all(length == scores.EXAMPLES_PER_UNIT for length in lengths[:-1])


def test_rows_and_pool_are_the_definition(experiment: Make) -> None:
    tests = make_clients([5000, 1, 40], seed=3, prefix="t")
    data = raysim.FederatedDataset.from_clients(train=make_clients([9]), test=tests)
    still = experiment(
        rounds=1,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 0.0}},
        cohort={"size": 1},
        evaluation={"percentiles": [0, 50, 100]},
        engine={"workers": 0, "dtype": "float64"},
    )
    (only,) = raysim.rounds(still, dataset=data, model=lambda: nn.Linear(5, 3))
    w, b = only.params["weight"].numpy(), only.params["bias"].numpy()
    accuracies, losses = {}, {}
    for name, (x, y) in tests.items():
        logits = torch.from_numpy(x @ w.T + b)
        accuracies[name] = logits.argmax(1).numpy() == y
        losses[name] = nn.functional.cross_entropy(logits, torch.from_numpy(y), reduction="none").numpy()
    assert only.clients is not None
    for row in only.clients.to_pylist():
        assert row["accuracy"] == pytest.approx(accuracies[row["client"]].mean(), rel=1e-12)
        assert row["loss"] == pytest.approx(losses[row["client"]].mean(), rel=1e-12)
        assert row["examples"] == len(tests[row["client"]][1])
    m = only.metrics
    assert m["eval/test/accuracy"] == pytest.approx(np.concatenate(list(accuracies.values())).mean(), rel=1e-12)
    assert m["eval/test/loss"] == pytest.approx(np.concatenate(list(losses.values())).mean(), rel=1e-12)
    by_client = sorted(a.mean() for a in accuracies.values())
    assert [m["eval/test/p0"], m["eval/test/p50"], m["eval/test/p100"]] == pytest.approx(by_client)
    mean = sum(by_client) / 3
    assert m["eval/test/mean_client_accuracy"] == pytest.approx(mean)
    assert m["eval/test/client_accuracy_variance"] == pytest.approx(sum((a - mean) ** 2 for a in by_client) / 3)
    assert m["eval/test/client_accuracy_range"] == pytest.approx(by_client[2] - by_client[0])


def test_a_client_without_an_accuracy_is_in_no_spread_and_no_metric_takes_its_names() -> None:
    spread = scores.over_clients(np.array([np.nan, 0.25, 0.75]), [0])
    assert spread == {
        "mean_client_accuracy": 0.5,
        "client_accuracy_variance": 0.0625,
        "client_accuracy_range": 0.5,
        "p0": 0.25,
    }
    for name in spread:
        assert any("other columns are" in refused for refused in metric_columns.refusals([Named(name=name)])), name


def test_a_sample_of_clients_is_seeded_and_without_repeats() -> None:
    split = Sizes([1] * 1000)
    chosen = scores.sample_clients(split, 50, seed=1)  # type: ignore[arg-type]
    assert len(set(chosen.tolist())) == 50
    assert chosen.tolist() == scores.sample_clients(split, 50, seed=1).tolist()  # type: ignore[arg-type]
    assert chosen.tolist() != scores.sample_clients(split, 50, seed=2).tolist()  # type: ignore[arg-type]
    assert scores.sample_clients(split, 990, seed=1).tolist() == sorted(  # type: ignore[arg-type]
        set(scores.sample_clients(split, 990, seed=1).tolist())  # type: ignore[arg-type]
    )


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=20), most=st.integers(1, 500), seed=st.integers(0, 2**32)
)
def test_a_sample_of_examples_is_of_these_clients_and_without_repeats(sizes: list[int], most: int, seed: int) -> None:
    split, positions = Sizes([3, *sizes]), np.arange(1, len(sizes) + 1)
    segments = scores.sample_examples(split, positions, most, seed)  # type: ignore[arg-type]
    rows = [(p, row) for p, start, stop in segments for row in range(start, stop)]
    assert rows == sorted(set(rows))
    assert len(rows) == min(most, sum(sizes))
    assert all(p >= 1 and row < [3, *sizes][p] for p, row in rows)
    # No segment goes on where the one before ended.
    assert all((p, stop) != (q, start) for (p, _, stop), (q, start, _) in pairwise(segments))


def test_every_example_is_as_likely_to_be_in_a_sample() -> None:
    sizes = [1, 9, 30]
    counts = np.zeros(40)
    for seed in range(2000):
        for p, start, stop in scores.sample_examples(Sizes(sizes), np.arange(3), 10, seed):  # type: ignore[arg-type]
            counts[sum(sizes[:p]) + start : sum(sizes[:p]) + stop] += 1
    # Each is in a quarter of 2000 samples, with a standard deviation of 19.
    assert np.abs(counts - 500).max() < 5 * 19


def test_the_same_examples_are_scored_in_every_round(experiment: Make) -> None:
    tests = make_clients([50, 1, 40], seed=3, prefix="t")
    data = raysim.FederatedDataset.from_clients(train=make_clients([9]), test=tests)
    still = experiment(
        rounds=3,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 0.0}},
        cohort={"size": 1},
        evaluation={"examples": 20, "every": 1},
        engine={"workers": 0, "dtype": "float64"},
    )
    rounds = list(raysim.rounds(still, dataset=data, model=lambda: nn.Linear(5, 3)))
    (losses,) = {row.metrics["eval/test/loss"] for row in rounds}
    w, b = rounds[-1].params["weight"].numpy(), rounds[-1].params["bias"].numpy()
    split = data.split("test")
    sampled = scores.sample_examples(split, np.arange(3), 20, still.seed)
    x, y = (np.concatenate([split.client(p)[side][start:stop] for p, start, stop in sampled]) for side in (0, 1))
    assert len(y) == 20
    expected = nn.functional.cross_entropy(torch.from_numpy(x @ w.T + b), torch.from_numpy(y)).item()
    assert losses == pytest.approx(expected, rel=1e-12)


def test_dropout_is_off_in_evaluation_and_batch_norm_uses_its_averages(experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train=make_clients([20]), test=make_clients([50]))

    def module() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 8), nn.Dropout(0.9), nn.Linear(8, 3))

    one = experiment(rounds=1, model=None, cohort={"size": 1})
    (only,) = raysim.rounds(one, dataset=data, model=module)
    net = module().eval()
    net.load_state_dict(only.params)
    x, y = make_clients([50])["c0"]
    accuracy = (net(torch.from_numpy(x).float()).argmax(1).numpy() == y).mean()
    assert only.metrics["eval/test/accuracy"] == pytest.approx(accuracy)
