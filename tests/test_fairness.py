"""Fair objectives: equal to a plain float64 loop over docs/algorithms.md section 4, and to FedAvg where they are it.

The network, the clients and the cohorts are those of test_trajectories.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.server.fairness.afl import projected
from raysim.server.fairness.fairness import StartLoss
from raysim.server.fairness.superquantile import tail_weights
from tests.support.interrupted import same_records
from tests.support.tanh_federation import COHORTS, ROUNDS, Array, Params, clients, gradient, network, start

Make = Callable[..., raysim.Experiment]
LR, DECAY, BATCH, EPOCHS, ETA = 0.05, 0.9, 3, 2, 0.7
NUM = 5
EVERYONE = [[str(i) for i in range(NUM)]] * ROUNDS


def federation() -> raysim.FederatedDataset:
    return raysim.FederatedDataset.from_clients(train=clients())


def made(experiment: Make, fairness: dict[str, Any] | None, cohorts: list[list[str]], **sections: Any) -> Any:
    server = {"optimizer": {"name": "sgd", "lr": ETA}, **sections.pop("server", {})}
    client = {"optimizer": {"name": "sgd", "lr": LR}, "lr_decay": DECAY, "batch_size": BATCH, "epochs": EPOCHS}
    return experiment(
        **{
            "rounds": ROUNDS,
            "model": None,
            "client": {**client, "shuffle": False, **sections.pop("client", {})},
            "cohort": {"sampler": {"name": "replay", "cohorts": cohorts}},
            "server": server | ({} if fairness is None else {"fairness": fairness}),
            "engine": {"workers": 0, "dtype": "float64", "chunk_size": 2, "trainer": "one_by_one"},
            **sections,
        }
    )


def steps(exp: raysim.Experiment) -> list[Any]:
    return list(raysim.rounds(exp, dataset=federation(), model=network, params=start()))


def flat(p: Params) -> Array:
    return np.concatenate([np.asarray(p[name]).ravel() for name in start()])


def loss(p: Params, x: Array, y: Array) -> float:
    hidden = np.tanh(x @ p["0.weight"].T + p["0.bias"])
    return float(np.mean((hidden @ p["2.weight"][0] + p["2.bias"][0] - y) ** 2))


def update(p: Params, x: Array, y: Array, lr: float) -> Array:
    local = {name: value.copy() for name, value in p.items()}
    for _ in range(EPOCHS):
        for first in range(0, len(y), BATCH):
            step = gradient(local, x[first : first + BATCH], y[first : first + BATCH])
            local = {name: local[name] - lr * step[name] for name in local}
    return flat(local) - flat(p)


def moved(p: Params, by: Array) -> Params:
    ends = np.cumsum([value.size for value in p.values()])
    parts = np.split(by, ends[:-1])
    return {name: value + part.reshape(value.shape) for (name, value), part in zip(p.items(), parts, strict=True)}


def simplex(v: Array) -> Array:
    """The nearest point of the simplex, by bisection over what is taken from every coordinate."""
    low, high = v.min() - 1, v.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(v - low, 0)


def spent(p: Array, f: Array, tail: float) -> Array:
    pi, left = np.zeros_like(p), 1.0
    for row in np.argsort(-f):
        pi[row] = min(p[row] / tail, left)
        left -= pi[row]
    return pi


def loop(
    fairness: dict[str, Any], cohorts: list[list[str]], by_examples: bool, clip: float | None = None
) -> Iterator[tuple[Array, dict[str, float]]]:
    """The equations of the specification, round by round: model and figures."""
    data, x, ascent = clients(), start(), np.full(NUM, 1 / NUM)
    for t, cohort in enumerate(cohorts):
        lr = LR * DECAY**t
        f = np.array([loss(x, *data[name]) for name in cohort])
        n = np.array([len(data[name][1]) for name in cohort], dtype=float)
        p = n / n.sum() if by_examples else np.full(len(cohort), 1 / len(cohort))
        h = np.array([update(x, *data[name], lr) for name in cohort])
        if clip is not None:
            h *= np.minimum(1, clip / np.linalg.norm(h, axis=1))[:, None]
        match fairness:
            case {"name": "qffl", "q": q}:
                big, squares = f + 1e-10, (h**2).sum(1)
                w = p * big**q
                g = -(w @ h) / lr / (p * (q * big ** (q - 1) * squares / lr**2 + big**q / lr)).sum()
            case {"name": "tilt", "t": tilt}:
                w = p * np.exp(tilt * f)
                g = -(w @ h) / w.sum()
            case {"name": "superquantile", "tail": tail}:
                w = spent(p, f, tail)
                g = -(w @ h)
            case {"name": "afl", "lr": rate}:
                w = ascent
                g = -(w @ h)
                ascent = simplex(ascent + rate * f)
        yield (
            flat(x := moved(x, -ETA * g)),
            {
                "start_loss": float(p @ f),
                "start_loss_max": float(f.max()),
                "effective_clients": float(w.sum() ** 2 / (w**2).sum()),
                "pseudo_gradient_norm": float(np.linalg.norm(g)),
            },
        )


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(
    ("fairness", "cohorts"),
    [
        ({"name": "qffl", "q": 2.5}, COHORTS),
        ({"name": "tilt", "t": 3.0}, COHORTS),
        ({"name": "tilt", "t": -1.5}, COHORTS),
        ({"name": "superquantile", "tail": 0.4}, COHORTS),
        ({"name": "afl", "lr": 0.3}, EVERYONE),
    ],
    ids=str,
)
def test_a_run_is_the_plain_loop(
    fairness: dict[str, Any], cohorts: list[list[str]], weighting: str, clip: float | None, experiment: Make
) -> None:
    server: dict[str, Any] = {"weighting": weighting} | ({} if clip is None else {"clip": {"fixed": clip}})
    got = steps(made(experiment, fairness, cohorts, server=server))
    wanted = list(loop(fairness, cohorts, weighting == "examples", clip))
    for done, (x, figures) in zip(got, wanted, strict=True):
        np.testing.assert_allclose(flat({n: v.double().numpy() for n, v in done.params.items()}), x, 1e-10, 1e-12)
        for name, figure in figures.items():
            assert done.metrics[name] == pytest.approx(figure, rel=1e-10), name


@pytest.mark.parametrize("weighting", ["examples", "uniform"])
@pytest.mark.parametrize(
    "fairness",
    [{"name": "qffl", "q": 0.0}, {"name": "tilt", "t": 0.0}, {"name": "superquantile", "tail": 1.0}],
    ids=str,
)
def test_without_fairness_it_is_fedavg_bit_for_bit(fairness: dict[str, Any], weighting: str, experiment: Make) -> None:
    server = {"weighting": weighting}
    for got, wanted in zip(
        steps(made(experiment, fairness, COHORTS, server=server)),
        steps(made(experiment, None, COHORTS, server=server)),
        strict=True,
    ):
        assert all(torch.equal(got.params[name], wanted.params[name]) for name in wanted.params)
        assert got.metrics["start_loss"] > 0


@pytest.mark.parametrize("offset", [0.0, 1e7, -1e7, 1e17, 1e36, -1e36])
@pytest.mark.parametrize("losses", [[0.5, 0.25, 0.5, 0.0], [3.0, 3.0, 3.0], [2.0, 0.0]])
def test_the_simplex_is_met_beside_numbers_of_any_size(offset: float, losses: list[float]) -> None:
    """With losses of 1e17 no weight was left, and the round ended in an IndexError."""
    given = torch.tensor(losses, dtype=torch.float64) + offset
    weights = projected(given)
    assert float(weights.sum()) == pytest.approx(1.0)
    torch.testing.assert_close(weights, projected(given - given.max()), atol=1e-12, rtol=0)


def test_afl_without_ascent_is_fedavg_with_equal_weights(experiment: Make) -> None:
    got = steps(made(experiment, {"name": "afl", "lr": 0.0}, EVERYONE))
    wanted = steps(made(experiment, None, EVERYONE, server={"weighting": "uniform"}))
    for one, other in zip(got, wanted, strict=True):
        for name in other.params:
            np.testing.assert_allclose(one.params[name], other.params[name], 1e-12, 1e-14)
        assert one.metrics["effective_clients"] == pytest.approx(NUM)


@pytest.mark.parametrize(("name", "key", "value"), [("qffl", "q", 1.0), ("tilt", "t", 1.0), ("afl", "lr", 0.1)])
def test_qffl_and_afl_weigh_alike_by_default(name: str, key: str, value: float, experiment: Make) -> None:
    exp = made(experiment, {"name": name, key: value}, EVERYONE)
    assert exp.server.weighting == ("examples" if name == "tilt" else "uniform")


REPORTS = st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 10)), min_size=1, max_size=7).map(
    lambda rows: [StartLoss(i, share, loss) for i, (share, loss) in enumerate(rows)]
)


@given(REPORTS, st.floats(0.01, 1))
def test_superquantiles_weights_have_the_largest_sum_of_losses(reports: list[StartLoss], tail: float) -> None:
    """Weak duality: sum pi f is at most c + sum (p / tail) max(f - c, 0) for every c, and the least of these is it."""
    share = sum(one.share for one in reports)
    bound = [one.share / share / tail for one in reports]
    pi = [weight / share / tail for weight in tail_weights(reports, tail)]
    assert sum(pi) == pytest.approx(1)
    assert all(-1e-12 <= each <= most + 1e-12 for each, most in zip(pi, bound, strict=True))
    duals = [
        c.loss + sum(most * max(one.loss - c.loss, 0) for one, most in zip(reports, bound, strict=True))
        for c in reports
    ]
    assert sum(each * one.loss for each, one in zip(pi, reports, strict=True)) == pytest.approx(min(duals))


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=9))
def test_the_projection_is_the_nearest_point_of_the_simplex(values: list[float]) -> None:
    v = np.array(values)
    np.testing.assert_allclose(projected(torch.from_numpy(v)).numpy(), simplex(v), atol=1e-9)


def test_clients_with_equal_losses_share_the_tail_alike() -> None:
    reports = [StartLoss(i, share, 2.0) for i, share in enumerate([1.0, 2.0, 1.0])]
    assert tail_weights(reports, 0.5) == [0.5, 1.0, 0.5]


@pytest.mark.parametrize("side", [0, 1], ids=["update", "loss"])
def test_a_client_without_a_finite_loss_or_update_leaves_the_round(side: int, experiment: Make) -> None:
    data = clients()
    data["3"][side][0] = np.inf  # The loss of an infinite x is finite under tanh, its gradient is not.
    bad = raysim.FederatedDataset.from_clients(train=data)
    exp = made(experiment, {"name": "afl", "lr": 0.3}, EVERYONE, rounds=2)
    first, second = raysim.rounds(exp, dataset=bad, model=network, params=start())
    assert first.rejected == second.rejected == ("3",)
    assert first.metrics["clients"] == NUM - 1
    assert second.metrics["start_loss"] is not None
    assert np.isfinite(second.metrics["start_loss"])
    losses = [loss(start(), *data[str(i)]) for i in range(NUM) if i != 3]
    assert first.metrics["start_loss"] == pytest.approx(np.mean(losses))


def test_losses_are_taken_as_an_evaluation_takes_them(experiment: Make) -> None:
    """Dropout is off; `eval/train` before a round is that of the model after the round before."""

    def dropping() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))

    exp = made(
        experiment,
        {"name": "tilt", "t": 0.5},
        EVERYONE,
        rounds=3,
        evaluation={"every": 1, "split": "train"},
    )
    done = list(raysim.rounds(exp, dataset=federation(), model=dropping))
    for before, after in pairwise(done):
        assert after.metrics["start_loss"] == pytest.approx(before.metrics["eval/train/loss"], rel=1e-12)
        assert before.clients is not None
        table = before.clients.to_pylist()
        assert after.metrics["start_loss_max"] == pytest.approx(max(row["loss"] for row in table), rel=1e-12)


def test_fedglad_scales_a_fair_step(experiment: Make) -> None:
    glad = {"name": "qffl", "q": 1.0}
    with_it, without = (
        steps(made(experiment, glad, EVERYONE, server={"glad": {"scope": "universal", "gamma": gamma}}))
        for gamma in (0.3, 0.0)
    )
    assert with_it[0].metrics["gsi"] == without[0].metrics["gsi"] > 1
    factor = {value for name, value in with_it[1].metrics.items() if name.startswith("glad_factor/")}
    (f,) = factor
    assert f not in (None, 1.0)
    for name in with_it[0].params:
        before = with_it[0].params[name]
        np.testing.assert_allclose(
            with_it[1].params[name] - before, f * (without[1].params[name] - before), 1e-9, 1e-12
        )


@pytest.mark.parametrize("name", ["mime", "feddane", "prox"])
def test_fairness_goes_with_corrections_of_any_weights(name: str, experiment: Make) -> None:
    """q = 0: the phase of losses before the phase of gradients changes nothing."""
    correction = {"name": name} | ({"base": "momentum"} if name == "mime" else {"mu": 0.3})
    client = {"correction": correction}
    fair, plain = (
        steps(made(experiment, fairness, COHORTS, client=client, server={"weighting": "examples"}))
        for fairness in ({"name": "qffl", "q": 0.0}, None)
    )
    for got, wanted in zip(fair, plain, strict=True):
        assert all(torch.equal(got.params[name], wanted.params[name]) for name in wanted.params)


def test_chunks_change_afl_by_rounding_at_most(experiment: Make) -> None:
    engine = {"workers": 0, "dtype": "float64", "trainer": "one_by_one"}
    one, many = (
        steps(made(experiment, {"name": "afl", "lr": 0.3}, EVERYONE, engine={**engine, "chunk_size": size}))
        for size in (1, NUM)
    )
    for name in one[-1].params:
        np.testing.assert_allclose(one[-1].params[name], many[-1].params[name], 1e-12, 1e-14)
    assert [done.metrics["start_loss_max"] for done in one] == pytest.approx(
        [done.metrics["start_loss_max"] for done in many], rel=1e-12
    )


def test_afls_weights_go_through_a_checkpoint(experiment: Make, tmp_path: Path) -> None:
    def exp(rounds: int) -> raysim.Experiment:
        return made(experiment, {"name": "afl", "lr": 0.3}, EVERYONE, rounds=rounds)

    parts: dict[str, Any] = {"dataset": federation(), "model": network}
    whole = raysim.run(exp(ROUNDS), path=tmp_path / "whole", params=start(), progress=False, **parts)
    raysim.run(exp(2), path=tmp_path / "cut", params=start(), progress=False, **parts)
    again = raysim.resume(tmp_path / "cut", rounds=ROUNDS, params=start(), progress=False, **parts)
    same_records(again, whole)


@pytest.mark.parametrize(
    ("fairness", "sections", "why"),
    [
        ({"name": "qffl", "q": 1.0}, {"server": {"aggregator": {"name": "median"}}}, "weighs a mean"),
        ({"name": "tilt", "t": 1.0}, {"server": {"aggregator": {"name": "fednova"}}}, "weighs a mean"),
        ({"name": "tilt", "t": 1.0}, {"server": {"weighting": "ida"}}, "weights before they train"),
        ({"name": "tilt", "t": 1.0}, {"cohort": {"size": 2, "sampler": {"name": "md"}}}, "several times"),
        ({"name": "tilt", "t": 1.0}, {"server": {"diagnostics": {"probe": 1}}}, "remove the probe"),
        ({"name": "tilt", "t": 1.0}, {"client": {"correction": {"name": "scaffold"}}}, "equal weights"),
        ({"name": "qffl", "q": 1.0}, {"server": {"optimizer": {"name": "adam"}}}, "must be 'sgd'"),
        ({"name": "qffl", "q": 1.0}, {"client": {"optimizer": {"name": "sgd", "lr": 0.0}}}, "divides by"),
        ({"name": "qffl", "q": -1.0}, {}, "greater than or equal to 0"),
        ({"name": "superquantile", "tail": 0.0}, {}, "tail"),
        ({"name": "superquantile", "tail": 1.5}, {}, "tail"),
    ],
    ids=str,
)
def test_what_is_not_defined_is_refused(
    fairness: dict[str, Any], sections: dict[str, Any], why: str, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        made(experiment, fairness, COHORTS, **sections)


@pytest.mark.parametrize(
    ("sections", "why"),
    [
        ({"cohort": {"size": 3}}, "round 0 has 3 of 5"),
        ({"cohort": {"size": 5, "sampler": {"name": "availability"}}}, "'availability' vary"),
        ({"cohort": {"sampler": {"name": "replay", "cohorts": [*EVERYONE[:-1], ["1"]]}}}, "round 5 has 1 of 5"),
        ({"cohort": {"size": 5}, "client": {"mid_round_dropout": 0.1}}, "client.mid_round_dropout"),
        (
            {
                "cohort": {"size": 5},
                "systems": {"time": {"name": "straggler", "alpha": 1.0, "lambda": 1.0}, "deadline_s": 1.0},
            },
            "systems.deadline_s",
        ),
    ],
    ids=str,
)
def test_afl_wants_every_client_in_every_round(sections: dict[str, Any], why: str, experiment: Make) -> None:
    exp = made(experiment, {"name": "afl", "lr": 0.1}, COHORTS, **sections)
    with pytest.raises(raysim.ExperimentError, match=f"defined with every client in every round.*{why}"):
        steps(exp)


def test_a_negative_loss_has_no_power(experiment: Make) -> None:
    exp = made(experiment, {"name": "qffl", "q": 1.0}, EVERYONE)
    with pytest.raises(raysim.ExperimentError, match="none may be negative"):
        list(raysim.rounds(exp, dataset=federation(), model=network, loss=lambda outputs, y: outputs[:, 0] - 1e6))
