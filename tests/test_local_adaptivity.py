"""Local adaptivity against a float64 NumPy re-statement of docs/algorithms.md, section 4."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import raysim
from tests.support.corrected_runs import BATCH, DECAY, LR, Make, flat, grad, run
from tests.support.tanh_federation import COHORTS, Array, clients, start

ADAGRAD: dict[str, Any] = {"name": "adagrad", "eps": 1e-3, "v0": 0.01}
SGD: dict[str, Any] = {"name": "sgd"}
CLIP = 0.3


def local(x: Array, client: str, lr: float, adagrad: bool) -> tuple[Array, Array]:
    """The update and a_i."""
    inputs, targets = clients()[client]
    y, total, a = x.copy(), np.full_like(x, 0.01), np.zeros_like(x)
    for first in [*range(0, len(targets), BATCH)] * 2:
        g = grad(y, inputs[first : first + BATCH], targets[first : first + BATCH])
        total = total + g**2
        factor = 1 / (np.sqrt(total) + 1e-3) if adagrad else np.ones_like(x)
        y, a = y - lr * factor * g, a + factor
    return y - x, a


def page(correction: str, adagrad: bool, weighting: str, clip: float = np.inf) -> list[tuple[Array, float, float]]:
    """After every round: the model, |g|, and GSI of the vectors that enter the mean."""
    x, found = flat(start()), []
    for t, cohort in enumerate(COHORTS):
        made = [local(x, c, LR * DECAY**t, adagrad) for c in cohort]
        n = np.array([len(clients()[c][1]) if weighting == "examples" else 1.0 for c in cohort])
        p = n / n.sum()
        h = [d * min(1.0, clip / float(np.linalg.norm(d))) / a for d, a in made]
        mean = sum(pi * hi for pi, hi in zip(p, h, strict=True))
        index = np.sqrt(sum(pi * (hi**2).sum() for pi, hi in zip(p, h, strict=True)) / (mean**2).sum())
        if correction == "joint":
            mean = mean / sum(pi / a for pi, (_, a) in zip(p, made, strict=True))
        x = x + mean
        found.append((x, float(np.linalg.norm(mean)), float(index)))
    return found


def follow(steps: Any, wanted: list[tuple[Array, float, float]], rtol: float = 1e-9, atol: float = 1e-12) -> None:
    for done, (x, norm, index) in zip(steps, wanted, strict=True):
        got = flat({name: value.double().numpy() for name, value in done.params.items()})
        np.testing.assert_allclose(got, x, rtol, atol, err_msg=f"round {done.index}")
        np.testing.assert_allclose(done.metrics["pseudo_gradient_norm"], norm, rtol)
        np.testing.assert_allclose(done.metrics["gsi"], index, rtol)


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"])
@pytest.mark.parametrize("optimizer", [ADAGRAD, SGD], ids=["adagrad", "sgd"])
@pytest.mark.parametrize("correction", ["joint", "local"])
def test_a_run_is_what_the_page_says(
    correction: str, optimizer: dict[str, Any], trainer: str, experiment: Make
) -> None:
    aggregator = {"name": "local_adaptivity", "correction": correction}
    steps = run(experiment, None, optimizer, trainer, weighting="examples", aggregator=aggregator, bound=CLIP)
    follow(steps, page(correction, optimizer is ADAGRAD, "examples", CLIP))


@pytest.mark.parametrize("optimizer", [ADAGRAD, SGD], ids=["adagrad", "sgd"])
def test_in_float32_it_agrees_to_rounding(optimizer: dict[str, Any], experiment: Make) -> None:
    steps = run(experiment, None, optimizer, "fused", "float32", aggregator={"name": "local_adaptivity"})
    follow(steps, page("joint", optimizer is ADAGRAD, "uniform"), 5e-5, 5e-6)


@pytest.mark.parametrize(
    ("correction", "optimizer", "vectors"), [("joint", ADAGRAD, 2), ("joint", SGD, 1), ("local", ADAGRAD, 1)]
)
def test_the_vectors_that_the_mean_is_divided_by_are_sent(
    correction: str, optimizer: dict[str, Any], vectors: int, experiment: Make
) -> None:
    aggregator = {"name": "local_adaptivity", "correction": correction}
    first = next(iter(run(experiment, None, optimizer, "fused", aggregator=aggregator)))
    assert first.metrics["bytes_up"] == vectors * len(COHORTS[0]) * flat(start()).nbytes


def test_joint_with_equal_steps_is_fedavg(experiment: Make) -> None:
    work = {"local_steps": 4}
    joint = run(experiment, None, SGD, "fused", work=work, aggregator={"name": "local_adaptivity"})
    for got, wanted in zip(joint, run(experiment, None, SGD, "fused", work=work), strict=True):
        for name, value in wanted.params.items():
            np.testing.assert_allclose(got.params[name], value, 1e-12, 1e-14)


def test_a_number_without_gradients_stays(experiment: Make) -> None:
    """A feature that is always 0: h_i = 0, and with the least eps a_i is about 1e20."""
    train = {c: (np.insert(x, 3, 0.0, axis=1), y) for c, (x, y) in clients().items()}
    exp = experiment(
        rounds=2,
        model={"name": "linear"},
        client={"optimizer": {"name": "adagrad", "lr": 0.1, "eps": 1e-20}, "batch_size": 4},
        cohort={"size": 3},
        server={"aggregator": {"name": "local_adaptivity"}},
    )
    before, after = (
        [each.params for each in raysim.rounds(exp, dataset=raysim.FederatedDataset.from_clients(train=train))][i]
        for i in (0, 1)
    )
    name = next(name for name, value in before.items() if value.ndim == 2)
    np.testing.assert_array_equal(before[name][:, 3], after[name][:, 3])
    assert bool(after[name].isfinite().all())
    assert not np.array_equal(before[name][:, :3], after[name][:, :3])


@pytest.mark.parametrize(
    ("client", "message"),
    [
        ({"optimizer": {"name": "adam"}}, "must be 'adagrad', or 'sgd' without momentum, but got 'adam'"),
        ({"optimizer": {"name": "sgd", "momentum": 0.5}}, "client.optimizer.momentum must be 0, but got 0.5"),
        ({"optimizer": {"name": "adagrad", "weight_decay": 0.1}}, "client.optimizer.weight_decay must be 0"),
        ({"correction": {"name": "scaffold"}}, "server.aggregator.name 'mean' or 'fednova'"),
    ],
    ids=["adam", "momentum", "decay", "scaffold"],
)
def test_what_it_is_not_defined_with_is_refused(client: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(client=client, server={"aggregator": {"name": "local_adaptivity"}})
