"""Central privacy: equal to the equations of docs/algorithms.md where nothing is drawn, to their moments where it is.

Epsilon is equal to that of calls of dp-accounting.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting import NeighboringRelation
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

import raysim
from raysim import seeds
from raysim.errors import ExperimentError
from raysim.report.build import build
from raysim.server.privacy.discrete import discrete_gaussian, rounded
from raysim.server.privacy.tree import nodes, squared_sensitivity
from tests.support.interrupted import same_records
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
N = 20
HALF = {"name": "bernoulli", "probability": 0.5}
NOBODY = {"name": "bernoulli", "probability": 1e-12}
WIDE = {"name": "mlp", "hidden": [200]}


def private(experiment: Make, privacy: dict[str, Any] | None, clip: Any = None, **sections: Any) -> raysim.Experiment:
    server = {"clip": clip or {"fixed": 0.5}, "weighting": "uniform", **sections.pop("server", {})}
    if privacy is not None:
        server["privacy"] = {"name": "gaussian", **privacy}
    sections.setdefault("cohort", {"size": 7})
    engine = {"workers": 0, "dtype": "float64", **sections.pop("engine", {})}
    return experiment(**{"rounds": 3, "server": server, "engine": engine, "evaluation": {}, **sections})


def done(exp: raysim.Experiment, data: raysim.FederatedDataset, **parts: Any) -> list[Any]:
    return list(raysim.rounds(exp, dataset=data, **parts))


def flat(made: Any) -> torch.Tensor:
    return torch.cat([value.flatten() for value in made.params.values()])


def step(exp: raysim.Experiment, data: raysim.FederatedDataset) -> torch.Tensor:
    """The difference that the first round makes."""
    first, *_ = done(exp, data)
    model = raysim.rounds(exp.changed(["server.optimizer.lr=0.0"]), dataset=data)
    return flat(first) - flat(next(iter(model)))


def test_the_denominator_is_fixed(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = private(experiment, {"noise_multiplier": 0.0}, cohort={"sampler": HALF})
    plain = private(experiment, None, cohort={"sampler": HALF})
    came = done(plain, dataset)[0].metrics["clients"]
    assert came != N / 2
    torch.testing.assert_close(step(exp, dataset) * (N / 2), step(plain, dataset) * came)
    assert [made.metrics["epsilon"] for made in done(exp, dataset)] == [None] * 3


def test_weights_are_uniform_unless_said(experiment: Make) -> None:
    given = private(experiment, {"noise_multiplier": 0.0}).model_dump(mode="json", exclude_unset=True)
    del given["server"]["weighting"]
    assert raysim.Experiment.model_validate(given).server.weighting == "uniform"
    given["server"]["weighting"] = "examples"
    with pytest.raises(ExperimentError, match="must be 'uniform', but got 'examples'"):
        raysim.Experiment.model_validate(given)


def test_an_update_that_is_not_finite_is_a_zero(experiment: Make) -> None:
    clients = make_clients([9] * 8)
    broken = {**clients, "c3": (clients["c3"][0] * np.nan, clients["c3"][1])}
    still = {**clients, "c3": (clients["c3"][0] * 0, clients["c3"][1])}
    cohort = {"sampler": {"name": "replay", "cohorts": [["c0", "c3", "c5"]]}}
    clip = {"initial": 0.5, "quantile": 0.5, "lr": 1.0}
    zero = {"noise_multiplier": 0.0, "count_std": 0.0}
    exp = private(experiment, zero, clip, cohort=cohort, rounds=1, model={"name": "linear", "bias": False})
    with_nan, with_zero = (
        done(exp.changed(["rounds=1"]), raysim.FederatedDataset.from_clients(train=each))[0] for each in (broken, still)
    )
    torch.testing.assert_close(flat(with_nan), flat(with_zero))
    assert with_nan.rejected == ("c3",)
    # Its b is 0, and the others' are above the level.
    level = done(
        private(
            experiment,
            zero,
            clip,
            cohort={"sampler": {**cohort["sampler"], "cohorts": [["c0", "c3", "c5"]] * 2}},
            rounds=2,
            model={"name": "linear", "bias": False},
        ),
        raysim.FederatedDataset.from_clients(train=broken),
    )[1]
    assert with_nan.metrics["clipped_fraction"] == 1
    assert level.metrics["clip_level"] == pytest.approx(0.5 * math.exp(0.5))


@pytest.mark.parametrize(
    ("privacy", "scale"),
    [({"noise_multiplier": 2.0}, 2.0 * 0.5 / 7), ({"noise_multiplier": 2.0, "noise_cohort_size": 14}, 2.0 * 0.5 / 14)],
)
def test_the_noise_of_a_mean(
    privacy: dict[str, Any], scale: float, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    privacy = {**privacy, "accountant": "rdp"}
    exp = private(experiment, privacy, model=WIDE)
    quiet = private(experiment, {"noise_multiplier": 0.0}, model=WIDE)
    noise = step(exp, dataset) - step(quiet, dataset)
    assert float(noise.std()) == pytest.approx(scale, rel=4 / math.sqrt(2 * len(noise)))
    assert abs(float(noise.mean())) < 4 * scale / math.sqrt(len(noise))
    assert done(exp, dataset)[0].metrics["noise_std"] == pytest.approx(scale)
    # It depends on seed and round, and on nothing else.
    other = {"client": {"optimizer": {"name": "sgd", "lr": 0.01}, "batch_size": 2}, "engine": {"chunk_size": 2}}
    again = [step(private(experiment, p, model=WIDE, **other), dataset) for p in (privacy, {"noise_multiplier": 0.0})]
    torch.testing.assert_close(again[0] - again[1], noise, rtol=1e-9, atol=1e-12)


def test_a_round_with_nobody_has_its_noise_and_its_step(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    cohort = {"sampler": NOBODY}
    privacy = {"noise_multiplier": 1.0, "accountant": "rdp", "noise_cohort_size": 10}
    first, second, third = done(private(experiment, privacy, cohort=cohort, model=WIDE), dataset)
    assert first.metrics["clients"] == 0
    assert first.metrics["loss"] is None
    a, b = flat(second) - flat(first), flat(third) - flat(second)
    assert not torch.equal(a, b)
    for noise in (a, b):
        assert float(noise.std()) == pytest.approx(0.5 / 10, rel=4 / math.sqrt(2 * len(noise)))
    assert first.metrics["signal_to_noise"] == 0
    assert first.metrics["pseudo_gradient_norm"] > 0


def test_local_noise_is_each_client_s(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    loud, quiet = {"name": "local", "noise_multiplier": 2.0}, {"name": "local", "noise_multiplier": 0.0}
    noise = step(private(experiment, loud, model=WIDE), dataset) - step(private(experiment, quiet, model=WIDE), dataset)
    scale = 2.0 * 0.5 / math.sqrt(7)
    assert float(noise.std()) == pytest.approx(scale, rel=4 / math.sqrt(2 * len(noise)))
    first, *_ = done(private(experiment, loud, model=WIDE), dataset)
    assert first.metrics["noise_std"] == pytest.approx(scale)
    # Nobody reports: the model stays.
    alone = done(private(experiment, loud, cohort={"sampler": NOBODY}), dataset)
    assert torch.equal(flat(alone[0]), flat(alone[-1]))
    assert alone[0].metrics["noise_std"] is None


def discrete(**keys: Any) -> dict[str, Any]:
    return {"name": "distributed", "bits": 24, **keys}


def test_distributed_noise_is_that_of_all_clients(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    quiet, plain = discrete(noise_multiplier=0.0), {"noise_multiplier": 0.0}
    exact = step(private(experiment, plain, model=WIDE), dataset)
    fine = step(private(experiment, quiet, model=WIDE), dataset)
    # Rounded up or down by gamma/M in each of seven messages.
    gamma = 8 * math.sqrt(0.25 * 49 / 2048) / math.sqrt(4.0**24 - 16 * 7)
    assert float((fine - exact).abs().max()) < 7 * gamma
    noise = step(private(experiment, discrete(noise_multiplier=2.0), model=WIDE), dataset) - exact
    scale = 2.0 * 0.5 / 7
    assert float(noise.std()) == pytest.approx(scale, rel=4 / math.sqrt(2 * len(noise)))
    made = done(private(experiment, discrete(noise_multiplier=2.0), model=WIDE), dataset)
    assert made[0].metrics["noise_std"] == pytest.approx(scale)
    assert made[0].metrics["secure_sum/wrapped"] == 0
    assert made[0].metrics["bytes_up"] == 7 * 2048 * 24 // 8
    # Eight bits are few for so much noise at this granularity.
    narrow = discrete(noise_multiplier=2.0, granularity=1e-2) | {"bits": 8}
    assert (done(private(experiment, narrow, model=WIDE), dataset)[0].metrics["secure_sum/wrapped"] or 0) > 0


def test_discrete_numbers_have_their_moments() -> None:
    rng, count = seeds.generator(1), 40_000
    for sigma in (0.4, 3.0):
        y = discrete_gaussian(rng, sigma, count)
        support = np.arange(-60, 61)
        p = np.exp(-(support**2) / (2 * sigma**2))
        p /= p.sum()
        assert y.mean() == pytest.approx(0, abs=4 * sigma / math.sqrt(count))
        assert y.var() == pytest.approx((p * support**2).sum(), rel=0.03)
        assert (y == 0).mean() == pytest.approx(p[60], abs=0.01)
    values = np.array([0.25, -1.75, 3.0])
    means = np.mean([rounded(rng, values, bound=10.0) for _ in range(20_000)], axis=0)
    np.testing.assert_allclose(means, values, atol=0.02)
    assert all(np.linalg.norm(rounded(rng, values, bound=3.2)) <= 3.2 for _ in range(100))


def test_epsilon_of_distributed_noise(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # 75 numbers are padded to 128.
    z, bits, clients, dimension, rho = 1.0, 8, 7, 128, 0.5
    gamma = 8 * math.sqrt(rho**2 * clients**2 / dimension + z**2 * rho**2) / math.sqrt(4.0**bits - 16 * clients)
    r, sigma = rho / gamma, z * rho / (gamma * math.sqrt(clients))
    b = min(r + math.sqrt(dimension), math.sqrt(r**2 + dimension / 4 + r + math.sqrt(dimension) / 2))
    s = gamma * b / (z * rho)
    tau = 10 * sum(math.exp(-2 * math.pi**2 * sigma**2 * k / (k + 1)) for k in range(1, clients))
    events = [(s**2 / 2, tau * dimension), ((s + math.sqrt(dimension) * tau) ** 2 / 2, 0.0)]
    made = done(private(experiment, discrete(noise_multiplier=z) | {"bits": bits}), dataset)
    for n in (1, 3):
        each = [RdpAccountant().compose(dp_accounting.ZCDpEvent(*event), n).get_epsilon(N**-1.1) for event in events]
        assert made[n - 1].metrics["epsilon"] == pytest.approx(min(each), rel=1e-6)


def test_a_field_that_is_too_small_is_refused(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    with pytest.raises(ExperimentError, match=r"bits = 3 and M = 7: take more bits"):
        raysim.rounds(private(experiment, discrete(noise_multiplier=1.0) | {"bits": 3}), dataset=dataset)


def test_a_granularity_that_makes_numbers_which_are_not_exact_is_refused(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    fine = discrete(noise_multiplier=1e6, granularity=1e-12)
    with pytest.raises(ExperimentError, match="makes numbers above"):
        raysim.rounds(private(experiment, fine), dataset=dataset)


def test_a_client_whose_update_is_not_finite_reports_noise(experiment: Make) -> None:
    clients = make_clients([9] * 3)
    broken = {**clients, "c1": (clients["c1"][0] * np.nan, clients["c1"][1])}
    data = raysim.FederatedDataset.from_clients(train=broken)
    everyone = {"cohort": {"size": 3}, "model": WIDE}
    loud, quiet = ({"name": "local", "noise_multiplier": z} for z in (5.0, 0.0))
    noise = step(private(experiment, loud, **everyone), data) - step(private(experiment, quiet, **everyone), data)
    assert float(noise.std()) == pytest.approx(5.0 * 0.5 / math.sqrt(3), rel=4 / math.sqrt(2 * len(noise)))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, "noise of the standard deviation 0.05 of the cohort: count_std = 0"),
        ({"count_std": 3.0}, "noise of the standard deviation 3: count_std = 0"),
        ({"count_std": 0.0}, None),
        ({"noise_multiplier": 0.05}, None),
    ],
)
def test_noise_of_counts_beside_updates_without_is_said(
    keys: dict[str, float],
    said: str | None,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With noise_multiplier = 0, "no noise", the clip level took another way than that of an adaptive clip alone."""
    clip = {"initial": 1.0, "quantile": 0.5, "lr": 1.0}
    exp = private(experiment, {"name": "gaussian", "noise_multiplier": 0.0, **keys}, clip, rounds=1)
    list(raysim.rounds(exp, dataset=dataset, executor="local"))
    found = [text for text in caplog.messages if "noise_multiplier = 0 takes the noise from the updates" in text]
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


