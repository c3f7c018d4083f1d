"""Rules that need every update, against their definitions in plain NumPy; the same bits on every executor."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.server.aggregators import fednova, updates
from tests.support.chosen_updates import SIZES, UPDATES, Array, Make, moved, network, push, run
from tests.support.executors import bits


def krum_order(f: int) -> list[int]:
    squares = ((UPDATES[:, None] - UPDATES[None]) ** 2).sum(-1)
    scores = [np.sort(np.delete(row, i))[: len(UPDATES) - f - 2].sum() for i, row in enumerate(squares)]
    return list(np.argsort(scores, kind="stable"))


def geometric_median(iterations: int, nu: float) -> Array:
    p = SIZES / SIZES.sum()
    z = p @ UPDATES
    for _ in range(iterations):
        b = p / np.maximum(nu, np.linalg.norm(UPDATES - z, axis=1))
        z = b @ UPDATES / b.sum()
    return z


def ida() -> Array:
    w = 1 / np.maximum(1e-12, np.linalg.norm(UPDATES - UPDATES.mean(0), axis=1))
    return w @ UPDATES / w.sum()


def trimmed(k: int) -> Array:
    return np.sort(UPDATES, axis=0)[k : len(UPDATES) - k].mean(0)


CASES: list[tuple[dict[str, Any], Array]] = [
    ({"aggregator": {"name": "mean"}}, SIZES @ UPDATES / SIZES.sum()),
    ({"aggregator": {"name": "median"}}, np.median(UPDATES, axis=0)),
    ({"aggregator": {"name": "trimmed_mean", "k": 2}}, trimmed(2)),
    ({"aggregator": {"name": "trimmed_mean", "k": 0}}, UPDATES.mean(0)),
    ({"aggregator": {"name": "krum", "f": 2}}, UPDATES[krum_order(2)[0]]),
    ({"aggregator": {"name": "multi_krum", "f": 2, "m": 4}}, UPDATES[krum_order(2)[:4]].mean(0)),
    ({"aggregator": {"name": "geometric_median"}}, geometric_median(4, 1e-6)),
    ({"aggregator": {"name": "geometric_median", "iterations": 0}}, SIZES @ UPDATES / SIZES.sum()),
    ({"weighting": "ida"}, ida()),
]


@pytest.mark.parametrize(("server", "expected"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_a_rule_is_its_definition(server: dict[str, Any], expected: Array, experiment: Make) -> None:
    np.testing.assert_allclose(moved(experiment, server=server), expected, rtol=1e-9)


@pytest.mark.parametrize(("server", "expected"), CASES, ids=lambda case: str(case) if isinstance(case, dict) else "")
def test_shards_of_coordinates_change_nothing(
    server: dict[str, Any], expected: Array, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(updates, "NUMBERS_PER_SHARD", 9)  # one coordinate each
    np.testing.assert_allclose(moved(experiment, server=server), expected, rtol=1e-9)


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("server", [case for case, _ in CASES[1:]], ids=str)
def test_the_same_bits_on_ray(server: dict[str, Any], experiment: Make) -> None:
    here = {"workers": 0, "chunk_size": 2}
    there = {"workers": 2, "cpus_per_worker": 0.5, "chunk_size": 2}
    left, right = (
        run(experiment, rounds=2, server=server, engine=engine, cohort=ALL_TWICE) for engine in (here, there)
    )
    assert [bits(r) for r in left] == [bits(r) for r in right]


ALL_TWICE = {"sampler": {"name": "replay", "cohorts": [[f"c{i}" for i in range(9)]] * 2}}


def test_an_even_median_is_the_mean_of_the_middle_two(experiment: Make) -> None:
    vectors = np.array([[1.0, 0, 0], [2.0, 0, 9], [10.0, 5, 9], [4.0, 0, 9]])
    (done,) = run(experiment, vectors=vectors, server={"aggregator": {"name": "median"}})
    assert done.params["weight"].tolist() == [[3, 0, 9]]


def test_krum_breaks_ties_by_the_lowest_index(experiment: Make) -> None:
    # Two pairs of equal updates, mirrored: all four have the same score. Chunks hold them in another order.
    vectors = np.array([[1.0, 2, 3], [1.0, 2, 3], [-1.0, -2, -3], [-1.0, -2, -3]])
    (done,) = run(experiment, vectors=vectors, server={"aggregator": {"name": "krum", "f": 1}})
    assert done.params["weight"].tolist() == [[1, 2, 3]]


def test_the_similarity_index_is_that_of_the_survivors(experiment: Make) -> None:
    (done,) = run(experiment, server={"aggregator": {"name": "multi_krum", "f": 2, "m": 4}})
    best = UPDATES[krum_order(2)[:4]]
    expected = np.sqrt((best**2).sum(1).mean() / (best.mean(0) ** 2).sum())
    assert done.metrics["gsi"] == pytest.approx(expected)
    assert done.metrics["clients"] == 9


def test_clipping_comes_before_the_rule(experiment: Make) -> None:
    server = {"aggregator": {"name": "median"}, "clip": {"fixed": 1.0}}
    clipped = UPDATES * np.minimum(1, 1 / np.linalg.norm(UPDATES, axis=1))[:, None]
    np.testing.assert_allclose(moved(experiment, server=server), np.median(clipped, axis=0), rtol=1e-12)


@pytest.mark.parametrize("tau_eff", ["sum_p_a", "sum_p_tau"])
@pytest.mark.parametrize("rho", [0.0, 0.5])
def test_fednova_divides_by_what_a_gradient_moves(tau_eff: str, rho: float, experiment: Make) -> None:
    # Batches of one, so tau_i = n_i, and every gradient is the same vector.
    client = {"optimizer": {"name": "sgd", "lr": 1.0, "momentum": rho}, "batch_size": 1}
    got = moved(experiment, client=client, server={"aggregator": {"name": "fednova", "tau_eff": tau_eff}})
    # a_i = 1 + (1 + rho) + ... : the k-th local step moves by (1 - rho^k) / (1 - rho).
    a = np.array([sum(sum(rho**j for j in range(k)) for k in range(1, n + 1)) for n in SIZES])
    p = SIZES / SIZES.sum()
    effective = p @ a if tau_eff == "sum_p_a" else p @ SIZES
    np.testing.assert_allclose(got, effective * (p @ UPDATES), rtol=1e-12)


@pytest.mark.parametrize("small", [2.0**-10, 2.0**-24, 2.0**-30, 2.0**-45, 2.0**-53])
@pytest.mark.parametrize("tau", [1, 2, 7, 40])
def test_fednova_s_divisors_are_the_sums_that_they_stand_for(tau: int, small: float) -> None:
    rho, velocity, moved_by = 1 - Fraction(small), Fraction(0), Fraction(0)
    for _ in range(tau):
        velocity = 1 + rho * velocity
        moved_by += velocity
    assert fednova.normaliser(tau, momentum=1 - small) == pytest.approx(float(moved_by), rel=1e-8)
    assert fednova.normaliser(tau, pull=small) == pytest.approx(float(velocity), rel=1e-8)


@pytest.mark.parametrize(("lr", "mu"), [(0.1, 20.0), (1.0, 1000.0)])
def test_fednova_refuses_a_pull_under_which_its_divisor_may_be_nothing(lr: float, mu: float, experiment: Make) -> None:
    client = {"optimizer": {"name": "sgd", "lr": lr}, "correction": {"name": "prox", "mu": mu}, "local_steps": 2}
    with pytest.raises(raysim.ExperimentError, match="is 0 or less for some tau unless lr mu < 2, but got"):
        experiment(client=client, server={"aggregator": {"name": "fednova"}})


def test_fednova_with_equal_steps_is_the_mean(experiment: Make) -> None:
    mean, nova = (moved(experiment, server={"aggregator": {"name": name}}) for name in ("mean", "fednova"))
    np.testing.assert_allclose(mean, nova, rtol=1e-14)
    assert fednova.normaliser(7, 0.0) == 7


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"aggregator": {"name": "krum", "f": 7}}, r"krum needs M >= f \+ 3 updates, but got f = 7 and .* M = 9"),
        ({"aggregator": {"name": "multi_krum", "f": 1, "m": 10}}, "averages m <= M updates, but got m = 10"),
        ({"aggregator": {"name": "trimmed_mean", "k": 5}}, "needs M > 2 k updates, but got k = 5"),
        ({"aggregator": {"name": "median"}, "weighting": "ida"}, "weighting = 'ida' weighs a mean"),
        ({"aggregator": {"name": "krum"}}, "server.aggregator.f must be given"),
        ({"aggregator": {"name": "median", "k": 1}}, "unknown key 'server.aggregator.k'"),
    ],
)
def test_what_is_not_defined_is_refused_before_the_first_round(
    server: dict[str, Any], message: str, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        run(experiment, server=server)


def test_a_sampler_whose_cohorts_have_any_size_does_not_go_with_krum(experiment: Make) -> None:
    cohort = {"sampler": {"name": "bernoulli", "probability": 0.9}}
    with pytest.raises(raysim.ExperimentError, match="cohorts of the bernoulli sampler have any size"):
        run(experiment, cohort=cohort, server={"aggregator": {"name": "krum", "f": 1}})


def test_rejections_that_leave_too_few_leave_the_model(experiment: Make, caplog: pytest.LogCaptureFixture) -> None:
    vectors = np.array([[1.0, 2, 3], [1.0, 2, 3], [np.nan, 0, 0], [1.0, 2, 3]])
    (done,) = run(experiment, vectors=vectors, server={"aggregator": {"name": "krum", "f": 1}})
    assert done.params["weight"].tolist() == [[0, 0, 0]]
    assert "a cohort of M = 3 after rejections, so the model is left as it is" in caplog.text


def test_adafl_attends_to_clients_that_are_far(experiment: Make, tmp_path: Any) -> None:
    vectors = np.zeros((4, 3))
    vectors[2] = 8.0
    clients = {f"c{i}": (np.tile(-v, (2, 1)), np.zeros(2)) for i, v in enumerate(vectors)}
    exp = experiment(
        rounds=1,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 1.0}, "batch_size": "full"},
        cohort={"size": 4, "sampler": {"name": "adafl", "alpha": 0.5}},
        engine={"workers": 0, "dtype": "float64"},
    )
    data = raysim.FederatedDataset.from_clients(train=clients)
    raysim.run(exp, dataset=data, model=network, loss=push, params={"weight": np.zeros((1, 3))}, path=tmp_path / "run")
    from raysim.run_folder import experiment_record, kept_checkpoints

    state = kept_checkpoints.newest_state(tmp_path / "run", experiment_record.stored_owner(tmp_path / "run"))
    assert state is not None
    # The mean moves by (2, 2, 2): distances 2, 2, 6, 2 times root 3, so shares 1/6 and 1/2; attention was 1/4.
    near, far = 0.5 / 4 + 0.5 / 6, 0.5 / 4 + 0.5 / 2
    assert state.sampler["attention"].tolist() == pytest.approx([near, near, far, near])


@pytest.mark.usefixtures("ray_cluster")
def test_everything_at_once_gives_the_same_bits_on_ray(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    sections: dict[str, Any] = {
        "cohort": {"size": 9, "sampler": {"name": "md"}, "growth": {"every": 2}},
        "server": {
            "optimizer": {"name": "yogi", "lr": 0.05},
            "glad": {"gamma": 0.1, "scope": "layer"},
            "clip": {"initial": 0.5},
            "zeroing": {"initial": 0.1},
            "diagnostics": {"labels": True},
        },
        "adversary": {"name": "scale", "clients": 0.2, "factor": 50},
    }
    left, right = (
        list(raysim.rounds(experiment(**sections, engine=engine), dataset=dataset))
        for engine in ({"workers": 0, "chunk_size": 2}, {"workers": 2, "cpus_per_worker": 0.5, "chunk_size": 2})
    )
    assert [bits(r) for r in left] == [bits(r) for r in right]
    assert any(len(set(r.cohort)) < len(r.cohort) for r in left)
    assert any(r.metrics["zeroed_fraction"] for r in left)
