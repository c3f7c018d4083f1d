"""What every sampler promises, and the law that each is named for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import raysim
from raysim.cohort import adafl, availability, bernoulli, md
from raysim.cohort.availability import Availability
from raysim.cohort.bernoulli import Bernoulli
from raysim.cohort.sampler import CohortAt, Participant
from raysim.cohort.section import CohortGrowth, grown_size
from tests.support.small_data import of_sizes

Make = Callable[..., raysim.Experiment]


SAMPLERS: list[dict[str, Any]] = [
    {"size": 5},
    {"size": 5, "sampler": {"name": "md"}},
    {"size": 5, "sampler": {"name": "adafl", "alpha": 0.3}},
    {"sampler": {"name": "bernoulli", "probability": 0.3}},
    {"size": 5, "sampler": {"name": "availability", "day": 3.0, "open": 0.4}},
    {"size": 2, "sampler": {"name": "replay", "rounds": {"1": ["c4", "c5", "c6"]}}},
    {"size": 2, "sampler": {"name": "replay", "rounds": {1: ["c4"]}, "over": {"name": "md"}}},
    {"size": 2, "growth": {"every": 2}},
    {"size": 3, "sampler": {"name": "power_of_choice", "candidates": 8}},
]


def made(cohort: dict[str, Any], experiment: Make, **sections: Any) -> raysim.Experiment:
    return experiment(rounds=5, cohort=cohort, server={"weighting": "uniform"}, **sections)


@pytest.mark.parametrize("cohort", SAMPLERS, ids=str)
def test_cohorts_are_a_function_of_seed_and_round(
    cohort: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    exp = made(cohort, experiment)
    one, same, other = (
        [r.cohort for r in raysim.rounds(e, dataset=dataset)] for e in (exp, exp, exp.model_copy(update={"seed": 1}))
    )
    assert one == same
    assert one != other


@pytest.mark.parametrize("cohort", SAMPLERS, ids=str)
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(
    cohort: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    long = made(cohort, experiment)
    whole = raysim.run(long, dataset=dataset, path=tmp_path / "whole")
    raysim.run(long.model_copy(update={"rounds": 2}), dataset=dataset, path=tmp_path / "part")
    part = raysim.resume(tmp_path / "part", dataset=dataset, rounds=5)
    assert [t.tolist() for t in part.params.values()] == [t.tolist() for t in whole.params.values()]
    assert part.rounds["loss"].equals(whole.rounds["loss"])


@pytest.mark.parametrize("cohort", SAMPLERS, ids=str)
def test_the_record_gives_the_sampler_back(cohort: dict[str, Any], experiment: Make) -> None:
    import json

    exp = made(cohort, experiment)
    assert raysim.Experiment.model_validate(json.loads(exp.to_json())) == exp


def test_md_draws_in_proportion_to_examples() -> None:
    sizes = np.array([1, 2, 5, 12])
    sampler, clients = md.make(md.Md()), of_sizes(sizes)
    drawn = [sampler.sample({}, CohortAt(t, 4, clients, 3)) for t in range(5000)]
    counts = np.bincount(np.concatenate(drawn), minlength=4)
    expected = 20_000 * sizes / 20
    assert ((counts - expected) ** 2 / expected).sum() < 16.27  # the 0.999 quantile with 3 degrees of freedom


def test_a_client_that_md_draws_twice_trains_once_and_counts_twice(experiment: Make) -> None:
    x = np.ones((2, 1))
    data = raysim.FederatedDataset.from_clients(train={"a": (x, 4 * np.ones(2)), "b": (x, np.zeros(2))})
    exp = experiment(
        rounds=6,
        model=None,
        client={"optimizer": {"name": "sgd", "lr": 0.5}, "batch_size": "full"},
        cohort={"size": 2, "sampler": {"name": "md"}},
        server={"weighting": "uniform"},
        engine={"workers": 0, "dtype": "float64"},
    )
    from torch import nn

    w, seen = 0.0, set()
    start = {"weight": np.zeros((1, 1))}
    for r in raysim.rounds(exp, dataset=data, model=lambda: nn.Linear(1, 1, bias=False), params=start):
        # The squared error has gradient 2 (w - y): at lr 1/2 every client goes to its y at once.
        w = float(np.mean([4.0 if c == "a" else 0.0 for c in r.cohort]))
        assert r.params["weight"].item() == pytest.approx(w)
        assert (len(r.cohort), r.metrics["clients"]) == (2, 2)
        assert r.metrics["bytes_up"] == 8 * len(set(r.cohort))
        seen.add(r.cohort)
    assert any(a == b for a, b in seen)
    assert any(a != b for a, b in seen)


@given(st.floats(0.01, 1.0), st.integers(1, 300), st.integers(0, 5))
def test_bernoulli_cohorts_are_sets_in_order(probability: float, population: int, seed: int) -> None:
    at = CohortAt(2, 0, of_sizes(np.ones(population)), seed)
    cohort = bernoulli.make(Bernoulli(probability=probability)).sample({}, at)
    assert (np.diff(cohort) > 0).all()
    assert cohort.size == 0 or (cohort[0] >= 0 and cohort[-1] < population)


def test_bernoulli_takes_everyone_equally_often() -> None:
    sampler, clients = bernoulli.make(Bernoulli(probability=0.2)), of_sizes(np.ones(6))
    rounds = 10_000
    drawn = [sampler.sample({}, CohortAt(t, 0, clients, 5)) for t in range(rounds)]
    counts = np.bincount(np.concatenate(drawn), minlength=6)
    deviations = (counts - 0.2 * rounds) / np.sqrt(rounds * 0.2 * 0.8)
    assert np.abs(deviations).max() < 4


def test_a_round_without_clients_leaves_the_model(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(rounds=30, cohort={"sampler": {"name": "bernoulli", "probability": 0.02}})
    before = None
    empty = 0
    for r in raysim.rounds(exp, dataset=dataset):
        if not r.cohort:
            empty += 1
            assert r.metrics["clients"] == 0
            if before is not None:
                assert all((before[name] == r.params[name]).all() for name in before)
        before = r.params
    assert 0 < empty < 30


def test_only_clients_with_an_open_window_take_part() -> None:
    section = Availability(day=4, open=0.25)
    sampler, clients = availability.make(section), of_sizes(np.ones(200))
    for t in range(8):
        cohort = sampler.sample({}, CohortAt(t, 20, clients, 7))
        assert len(set(cohort.tolist())) == 20
        assert np.all(availability.is_open(section, 7, cohort, t))
    # Windows of a quarter day, four rounds a day: everyone is awake in exactly one of them.
    awake = sum(availability.is_open(section, 7, np.arange(200), t).astype(int) for t in range(4))
    assert np.all(awake == 1)


def test_where_too_few_are_awake_all_of_them_come() -> None:
    section = Availability(day=4, open=0.25, spread=0.1)
    sampler, clients = availability.make(section), of_sizes(np.ones(50))
    sizes = [len(sampler.sample({}, CohortAt(t, 40, clients, 7))) for t in range(4)]
    assert sum(sizes) == 40 + 0 or sorted(sizes)[:2] == [0, 0]


@pytest.mark.parametrize(
    ("cohort", "said"),
    [
        ({"size": 9, "sampler": {"name": "availability", "day": 4, "open": 0.2, "spread": 0.1}}, "0 of 20 in round 1:"),
        ({"size": 2, "sampler": {"name": "availability", "open": 1.0}}, None),
        ({"size": 12}, None),
    ],
    ids=["asleep", "awake", "uniform"],
)
def test_cohorts_of_too_few_available_clients_are_warned_of(
    cohort: dict[str, Any],
    said: str | None,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sizes = [len(r.cohort) for r in raysim.rounds(made(cohort, experiment), dataset=dataset)]
    warned = [record.getMessage() for record in caplog.records if "cohort.sampler" in record.getMessage()]
    assert len(warned) == (said is not None)
    assert said is None or (said in warned[0] and f"in {sizes.count(0)} of the first 5 rounds" in warned[0])


def test_growth_doubles_up_to_the_largest() -> None:
    section = CohortGrowth(every=2, max=10)
    assert [grown_size(section, 3, 100, t) for t in range(8)] == [3, 3, 6, 6, 10, 10, 10, 10]
    assert grown_size(CohortGrowth(every=1), 3, 100, 10**6) == 100
    assert grown_size(None, 3, 100, 9) == 3
    # 100 times 1.15 is 114.99999999999999.
    assert grown_size(CohortGrowth(every=1, factor=1.15), 100, 1000, 1) == 115


def test_replayed_rounds_lie_over_another_sampler(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plain = [r.cohort for r in raysim.rounds(experiment(cohort={"size": 3}), dataset=dataset)]
    over = experiment(cohort={"size": 3, "sampler": {"name": "replay", "rounds": {"2": ["c9", "c8"]}}})
    assert [r.cohort for r in raysim.rounds(over, dataset=dataset)] == [*plain[:2], ("c9", "c8"), plain[3]]


@pytest.mark.parametrize(
    ("cohort", "message"),
    [
        ({"size": 3, "sampler": {"name": "bernoulli", "probability": 0.5}}, "size must be absent with the bernoulli"),
        ({"sampler": {"name": "bernoulli"}}, "cohort.sampler.probability must be given"),
        ({"sampler": {"name": "md"}}, "size must be given with the md sampler"),
        ({"sampler": {"name": "replay"}}, "either cohorts, .* or rounds, .* must be given"),
        ({"sampler": {"name": "replay", "rounds": {"1": ["a"]}}}, "size must be given with the replay sampler"),
        (
            {"sampler": {"name": "bernoulli", "probability": 0.5}, "growth": {"every": 2}},
            "growth needs a size .* the bernoulli sampler has none, but got growth.every = 2",
        ),
        ({"size": 9, "growth": {"every": 2, "max": 8}}, "growth.max must be at least size, but .* 8 and size = 9"),
        (
            {"sampler": {"name": "replay", "cohorts": [["a"]], "over": {"name": "md"}}},
            "over, .* goes with rounds, but got over.name = 'md' with cohorts: remove over",
        ),
        ({"size": 3, "sampler": {"name": "md", "probability": 0.5}}, "unknown key 'cohort.sampler.probability'"),
    ],
)
def test_what_is_wrong_is_named(cohort: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(cohort=cohort)


def test_md_is_weighted_uniformly(experiment: Make) -> None:
    cohort = {"size": 3, "sampler": {"name": "md"}}
    assert experiment(cohort=cohort).server.weighting == "uniform"
    with pytest.raises(raysim.ExperimentError, match=r"the md sampler .*weighting = 'examples'"):
        experiment(cohort=cohort, server={"weighting": "examples"})


def test_participants_may_share_the_attention_that_they_had() -> None:
    """Three of ten clients: with `keep_total` they keep 3/10 together; otherwise they gain on the others."""
    before = {"attention": torch.full((10,), 0.1, dtype=torch.float64)}
    participants = [Participant(p, f"c{p}", 1, 0.0, 0.0, 1, distance) for p, distance in ((2, 1.0), (5, 3.0), (7, 0.0))]
    after = {}
    for keep_total in (True, False):
        learn = adafl.make(adafl.AdaFl(alpha=0.5, keep_total=keep_total)).learn
        assert learn is not None
        after[keep_total] = learn(before, participants)["attention"]
    assert after[True][[2, 5, 7]].tolist() == pytest.approx([0.5 * 0.1 + 0.5 * 0.3 * s for s in (1 / 4, 3 / 4, 0)])
    assert float(after[True][[0, 1, 3, 4, 6, 8, 9]].sum()) == pytest.approx(0.7)
    assert float(after[False][[2, 5, 7]].sum()) == pytest.approx((0.5 * 0.3 + 0.5) / (0.5 * 0.3 + 0.5 + 0.7))