def test_counts_of_an_adaptive_clip_are_noised(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    # With nobody b is 1/2 + s xi'/C, which the level's logarithm shows.
    rounds, s, size = 300, 1.5, 20
    clip = {"initial": 1.0, "quantile": 0.5, "lr": 1.0}
    privacy = {"noise_multiplier": 2.0, "count_std": s, "noise_cohort_size": size, "accountant": "rdp"}
    made = done(private(experiment, privacy, clip, cohort={"sampler": NOBODY}, rounds=rounds), dataset)
    levels = np.array([each.metrics["clip_level"] for each in made])
    b = 0.5 - np.diff(np.log(levels))
    assert b.mean() == pytest.approx(0.5, abs=4 * s / size / math.sqrt(rounds))
    assert b.std() == pytest.approx(s / size, rel=4 / math.sqrt(2 * rounds))
    # z' = (z^-2 - (2 s)^-2)^(-1/2) is the noise of the updates.
    z = (2.0**-2 - 3.0**-2) ** -0.5
    assert made[1].metrics["noise_std"] == pytest.approx(z * levels[1] / size)


ACCOUNTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bernoulli": ({"noise_multiplier": 1.5}, {"sampler": {"name": "bernoulli", "probability": 0.3}}),
    "bernoulli, Rényi": (
        {"noise_multiplier": 1.5, "accountant": "rdp"},
        {"sampler": {"name": "bernoulli", "probability": 0.3}},
    ),
    "uniform": ({"noise_multiplier": 4.0}, {"size": 2}),
    "a simulated cohort": (
        {"noise_multiplier": 1.5, "noise_cohort_size": 10},
        {"sampler": {"name": "bernoulli", "probability": 0.1}},
    ),
    "tree": ({"name": "tree", "noise_multiplier": 3.0}, {"sampler": {"name": "cyclic", "groups": 2}}),
    "local": ({"name": "local", "noise_multiplier": 3.0}, {"size": 4}),
    "banded": (
        {"name": "banded", "bands": 2, "noise_multiplier": 1.0},
        {"sampler": {"name": "cyclic", "groups": 2, "probability": 0.5}},
    ),
}


