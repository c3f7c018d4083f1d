"""FedAvg, against what its definition says in closed form. All in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.client import batches

FLOAT64 = {"workers": 0, "dtype": "float64"}
Make = Callable[..., raysim.Experiment]


def least_squares(sizes: list[int]) -> tuple[raysim.FederatedDataset, dict[str, tuple[Any, Any]]]:
    rng = np.random.default_rng(5)
    clients = {str(i): (rng.normal(size=(n, 3)), rng.normal(size=n)) for i, n in enumerate(sizes)}
    return raysim.FederatedDataset.from_clients(train=clients), clients


def no_bias() -> nn.Module:
    return nn.Linear(3, 1, bias=False)


def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of the mean squared error."""
    return 2 * x.T @ (x @ w - y) / len(y)


def run(
    experiment: raysim.Experiment, data: raysim.FederatedDataset, start: np.ndarray, **more: Any
) -> list[np.ndarray]:
    steps = raysim.rounds(experiment, dataset=data, model=no_bias, params={"weight": start[None]}, **more)
    return [r.params["weight"].numpy()[0] for r in steps]


def test_fedsgd_with_every_client_is_gradient_descent(experiment: Make) -> None:
    data, clients = least_squares([4, 9, 2])
    fedsgd = experiment(
        rounds=5,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
        server={"optimizer": {"name": "sgd", "lr": 0.1}},
        cohort={"size": 3},
        engine=FLOAT64,
    )
    x, y = (np.concatenate(parts) for parts in zip(*clients.values(), strict=True))
    w = start = np.array([1.0, -2.0, 0.5])
    for got in run(fedsgd, data, start):
        w = w - 0.1 * gradient(w, x, y)
        np.testing.assert_allclose(got, w, rtol=1e-13)


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_server_lr_1_is_the_weighted_average_of_the_client_models(
    weighting: str, momentum: float, experiment: Make
) -> None:
    data, clients = least_squares([4, 9, 2])
    fedavg = experiment(
        rounds=3,
        model=None,
        client={
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": momentum},
            "batch_size": 2,
            "epochs": 2,
            "lr_decay": 0.5,
        },
        server={"weighting": weighting},
        cohort={"size": 3},
        engine=FLOAT64,
    )
    x_server = start = np.array([1.0, -2.0, 0.5])
    for t, got in enumerate(run(fedavg, data, start)):
        models, weights = [], []
        for position, (x, y) in enumerate(clients.values()):
            (plan,) = batches.draw(fedavg.client, [len(y)], fedavg.seed, t, [position])
            w, v = x_server.copy(), np.zeros(3)
            for first, last in zip(plan.bounds, plan.bounds[1:], strict=False):
                chosen = plan.order[first:last]
                v = momentum * v + gradient(w, x[chosen], y[chosen])
                w = w - 0.05 * 0.5**t * v
            models.append(w)
            weights.append(len(y) if weighting == "examples" else 1)
        x_server = np.average(models, axis=0, weights=weights)
        np.testing.assert_allclose(got, x_server, rtol=1e-12)


def test_clipping_and_decay_act_in_the_order_of_the_conventions(experiment: Make) -> None:
    data, clients = least_squares([6])
    clipped = experiment(
        rounds=1,
        model=None,
        client={
            "optimizer": {"name": "sgd", "lr": 0.5, "weight_decay": 0.1},
            "batch_size": "full",
            "max_grad_norm": 0.25,
        },
        cohort={"size": 1},
        engine=FLOAT64,
    )
    start = np.array([1.0, -2.0, 0.5])
    g = gradient(start, *clients["0"])
    assert np.linalg.norm(g) > 0.25
    expected = start - 0.5 * (g * 0.25 / np.linalg.norm(g) + 0.1 * start)
    np.testing.assert_allclose(run(clipped, data, start)[0], expected, rtol=1e-13)


def test_a_client_that_does_not_train_has_no_delta(experiment: Make) -> None:
    data, _ = least_squares([4, 9, 2])
    still = experiment(model=None, client={"optimizer": {"name": "sgd", "lr": 0.0}}, cohort={"size": 2}, engine=FLOAT64)
    start = np.array([1.0, -2.0, 0.5])
    for got in run(still, data, start):
        assert got.tolist() == start.tolist()


def test_metrics_are_what_their_names_say(experiment: Make) -> None:
    data, clients = least_squares([4, 9])
    one_step = experiment(
        rounds=1,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
        server={"optimizer": {"name": "sgd", "lr": 0.5}},
        cohort={"size": 2},
        engine=FLOAT64,
    )
    start = np.array([1.0, -2.0, 0.5])
    steps = raysim.rounds(one_step, dataset=data, model=no_bias, params={"weight": start[None]})
    (metrics,) = [r.metrics for r in steps]
    gradients = [gradient(start, *client) for client in clients.values()]
    errors = np.concatenate([(x @ start - y) ** 2 for x, y in clients.values()])
    assert metrics["loss"] == pytest.approx(errors.mean())
    assert "accuracy" not in metrics
    assert (metrics["clients"], metrics["examples"], metrics["examples_held"], metrics["rejected"]) == (2, 13, 13, 0)
    assert metrics["mean_update_norm"] == pytest.approx(np.mean([np.linalg.norm(g) for g in gradients]))
    pooled = (4 * gradients[0] + 9 * gradients[1]) / 13
    assert metrics["pseudo_gradient_norm"] == pytest.approx(np.linalg.norm(pooled))
    assert metrics["server_lr"] == 0.5
    assert metrics["bytes_down"] == metrics["bytes_up"] == 2 * 3 * 8


