"""A sampler of a script: what it is told, same bits wherever and however often, and what is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

import raysim
import tuning
from raysim import seeds
from raysim.cohort import adafl, md, uniform
from raysim.cohort.cohorts import Cohorts
from raysim.cohort.sampler import Participant
from raysim.config import part
from tests.support.executors import bits

Make = Callable[..., raysim.Experiment]


def by_loss(section: Any) -> raysim.Sampler:
    def sample(state: Any, at: raysim.CohortAt) -> Any:
        p = state["loss"].numpy() ** section.constants.get("power", 1.0)
        return at.rng.choice(at.population, at.size, replace=False, p=p / p.sum())

    def learn(state: Any, participants: Sequence[raysim.Participant]) -> Any:
        for one in participants:
            state["loss"][one.position] = one.loss
        return state

    return raysim.Sampler(lambda at: {"loss": torch.ones(at.population, dtype=torch.float64)}, sample, learn)


def by_examples(at: raysim.CohortAt) -> Any:
    return at.rng.choice(at.population, at.size, replace=False, p=at.examples / at.examples.sum())


def params(result: raysim.Result) -> list[Any]:
    return [value.tolist() for value in result.params.values()]


def test_a_function_draws_from_the_round_s_own_generator(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    sizes = np.array([3 + 2 * i for i in range(20)])
    exp = experiment(seed=5, cohort={"size": 4, "growth": {"every": 2}})
    got = [r.cohort for r in raysim.rounds(exp, dataset=dataset, sampler=by_examples)]
    for t, cohort in enumerate(got):
        rng = seeds.generator(seeds.key(5, "cohort/own", t))
        expected = rng.choice(20, (4, 4, 8, 8)[t], replace=False, p=sizes / sizes.sum())
        assert cohort == tuple(f"c{i}" for i in expected)


@pytest.mark.parametrize("passed", [by_loss, by_examples], ids=["make", "fn"])
def test_a_run_goes_on_from_its_checkpoint_to_the_same_bits(
    passed: Any, dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    parts: dict[str, Any] = {"dataset": dataset, "sampler": passed}
    exp = experiment(rounds=6, checkpoint={"every": 1})
    whole = raysim.run(exp, path=tmp_path / "whole", **parts)
    raysim.run(exp.changed({"rounds": 3}), path=tmp_path / "part", **parts)
    part = raysim.resume(tmp_path / "part", rounds=6, **parts)
    assert params(part) == params(whole)
    again = raysim.replay(tmp_path / "part", 4, **parts)
    assert isinstance(again, raysim.Round)
    assert again.metrics["loss"] == whole.rounds["loss"][4].as_py()


def test_it_learns_what_is_known_of_each_participant(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    told: list[Sequence[Participant]] = []

    def make(section: Any) -> raysim.Sampler:
        def learn(state: Any, participants: Sequence[Participant]) -> Any:
            told.append(participants)
            return state

        return raysim.Sampler(lambda at: {}, lambda state, at: at.rng.permutation(at.population)[: at.size], learn)

    got = list(raysim.rounds(experiment(), dataset=dataset, sampler=make))
    # The first was made up, to see that `learn` can.
    assert len(told[1:]) == len(got)
    for done, participants in zip(got, told[1:], strict=True):
        assert sorted(one.client for one in participants) == sorted(done.cohort)
        for one in participants:
            n = 3 + 2 * one.position
            assert (one.client, one.examples, one.steps) == (f"c{one.position}", n, -(-n // 4))
            assert np.isnan(one.distance)
        examples = [one.examples for one in participants]
        losses, norms = [one.loss for one in participants], [one.norm for one in participants]
        assert np.average(losses, weights=examples) == pytest.approx(done.metrics["loss"])
        assert np.mean(norms) == pytest.approx(done.metrics["mean_update_norm"])


def test_clients_without_loss_are_not_drawn_again(experiment: Make) -> None:
    # One class: a client whose examples are all of it has a loss of 0 at once, where the others have one.
    rng = np.random.default_rng(0)
    clients = {f"c{i}": (rng.normal(size=(4, 2)), np.full(4, 0.0 if i < 5 else 9.0)) for i in range(10)}
    data = raysim.FederatedDataset.from_clients(train=clients)
    exp = experiment(
        rounds=8, model=None, client={"optimizer": {"name": "sgd", "lr": 0.0}}, cohort={"size": 3}, evaluation={}
    )
    start = {"weight": np.zeros((1, 2)), "bias": np.zeros(1)}
    finished = raysim.rounds(exp, dataset=data, model=lambda: torch.nn.Linear(2, 1), params=start, sampler=by_loss)
    seen: set[str] = set()
    for done in finished:
        assert not seen & {c for c in done.cohort if c in ("c0", "c1", "c2", "c3", "c4")}
        seen |= set(done.cohort)
    assert len(seen) > 5


def built_in_as_own(name: str) -> Callable[[Any], raysim.Sampler]:
    made = {
        "uniform": lambda: uniform.make(uniform.UniformSampler()),
        "md": lambda: md.make(md.Md()),
        "adafl": lambda: adafl.make(adafl.AdaFl()),
    }
    return lambda section: made[name]()


@pytest.mark.parametrize("name", ["uniform", "md", "adafl"])
def test_built_in_ones_have_their_bits_through_the_public_door(
    name: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    built_in = raysim.rounds(experiment(cohort={"size": 6, "sampler": {"name": name}}), dataset=dataset)
    own = raysim.rounds(experiment(cohort={"size": 6}), dataset=dataset, sampler=built_in_as_own(name))
    assert [bits(r) for r in built_in] == [bits(r) for r in own]


def test_its_constants_are_swept_in_both_forms(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    def strided(at: raysim.CohortAt) -> Any:
        stride = int(at.constants["stride"])
        return (np.arange(at.size) * stride + at.round) % at.population

    for passed, key, values in ((by_loss, "power", [0.0, 9.0]), (strided, "stride", [1, 3])):
        exp = experiment(cohort={"size": 5, "sampler": {"name": "own", "constants": {key: values[0]}}})
        swept = raysim.run_sweep(
            exp, {f"cohort.sampler.constants.{key}": values}, dataset=dataset, sampler=passed, path=tmp_path / key
        )
        one, other = (point.rounds["loss"].to_pylist() for point in swept.points)
        assert one != other


def test_a_study_s_sampler_is_a_table_and_that_of_cohorts_a_function(
    dataset: raysim.FederatedDataset, experiment: Make, tmp_path: Path
) -> None:
    drawn: list[int] = []

    def counting(at: raysim.CohortAt) -> Any:
        drawn.append(at.round)
        return at.rng.permutation(at.population)[: at.size]

    space = {"client.optimizer.lr": {"uniform": [0.1, 0.2]}}
    tuning.tune(experiment(), space, dataset=dataset, sampler=counting, path=tmp_path / "own", trials=2, final=0)
    assert max(drawn) == 3
    with pytest.raises(raysim.ExperimentError, match=r"tuning\.sampler\.name must be one of .*random"):
        tuning.tune(experiment(), space, dataset=dataset, sampler={"name": "adafl"}, path=tmp_path / "table")


class Strided(raysim.Section):
    """A sampler of a package."""

    name: Literal["strided"] = "strided"
    stride: int = 2


def test_a_package_s_sampler_is_a_choice_like_others(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(section: Strided) -> raysim.Sampler:
        return raysim.Sampler(
            lambda at: {},
            lambda state, at: np.arange(at.round, at.population, section.stride),
            name="strided",
            sized_by="its stride says it",
            expected=lambda t, population: len(range(t, population, section.stride)),
        )

    installed = part.Installed(raysim.Part("sampler", "strided", Strided, make), "theirs")
    monkeypatch.setattr(part, "load_installed", lambda: ((installed,), ()))
    exp = experiment(cohort={"sampler": {"name": "strided", "stride": 7}})
    assert [r.cohort for r in raysim.rounds(exp, dataset=dataset)][:2] == [("c0", "c7", "c14"), ("c1", "c8", "c15")]
    assert raysim.Experiment.model_validate(json.loads(exp.to_json())) == exp
    with pytest.raises(raysim.ExperimentError, match="size must be absent with the strided sampler: its stride says"):
        experiment(cohort={"size": 3, "sampler": {"name": "strided"}})
    with pytest.raises(raysim.ExperimentError, match=r"cohort\.sampler\.strides"):
        experiment(cohort={"sampler": {"name": "strided", "strides": 7}})


def test_what_it_says_of_itself_counts(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    def draw(state: Any, at: raysim.CohortAt) -> Any:
        return [at.round, at.round, 3]

    def repeats(section: Any) -> raysim.Sampler:
        return raysim.Sampler(lambda at: {}, draw, repeats=True, varies=True)

    parts: dict[str, Any] = {"dataset": dataset, "sampler": repeats}
    got = list(raysim.rounds(experiment(), **parts))
    assert [r.cohort for r in got][:2] == [("c0", "c0", "c3"), ("c1", "c1", "c3")]
    assert [r.metrics["clients"] for r in got] == [3, 3, 3, 3]
    with pytest.raises(raysim.ExperimentError, match=r"'own' may draw a client several times: take another sampler"):
        raysim.rounds(experiment(client={"correction": {"name": "scaffold"}}), **parts)


def with_state(sample: Any = None, learn: Any = None, init: Any = None) -> Callable[[Any], raysim.Sampler]:
    def make(section: Any) -> raysim.Sampler:
        begin = init or (lambda at: {"v": torch.zeros(at.population)})
        return raysim.Sampler(begin, sample or (lambda state, at: np.arange(at.size)), learn)

    return make


def writes(state: Any, at: raysim.CohortAt) -> Any:
    state["v"] += 1
    return np.arange(at.size)


def fails(at: raysim.CohortAt) -> Any:
    return [][at.round]


COUNT = itertools.count()
"""What a function has kept that is not a function of its arguments."""


class Helper:
    """Has no `round`, which a section has not either."""


def asks_another(section: Any) -> Any:
    return Helper().round  # type: ignore[attr-defined]


def writes_to_examples(at: raysim.CohortAt) -> Any:
    at.examples[0] = 7
    return [0]


@pytest.mark.parametrize(
    ("passed", "message"),
    [
        (lambda at: [at.round, 20], r"from 0 to 19, but returned 20"),
        (lambda at: [at.round, -1], r"but returned -1"),
        (lambda at: np.ma.masked_array(np.arange(at.size), np.arange(at.size) < 1), r"are masked: use compressed"),
        (lambda at: np.array([at.round, 2**63], np.uint64), r"from 0 to 19, but returned 9223372036854775808"),
        (lambda at: [at.round, 3, 3], r"each once .* but returned \[3\] several times"),
        (lambda at: np.arange(at.size) / 2, r"integers \(M,\), but returned float64 of shape \(7,\)"),
        (lambda at: [[at.round]], r"but returned int64 of shape \(1, 1\)"),
        (lambda at: f"c{at.round}", r"integers \(M,\), but returned"),
        (lambda at: at.rgn.choice(3), r"asked its argument for 'rgn'.* name, label and constants.* rng"),
        (
            asks_another,
            r"^sampler= .*, but called with the section it raised AttributeError \(.*\): .*Helper",
        ),
        (lambda: [1], r"but called with the section it raised TypeError: "),
        (lambda section: (1, 2), r"but called with the section it returned \(1, 2\)"),
        (lambda at: np.arange(at.size) + next(COUNT), r"^sampler= .* returned something else when it was called again"),
        (fails, r"drawing the cohort of round 0, failed: IndexError.*\nTraceback"),
        (writes_to_examples, r"failed: ValueError\('assignment destination is read-only'\)"),
        ([1, 2], r"sampler= must be a function make\(section\) .*or fn\(at\)"),
        (with_state(writes), r"wrote to v of its state while it drew the cohort of round 0"),
        (with_state(init=lambda at: {"v": 1}), r"init must return dense tensors by name, but returned"),
        (
            with_state(learn=lambda state, who: {}),
            r"learning from round 0, must return state with the names \['v'\], but returned \[\]",
        ),
        (with_state(learn=lambda state, who: {"v": state["v"][:3]}), r"float32 of shape \(3,\)"),
        (with_state(learn=lambda state, who: None), r"but returned None"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_round(
    passed: Any, message: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        raysim.rounds(experiment(), dataset=dataset, sampler=passed)


def test_what_goes_wrong_later_says_the_round(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"the positions of round 2's cohort.* but returned 20"):
        list(raysim.rounds(experiment(), dataset=dataset, sampler=lambda at: np.arange(at.size) + 10 * at.round))


def test_what_learn_writes_to_its_state_leaves_that_of_the_round_before(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def learn(state: Any, participants: Sequence[Participant]) -> Any:
        state["v"].add_(1)
        return {"v": state["v"] * 2}

    sampler = raysim.Sampler(lambda at: {}, lambda state, at: np.zeros(1, np.int64), learn)
    cohorts = Cohorts(sampler, at=lambda t: None, is_built_in=False)  # type: ignore[arg-type, return-value]
    before = {"v": torch.zeros(3)}
    assert cohorts.learn(before, [], 0)["v"].tolist() == [2.0] * 3
    assert before["v"].tolist() == [0.0] * 3


def test_a_size_is_required_and_the_part_as_well(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="size must be given with the own sampler"):
        experiment(cohort={"sampler": {"name": "own"}})
    own = experiment(cohort={"size": 3, "sampler": {"name": "own"}})
    with pytest.raises(raysim.ExperimentError, match="passes as sampler=, but none was passed"):
        raysim.rounds(own, dataset=dataset)
    with pytest.raises(raysim.ExperimentError, match="must be 'own' or be left out, but got 'md'"):
        raysim.rounds(experiment(cohort={"size": 3, "sampler": {"name": "md"}}), dataset=dataset, sampler=by_examples)


@pytest.mark.usefixtures("ray_cluster")
def test_sampler_aggregator_and_weighting_have_the_same_bits_on_ray(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def sharpened(updates: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        # The first update counts twice, so that the order of rows is seen.
        return (weights @ updates + updates[0]) / (weights.sum() + 1)

    def drawn(aggregator: Any, sampler: Any, engine: dict[str, Any]) -> list[Any]:
        exp = experiment(engine={"chunk_size": 2, **engine})
        parts: dict[str, Any] = {"aggregator": aggregator, "sampler": sampler, "weighting": lambda facts: facts.loss}
        return [bits(r) for r in raysim.rounds(exp, dataset=dataset, **parts)]

    by_norm = raysim.Coefficients(lambda gram, weights: weights / gram.diagonal().sqrt())
    for aggregator, sampler in ((by_norm, by_loss), (raysim.Coordinatewise(sharpened), by_examples)):
        here = drawn(aggregator, sampler, {"workers": 0})
        assert here == drawn(aggregator, sampler, {"workers": 2, "cpus_per_worker": 0.5})


def test_a_sampler_that_returns_fewer_clients_says_that_it_may(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def few(varies: bool, choose: Any = None) -> Any:
        return lambda section: raysim.Sampler(
            lambda at: {}, lambda state, at: np.arange(3 if choose is None else 9), None, varies=varies, choose=choose
        )

    def chosen(at: raysim.CohortAt, drawn: Any, losses: Any) -> Any:
        return drawn[:3]

    said = r"must return at.size positions, 7 in round 0, but returned 3\. .*varies=True"
    for passed in (few(varies=False), lambda at: np.arange(3), lambda at: [at.round, 1, 2]):
        with pytest.raises(raysim.ExperimentError, match=said):
            list(raysim.rounds(experiment(), dataset=dataset, sampler=passed))
    nine = lambda section: few(varies=False, choose=chosen)(section)._replace(asks=9)  # noqa: E731
    with pytest.raises(raysim.ExperimentError, match=said):
        list(raysim.rounds(experiment(), dataset=dataset, sampler=nine))
    for passed in (few(varies=True), few(varies=True, choose=chosen)):
        assert len(next(raysim.rounds(experiment(), dataset=dataset, sampler=passed)).cohort) == 3


@pytest.mark.parametrize(
    ("drawn", "chosen", "how", "said"),
    [
        (4, 3, {}, r"\.sample must return `asks` positions, 5 in round 0, but returned 4\."),
        (5, 2, {}, r"\.choose must return at\.size positions, 3 in round 0, but returned 2\."),
        (3, 3, {"expected": lambda t, population: 3.0}, r"\.sample must return `asks` positions, 5 in round 0"),
        (5, 2, {"expected": lambda t, population: 4.0}, r"\.choose must return `expected` positions, 4 in round 0"),
        (5, 3, {}, None),
        (5, 4, {"expected": lambda t, population: 4.0}, None),
    ],
)
def test_as_many_are_drawn_as_it_asks_and_as_many_chosen_as_train(
    drawn: int, chosen: int, how: Any, said: str | None, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def make(section: Any) -> raysim.Sampler:
        return raysim.Sampler(
            lambda at: {},
            lambda state, at: np.arange(drawn),
            choose=lambda at, drawn, losses: drawn[:chosen],
            asks=5,
            **how,
        )

    finished = partial(raysim.rounds, experiment(cohort={"size": 3}), dataset=dataset, sampler=make)
    if said is None:
        assert [len(one.cohort) for one in finished()] == [chosen] * 4
    else:
        with pytest.raises(raysim.ExperimentError, match=said):
            list(finished())


def test_a_package_s_sampler_says_that_cohorts_vary_as_well(
    dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(section: Strided) -> raysim.Sampler:
        return raysim.Sampler(lambda at: {}, lambda state, at: np.arange(0, at.population, section.stride))

    installed = part.Installed(raysim.Part("sampler", "strided", Strided, make), "theirs")
    monkeypatch.setattr(part, "load_installed", lambda: ((installed,), ()))
    exp = experiment(cohort={"size": 7, "sampler": {"name": "strided", "stride": 10}})
    with pytest.raises(raysim.ExperimentError, match=r"7 in round 0, but returned 2"):
        raysim.rounds(exp, dataset=dataset)
    right = exp.changed({"cohort.sampler.stride": 3})
    assert len(next(raysim.rounds(right, dataset=dataset)).cohort) == 7


def test_a_sampler_that_draws_from_a_global_generator_is_refused(
    dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def anyone(at: raysim.CohortAt) -> Any:
        return np.random.permutation(at.population)[: at.size]

    with pytest.raises(raysim.ExperimentError, match=r"sampler=.* drew from a global generator .* at.rng"):
        list(raysim.rounds(experiment(), dataset=dataset, sampler=anyone))