def direct(name: str, n: int) -> dp_accounting.PrivacyAccountant:
    """dp-accounting's own events of n rounds."""
    add = NeighboringRelation.ADD_OR_REMOVE_ONE
    gaussian, poisson = dp_accounting.GaussianDpEvent, dp_accounting.PoissonSampledDpEvent
    match name:
        case "bernoulli":
            return PLDAccountant(add).compose(poisson(0.3, gaussian(1.5)), n)
        case "bernoulli, Rényi":
            return RdpAccountant(neighboring_relation=add).compose(poisson(0.3, gaussian(1.5)), n)
        case "uniform":
            event = dp_accounting.SampledWithoutReplacementDpEvent(N, 2, gaussian(2.0))
            return RdpAccountant(neighboring_relation=NeighboringRelation.REPLACE_ONE).compose(event, n)
        case "a simulated cohort":
            return PLDAccountant(add).compose(poisson(0.5, gaussian(1.5)), n)
        case "local":
            return PLDAccountant(add).compose(gaussian(1.5), n)
        case "tree":
            # Nodes of rounds 0; 0-1; 2 with two groups: round 0 is in two nodes, round 2 in one more.
            squares = {1: 1, 2: 2, 3: 3}
            return PLDAccountant(add).compose(gaussian(3.0 / math.sqrt(squares.get(n, n))))
    return PLDAccountant(add).compose(poisson(0.5, gaussian(1.0)), math.ceil(n / 2))