class Diverging(nn.Module):
    """Gives NaN to clients whose first feature is above 1000."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * torch.where(x[:, :1] > 1000, torch.nan, 1.0)


def test_a_non_finite_update_leaves_the_round_and_is_named(experiment: Make, caplog: pytest.LogCaptureFixture) -> None:
    data, clients = least_squares([4, 9, 2])
    bad = raysim.FederatedDataset.from_clients(
        train=clients | {"broken": (np.full((5, 3), 2000.0), np.zeros(5))},
    )
    settings = {"model": None, "rounds": 2, "engine": FLOAT64}
    start = {"fc.weight": np.ones((1, 3))}
    with_bad = list(
        raysim.rounds(experiment(**settings, cohort={"size": 4}), dataset=bad, model=Diverging, params=start)
    )
    without = list(
        raysim.rounds(experiment(**settings, cohort={"size": 3}), dataset=data, model=Diverging, params=start)
    )
    for left, right in zip(with_bad, without, strict=True):
        assert left.rejected == ("broken",)
        assert (left.metrics["clients"], left.metrics["rejected"]) == (3, 1)
        # The same three clients in another order: equal to rounding.
        torch.testing.assert_close(left.params["fc.weight"], right.params["fc.weight"], rtol=1e-12, atol=0)
    assert "broken" in caplog.text


def test_a_round_that_loses_everyone_leaves_the_model_as_it_is(experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients(train={"broken": (np.full((5, 3), 2000.0), np.zeros(5))})
    lost = experiment(model=None, rounds=1, cohort={"size": 1}, engine=FLOAT64)
    (only,) = raysim.rounds(lost, dataset=data, model=Diverging, params={"fc.weight": np.ones((1, 3))})
    assert only.params["fc.weight"].tolist() == [[1.0, 1.0, 1.0]]
    assert only.metrics["clients"] == 0


def test_buffers_are_averaged_and_counters_take_the_maximum(experiment: Make) -> None:
    data, clients = least_squares([4, 8])
    one = experiment(
        model=None, rounds=1, client={"batch_size": 4, "shuffle": False}, cohort={"size": 2}, engine=FLOAT64
    )

    def normed() -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(3, momentum=1.0), nn.Linear(3, 1))

    (only,) = raysim.rounds(one, dataset=data, model=normed)
    # With momentum 1 a client ends with the mean of its last batch: all four examples, or the last four of eight.
    means = [clients["0"][0].mean(0), clients["1"][0][4:].mean(0)]
    np.testing.assert_allclose(only.params["0.running_mean"], (4 * means[0] + 8 * means[1]) / 12, rtol=1e-12)
    assert only.params["0.num_batches_tracked"].item() == 2


class MaskedBySums(nn.Module):
    """Adds a mask of -inf, as causal attention does; a buffer begins at infinity and falls, and one is not a number."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("least", torch.tensor(torch.inf))
        self.register_buffer("unknown", torch.tensor(torch.nan))

    def forward(self, x: Tensor) -> Tensor:
        least = self.get_buffer("least")
        if self.training:
            least.copy_(torch.minimum(least, x.min()))
        made: Tensor = (self.linear(x) + self.get_buffer("mask")).softmax(-1) * self.linear(x)
        return made.sum(-1, keepdim=True)


@pytest.mark.parametrize("share", [1.0, 0.0])
def test_a_buffer_with_infinity_stays_as_it_is(experiment: Make, share: float) -> None:
    data, clients = least_squares([4, 8])
    one = experiment(
        model=None, rounds=1, client={"batch_size": 4, "shuffle": False}, cohort={"size": 2}, engine=FLOAT64
    )

    def weight(facts: raysim.ClientFacts) -> float:
        return share if facts.client == "0" else 1.0

    (last,) = raysim.rounds(one, dataset=data, model=MaskedBySums, weighting=weight)
    assert last.metrics["rejected"] == 0
    assert last.params["mask"].tolist() == [0.0, -np.inf]
    assert last.params["unknown"].isnan()
    least = [x.min() for x, _ in clients.values()]
    np.testing.assert_allclose(last.params["least"], (share * least[0] + least[1]) / (share + 1), rtol=1e-12)


def test_a_buffer_that_becomes_infinite_is_rejected(experiment: Make) -> None:
    data, _ = least_squares([4, 8])
    one = experiment(
        model=None, rounds=1, client={"batch_size": 4, "shuffle": False}, cohort={"size": 2}, engine=FLOAT64
    )

    class Overflowing(MaskedBySums):
        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = super().forward(x)
            if self.training:
                self.get_buffer("least").fill_(-torch.inf)
            return made

    (only,) = raysim.rounds(one, dataset=data, model=Overflowing)
    assert only.metrics["rejected"] == 2
