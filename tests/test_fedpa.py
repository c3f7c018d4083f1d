"""FedPA against a float64 NumPy re-statement of docs/algorithms.md, section 3, with a dense inverse of Sigma."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.client.corrections.fedpa import PIECE, posterior_update
from tests.support.corrected_runs import BATCH, DECAY, LR, SGD, SHAPES, Make, flat, grad
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, clients, network, start

EPOCHS: dict[str, Any] = {"epochs": 4}
STEPS: dict[str, Any] = {"local_steps": 9}


def dense(samples: list[Array], x: Array, rho: float) -> Array:
    """Sigma^-1 (mu - x), as it is printed."""
    num = len(samples)
    mean = np.mean(samples, axis=0)
    if num == 1:
        return mean - x
    covariance = np.cov(np.array(samples).T, ddof=1)
    r = 1 / (1 + (num - 1) * rho)
    return np.linalg.solve(r * np.eye(len(x)) + (1 - r) * covariance, mean - x)


def local(
    x: Array, client: str, lr: float, work: dict[str, Any], keys: dict[str, Any], t: int, momentum: float
) -> Array:
    inputs, targets = clients()[client]
    epoch = list(range(0, len(targets), BATCH))
    firsts = (epoch * 20)[: work["local_steps"]] if "local_steps" in work else epoch * work["epochs"]
    unit = 1 if "local_steps" in work else len(epoch)
    y, velocity, after = x.copy(), np.zeros_like(x), []
    for first in firsts:
        velocity = momentum * velocity + grad(y, inputs[first : first + BATCH], targets[first : first + BATCH])
        y = y - lr * velocity
        after.append(y)
    kept, length = after[keys["burn_in"] * unit :], keys["sample"] * unit
    samples = [np.mean(kept[i : i + length], axis=0) for i in range(0, len(kept) - length + 1, length)]
    if not samples or t < keys.get("from_round", 0):
        return y - x
    return dense(samples, x, keys["rho"])


def page(work: dict[str, Any], keys: dict[str, Any], momentum: float = 0.0, clip: float = np.inf) -> list[Array]:
    x, models = flat(start()), list[Array]()
    for t, cohort in enumerate(COHORTS):
        made = [local(x, c, LR * DECAY**t, work, keys, t, momentum) for c in cohort]
        x = x + sum(d * min(1.0, clip / float(np.linalg.norm(d))) for d in made) / len(made)
        models.append(x)
    return models


def run(
    experiment: Make, work: dict[str, Any], keys: dict[str, Any] | None, trainer: str = "fused", **changes: Any
) -> list[Array]:
    optimizer = {**SGD, "lr": LR, "momentum": changes.pop("momentum", 0.0)}
    client: dict[str, Any] = {"optimizer": optimizer, "lr_decay": DECAY, "batch_size": BATCH, "shuffle": False, **work}
    engine = {"workers": 0, "dtype": changes.pop("dtype", "float64"), "chunk_size": 2, "trainer": trainer}
    exp = experiment(
        rounds=ROUNDS,
        model=None,
        client=client | ({} if keys is None else {"posterior": keys}),
        cohort={"sampler": {"name": "replay", "cohorts": COHORTS}},
        server={"weighting": "uniform", **changes},
        engine=engine,
    )
    data = raysim.FederatedDataset.from_clients(train=clients())
    rounds = raysim.rounds(exp, dataset=data, model=network, params=start())
    return [flat({name: done.params[name].double().numpy() for name in SHAPES}) for done in rounds]


@pytest.mark.parametrize("trainer", ["one_by_one", "recorded", "interpreted", "fused", "stacked", "vmap", "compiled"])
@pytest.mark.parametrize(
    ("work", "keys", "momentum"),
    [
        (EPOCHS, {"burn_in": 1, "sample": 1, "rho": 0.7}, 0.0),
        (EPOCHS, {"burn_in": 0, "sample": 2, "rho": 0.7, "from_round": 2}, 0.6),
        (STEPS, {"burn_in": 2, "sample": 3, "rho": 5.0}, 0.0),
    ],
    ids=["epochs", "later, momentum", "steps"],
)
def test_a_run_is_what_the_page_says(
    work: dict[str, Any], keys: dict[str, Any], momentum: float, trainer: str, experiment: Make
) -> None:
    got = run(experiment, work, keys, trainer, momentum=momentum)
    np.testing.assert_allclose(got, page(work, keys, momentum), 1e-9, 1e-12)


def test_in_float32_it_agrees_to_rounding_and_is_clipped(experiment: Make) -> None:
    keys = {"burn_in": 1, "sample": 1, "rho": 0.1}
    got = run(experiment, STEPS, keys, "stacked", dtype="float32", clip={"fixed": 0.3})
    np.testing.assert_allclose(got, page(STEPS, keys, clip=0.3), 5e-5, 5e-6)


def test_without_a_whole_sample_it_is_fedavg(experiment: Make) -> None:
    short = {"burn_in": 8, "sample": 2, "rho": 0.5}
    assert np.array_equal(run(experiment, STEPS, short), run(experiment, STEPS, None))


def test_with_rho_0_it_is_the_mean_of_the_samples() -> None:
    samples, x = torch.randn(4, PIECE + 7, dtype=torch.float64), torch.randn(PIECE + 7, dtype=torch.float64)
    wanted = samples.mean(0) - x
    torch.testing.assert_close(posterior_update(samples, x, 0.0), wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("num", [1, 2, 7])
@pytest.mark.parametrize("rho", [0.01, 1.0, 30.0])
def test_the_closed_form_is_the_dense_inverse(num: int, rho: float) -> None:
    rng = np.random.default_rng(num)
    samples, x = rng.normal(size=(num, 40)), rng.normal(size=40)
    got = posterior_update(torch.from_numpy(samples), torch.from_numpy(x), rho)
    np.testing.assert_allclose(got, dense(list(samples), x, rho), 1e-9, 1e-11)


def test_samples_that_are_near_each_other_and_x_lose_nothing_in_float32() -> None:
    """s - x is what counts: rounding is of its size, not of that of the models."""
    x = 1 + torch.rand(PIECE + 7)
    samples = x + 1e-3 * torch.randn(6, PIECE + 7)
    got, wanted = posterior_update(samples, x, 0.5), posterior_update(samples.double(), x.double(), 0.5)
    torch.testing.assert_close(got.double(), wanted, rtol=0, atol=1e-6 * float(wanted.abs().max()))


def test_pieces_make_no_difference() -> None:
    """Far apart coordinates meet in the same Gram matrix: zeros between them change nothing."""
    samples, x = torch.randn(3, 10, dtype=torch.float64), torch.randn(10, dtype=torch.float64)
    wide, start_ = torch.zeros(3, 3 * PIECE, dtype=torch.float64), torch.zeros(3 * PIECE, dtype=torch.float64)
    wide[:, :5], wide[:, -5:], start_[:5], start_[-5:] = samples[:, :5], samples[:, 5:], x[:5], x[5:]
    got, wanted = posterior_update(wide, start_, 0.4), posterior_update(samples, x, 0.4)
    torch.testing.assert_close(torch.cat([got[:5], got[-5:]]), wanted, rtol=1e-12, atol=1e-14)
    assert not bool(got[5:-5].any())


@pytest.mark.parametrize(
    ("client", "server", "message"),
    [
        ({"correction": {"name": "prox", "mu": 0.1}}, {}, "correction.name = 'prox' changes it"),
        ({}, {"aggregator": {"name": "fednova"}}, "client.posterior sends another vector"),
        ({}, {"aggregator": {"name": "local_adaptivity"}}, "client.posterior sends another vector"),
        ({"local_steps": 3, "posterior": {"burn_in": 4}}, {}, "burn_in = 4 with 3 epochs or local steps"),
        ({"epochs": 2, "posterior": {"burn_in": 3}}, {}, "burn_in = 3 with 2 epochs or local steps"),
        ({"local_steps": 9, "max_local_steps": 3, "posterior": {"burn_in": 4}}, {}, "burn_in = 4 with 3"),
    ],
    ids=["prox", "fednova", "local_adaptivity", "steps", "epochs", "capped"],
)
def test_what_it_is_not_defined_with_is_refused(
    client: dict[str, Any], server: dict[str, Any], message: str, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(client={"posterior": {}, **client}, server=server)


def test_defaults_and_a_burn_in_as_long_as_the_work_are_accepted(experiment: Make) -> None:
    section = experiment(client={"posterior": {}}).client.posterior
    assert section is not None
    assert (section.burn_in, section.sample, section.rho, section.from_round) == (1, 1, 0.01, 0)


@pytest.mark.parametrize(
    ("client", "said"),
    [
        (
            {"posterior": {}},
            "no client takes a sample, so all send y - x, as FedAvg: burn_in = 1, sample = 1, at most 1",
        ),
        ({"local_steps": 5, "posterior": {"burn_in": 2, "sample": 4}}, "no client takes a sample"),
        ({"epochs": {"low": 1, "high": 2}, "posterior": {}}, "more than one sample, so rho has no effect"),
        ({"epochs": 2, "posterior": {}, "schedule": [{"round": 5, "epochs": 3}]}, None),
        ({"epochs": 1}, None),
    ],
    ids=["defaults", "steps", "one", "later", "FedAvg"],
)
def test_keys_without_effect_are_warned_of(
    client: dict[str, Any], said: str | None, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    made = experiment(model=None, client=client, cohort={"size": 1}, rounds=1, engine={"workers": 0})
    list(raysim.rounds(made, dataset=raysim.FederatedDataset.from_clients(train=clients()), model=network))
    warned = [record.getMessage() for record in caplog.records if "client.posterior" in record.getMessage()]
    assert len(warned) == (said is not None)
    assert said is None or said in warned[0]