@pytest.mark.parametrize("name", ACCOUNTED)
def test_epsilon_is_that_of_the_accountant(name: str, experiment: Make, dataset: raysim.FederatedDataset) -> None:
    privacy, cohort = ACCOUNTED[name]
    made = done(private(experiment, privacy, cohort=cohort), dataset)
    for n in (1, 3):
        assert made[n - 1].metrics["epsilon"] == pytest.approx(direct(name, n).get_epsilon(N**-1.1), rel=1e-6)


@pytest.mark.parametrize("name", ["tree", "banded"])
def test_epsilon_that_rises_in_steps_is_exact_after_every_round(
    name: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    privacy, cohort = ACCOUNTED[name]
    told = [made.metrics["epsilon"] for made in done(private(experiment, privacy, cohort=cohort, rounds=20), dataset)]
    for n in (7, 9, 11, 13, 16, 17, 20):
        accountant = direct(name, n)
        if name == "tree":
            event = dp_accounting.GaussianDpEvent(3.0 / math.sqrt(squared_sensitivity(n, groups=2)))
            accountant = PLDAccountant(NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
        assert told[n - 1] == pytest.approx(accountant.get_epsilon(N**-1.1), rel=1e-6)
    assert told == sorted(told)


def test_distributed_rounds_with_nobody_and_no_noise_have_a_step_of_zeros(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    privacy = {"name": "distributed", "noise_multiplier": 0.0, "bits": 16}
    made = done(private(experiment, privacy, cohort={"sampler": NOBODY}), dataset)
    assert [each.metrics["clients"] for each in made] == [0] * 3
    assert torch.equal(flat(made[0]), flat(made[-1]))


def test_noise_at_clients_is_in_the_norms_of_what_enters_the_mean(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    # Seven independent noises: their mean has a seventh of their squared norm.
    privacy = {"name": "local", "noise_multiplier": 1e6, "delta": 1e-3}
    exp = private(experiment, privacy, model=WIDE, rounds=1)
    (made,) = done(exp, dataset)
    assert made.metrics["gsi"] == pytest.approx(math.sqrt(7), rel=0.1)


def test_the_least_noise_for_a_budget(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    privacy = {"epsilon": 2.0, "delta": 1e-3, "accountant": "rdp"}
    exp = private(experiment, privacy, cohort={"sampler": HALF})
    result = raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    assert result.stopped is None
    spent = result.rounds["epsilon"].to_pylist()
    assert 2.0 * (1 - 1e-5) < spent[-1] <= 2.0
    written = json.loads((tmp_path / "run" / "experiment.json").read_text())
    z = written["experiment"]["server"]["privacy"]["noise_multiplier"]
    event = dp_accounting.PoissonSampledDpEvent(0.5, dp_accounting.GaussianDpEvent(z))
    assert RdpAccountant().compose(event, 3).get_epsilon(1e-3) == pytest.approx(spent[-1])
    assert written["privacy"]["event"] == f"3 x PoissonSampled(0.5, Gaussian({z:g}))"
    assert written["privacy"]["neighbours"] == "add or remove all data of one client"
    assert "no noise" in written["privacy"]["not_private"][0]
    # The report says so, and draws epsilon.
    page = build([tmp_path / "run"], tmp_path / "report").page.read_text()
    assert f"this is private after round 3, at epsilon = {spent[-1]:g} and delta = 0.001 (add or remove all" in page
    assert f"all planned rounds: 3 x PoissonSampled(0.5, Gaussian({z:g})))" in page
    assert 'id="epsilon"' in page
    # More rounds do not fit into the budget.
    longer = raysim.resume(tmp_path / "run", rounds=5, dataset=dataset)
    assert longer.rounds.num_rows == 3
    assert longer.stopped is not None


def test_a_run_ends_before_the_round_that_would_exceed_its_budget(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    privacy = {"noise_multiplier": 1.0, "accountant": "rdp", "delta": 1e-3}
    whole = [made.metrics["epsilon"] for made in done(private(experiment, privacy, rounds=6), dataset)]
    exp = private(experiment, {**privacy, "epsilon": whole[3] + 1e-9}, rounds=6)
    result = raysim.run(exp, dataset=dataset, path=tmp_path / "run")
    assert result.rounds["epsilon"].to_pylist() == whole[:4]
    assert result.stopped is not None
    assert (result.stopped.condition, result.stopped.rounds) == ("privacy", 4)
    again = raysim.resume(tmp_path / "run", dataset=dataset)
    assert again.rounds.num_rows == 4


@pytest.mark.parametrize("name", ["gaussian", "tree", "banded"])
def test_a_resumed_run_has_the_same_noise(
    name: str, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    privacy = {"name": name, "noise_multiplier": 1.0, **({"bands": 2} if name == "banded" else {})}
    sampler = {"name": "cyclic", "groups": 3} if name != "gaussian" else HALF
    clip, counts = ({"initial": 0.5}, {"count_std": 2.0}) if name == "gaussian" else (None, {})
    exp = private(experiment, {**privacy, **counts, "accountant": "rdp"}, clip, cohort={"sampler": sampler}, rounds=6)
    whole = raysim.run(exp, dataset=dataset, path=tmp_path / "whole")
    raysim.run(exp.changed(["rounds=2"]), dataset=dataset, path=tmp_path / "parts")
    same_records(raysim.resume(tmp_path / "parts", rounds=6, dataset=dataset), whole)


def noises(experiment: Make, data: raysim.FederatedDataset, privacy: dict[str, Any], rounds: int) -> torch.Tensor:
    """What each round adds to the mean, over z rho/M_e: (rounds, P). Updates are zeros."""
    groups, clip, z = 4, 0.5, 2.0
    sections: dict[str, Any] = {
        "cohort": {"sampler": {"name": "cyclic", "groups": groups}},
        "client": {"optimizer": {"name": "sgd", "lr": 0.0}, "batch_size": 8},
        "server": {"optimizer": {"name": "sgd", "lr": 1.0}},
    }
    made = private(experiment, {"noise_multiplier": z, **privacy}, {"fixed": clip}, model=WIDE, **sections)
    still = made.changed(["rounds=1", "server.optimizer.lr=0.0"])
    models = torch.stack([flat(each) for each in done(still, data) + done(made.changed([f"rounds={rounds}"]), data)])
    return models.diff(dim=0) / (z * clip / (N / groups))


def test_banded_noises_are_independent_once_the_matrix_is_taken_off(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    rounds, c = 6, [1.0, 1 / 2, 3 / 8]
    w = noises(experiment, dataset, {"name": "banded", "bands": 3}, rounds)
    xi = torch.stack([sum(c_j * w[t - j] for j, c_j in enumerate(c) if j <= t) for t in range(rounds)])  # type: ignore[misc]
    second = (xi @ xi.T / w.shape[1]).numpy()
    bound = 5 * math.sqrt(2 / w.shape[1]) * math.hypot(*c) ** 2
    np.testing.assert_allclose(second, np.eye(rounds) * math.hypot(*c) ** 2, rtol=0, atol=bound)


def test_prefix_sums_of_a_tree_share_the_noise_of_its_nodes(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    rounds = 8
    sums = noises(experiment, dataset, {"name": "tree"}, rounds).cumsum(0)
    second = (sums @ sums.T / sums.shape[1]).numpy()
    shared = [[len(nodes(s) & nodes(t)) for t in range(1, rounds + 1)] for s in range(1, rounds + 1)]
    np.testing.assert_allclose(second, shared, rtol=0, atol=5 * math.sqrt(2 / sums.shape[1]) * 3)


@pytest.mark.parametrize("groups", [1, 3, 8])
def test_what_a_tree_tells_of_a_client(groups: int) -> None:
    for n in range(1, 20):
        used = {node for done in range(1, n + 1) for node in nodes(done)}
        rounds = [range(index << level, (index + 1) << level) for level, index in used]
        # Every prefix is covered once.
        for done in range(1, n + 1):
            covered = sorted(t for level, index in nodes(done) for t in range(index << level, (index + 1) << level))
            assert covered == list(range(done))
        told = max(sum(sum(t % groups == r for t in of_node) ** 2 for of_node in rounds) for r in range(groups))
        assert squared_sensitivity(n, groups) == told


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no clip": ({"server.clip": None}, "give server.clip"),
    "noise whose square underflows": (
        {"server.privacy.noise_multiplier": 1e-160},
        "must be 0, which is no noise, or at",
    ),
    "nothing": ({"server.privacy.noise_multiplier": None}, "noise_multiplier, epsilon or both"),
    "epsilon of 0": ({"server.privacy.epsilon": 0.0}, "server.privacy.epsilon"),
    "delta of 0": ({"server.privacy.delta": 0.0}, "server.privacy.delta"),
    "no noise for a budget": (
        {"server.privacy.noise_multiplier": 0.0, "server.privacy.epsilon": 1.0},
        "adds no noise",
    ),
    "count_std that is too small": (
        {"server.clip": {"initial": 1.0}, "server.privacy.count_std": 0.5},
        "2 count_std > noise_multiplier",
    ),
    "count_std of a fixed clip": (
        {"server.privacy.count_std": 5.0},
        r"count_std = 5 .* but server.clip is \{ fixed = ",
    ),
    "adaptive clip with a tree": (
        {
            "server.clip": {"initial": 1.0},
            "server.privacy.name": "tree",
            "cohort": {"sampler": {"name": "cyclic", "groups": 2}},
        },
        r"fixed clip level.*, but got \{ quantile = 0.8 \}",
    ),
    "zeroing": ({"server.zeroing": {}}, "server.zeroing"),
    "glad": ({"server.glad": {}}, "server.glad"),
    "fairness": ({"server.fairness": {"name": "tilt", "t": 1.0}}, "server.fairness"),
    "median": ({"server.aggregator": {"name": "median"}}, "must be 'mean', but got 'median'"),
    "weights": ({"server.weighting": "ida"}, "must be 'uniform', but got 'ida'"),
    "labels": ({"server.diagnostics": {"labels": True}}, "diagnostics.labels"),
    "probe": ({"server.diagnostics": {"probe": 2}}, "diagnostics.probe"),
    "compression": ({"client.compression": {"name": "sign"}}, "client.compression"),
    "compression of the model": ({"server.compression": {"name": "sign"}}, "server.compression"),
    "correction": ({"client.correction": {"name": "feddyn", "mu": 0.1}}, "except 'prox'"),
    "composite": ({"composite": {"penalty": "l1", "strength": 0.1}}, "composite"),
    "clusters": (
        {"client.personalisation": {"name": "clusters", "count": 2, "split": "train"}},
        "clusters",
    ),
    "growth": ({"cohort.growth": {"every": 2}}, "cohort.growth"),
    "over-selection": (
        {"systems": {"over_selection": 1.5, "time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}}},
        "over_selection",
    ),
    "least reports": (
        {"systems": {"min_reports": 2, "deadline_s": 1.0, "time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}}},
        "min_reports = 2 leaves out all others",
    ),
    "md": ({"cohort.sampler": {"name": "md"}}, "'bernoulli' and 'uniform', but got 'md'"),
    "lists over a sampler": (
        {"cohort.sampler": {"name": "replay", "rounds": {0: ["c1"]}}},
        "'bernoulli' and 'uniform', but got 'replay'",
    ),
    "lists of other lengths": (
        {"server.privacy.name": "distributed", "cohort.sampler": {"name": "replay", "rounds": {0: ["c1"]}}},
        "must be 'uniform', but got 'replay'",
    ),
    "cyclic": ({"cohort": {"sampler": {"name": "cyclic", "groups": 2}}}, "but got 'cyclic'"),
    "tree": ({"server.privacy.name": "tree"}, "must be 'cyclic'"),
    "local": ({"server.privacy.name": "local", "cohort.sampler": {"name": "md"}}, "may draw it twice"),
    "dropout": (
        {"server.privacy.name": "distributed", "client.mid_round_dropout": 0.1},
        "client.mid_round_dropout = 0.1: remove it",
    ),
    "distributed": (
        {"server.privacy.name": "distributed", "cohort": {"sampler": {"name": "bernoulli", "probability": 0.1}}},
        "must be 'uniform', but got 'bernoulli'",
    ),
    "secure_sum": ({"server.secure_sum": {}}, "server.secure_sum"),
    "bands": (
        {
            "server.privacy": {"name": "banded", "bands": 3, "noise_multiplier": 1.0},
            "cohort": {"sampler": {"name": "cyclic", "groups": 2}},
        },
        "bands <= cohort.sampler.groups",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_privacy_is_not_defined_with(name: str, experiment: Make) -> None:
    changes, said = REFUSED[name]
    given = private(experiment, {"noise_multiplier": 1.0}).said()
    del given["server"]["weighting"]
    for key, value in changes.items():
        *tables, last = key.split(".")
        table = given
        for each in tables:
            table[each] = dict(table.get(each, {}))
            table = table[each]
        table[last] = value
    with pytest.raises(ExperimentError, match=said.replace("(", r"\(").replace(")", r"\)")):
        raysim.Experiment.model_validate(json.loads(json.dumps(given)))


@pytest.mark.parametrize(
    ("privacy", "said"),
    [
        ({"noise_multiplier": 0.5, "epsilon": 0.1}, "spent before the first round"),
        ({"noise_multiplier": 1.0, "noise_cohort_size": 21}, "got 21 and 20 training clients"),
        ({"noise_multiplier": 1.0, "accountant": "pld"}, "drawn without replacement"),
    ],
)
def test_what_is_refused_before_the_first_round(
    privacy: dict[str, Any], said: str, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    with pytest.raises(ExperimentError, match=said):
        raysim.rounds(private(experiment, privacy), dataset=dataset)


def test_averaged_buffers_are_refused(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    def network() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))

    exp = private(experiment, {"noise_multiplier": 0.0}, model=None)
    with pytest.raises(ExperimentError, match=r"averages its buffers 1\.running_mean"):
        raysim.rounds(exp, dataset=dataset, model=network)


def test_without_the_accountant_the_extra_is_named(
    experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ExperimentError, match=r"pip install 'raysim\[privacy\]'"):
        raysim.rounds(private(experiment, {"noise_multiplier": 1.0}), dataset=dataset)


@pytest.mark.ray
def test_workers_change_no_bit(ray_cluster: Any, experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = private(experiment, {"noise_multiplier": 0.5, "accountant": "rdp"}, {"initial": 0.5})
    here, there = (done(exp.changed([f"engine.workers={n}"]), dataset) for n in (0, 2))
    for one, other in zip(here, there, strict=True):
        assert torch.equal(flat(one), flat(other))
        assert one.metrics["epsilon"] == other.metrics["epsilon"]
