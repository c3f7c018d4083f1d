"""Rounds of a run with `[systems]`: who trains, what is recorded, and what stays as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.client import batches
from raysim.client.section import ClientSection
from raysim.run_folder import cost_columns
from raysim.systems.section import SystemsSection

Make = Callable[..., raysim.Experiment]
STRAGGLER = {"name": "straggler", "alpha": 0.1, "lambda": 1.0}
ROUND_TIME = {"name": "round_time", "seconds_per_example": 0.01, "server_s": 3.0}
CHOOSY: dict[str, Any] = {
    "time": STRAGGLER,
    "over_selection": 1.5,
    "deadline_s": 40.0,
    "session_s": {"name": "exponential", "mean": 100.0, "per": "round"},
}
CLIENT: dict[str, Any] = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4}


def params(run: raysim.Round) -> list[Any]:
    return [tensor.tolist() for tensor in run.params.values()]


def test_times_alone_change_no_bit_of_the_model(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    plain = list(raysim.rounds(experiment(), dataset=dataset))
    timed = list(raysim.rounds(experiment(systems={"time": STRAGGLER}), dataset=dataset))
    assert [params(r) for r in plain] == [params(r) for r in timed]
    assert [r.cohort for r in plain] == [r.cohort for r in timed]
    assert "simulated_time_s" not in plain[0].metrics
    for r in timed:
        assert (r.metrics["asked"], r.metrics["clients"]) == (7, 7)
        assert [r.metrics[key] for key in ("dropped", "late", "discarded", "wasted_examples")] == [0, 0, 0, 0]


def test_a_rounds_time_is_that_of_its_slowest_client(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exact = {"name": "straggler", "alpha": 2.0, "lambda": 0.0}
    exp = experiment(systems={"time": exact}, client={**CLIENT, "epochs": 3})
    for r in raysim.rounds(exp, dataset=dataset):
        most = max(int(dataset.train.sizes()[dataset.train.position_of(c)]) for c in r.cohort)
        # 2 s for each example in each of 3 epochs.
        assert r.metrics["simulated_time_s"] == 6 * most


def test_larger_batches_later_on_take_longer(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    later = {**CLIENT, "batch_size": 3, "local_steps": 1, "schedule": [{"round": 2, "batch_size": "full"}]}
    exp = experiment(systems={"time": {"name": "straggler", "alpha": 2.0, "lambda": 0.0}}, client=later)
    for r in raysim.rounds(exp, dataset=dataset):
        most = max(int(dataset.train.sizes()[dataset.train.position_of(c)]) for c in r.cohort)
        assert r.metrics["simulated_time_s"] == 2 * (3 if r.index < 2 else most)


def test_a_round_takes_what_the_equation_says(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    exp = experiment(systems={"time": ROUND_TIME}, engine={"workers": 0, "dtype": "float64"})
    for r in raysim.rounds(exp, dataset=dataset):
        model_bytes = 8 * sum(p.numel() for p in r.params.values())
        assert r.metrics["bytes_down"] == 7 * model_bytes
        most = max(int(dataset.train.sizes()[dataset.train.position_of(c)]) for c in r.cohort)
        transfer_s = model_bytes / 0.75e6 + model_bytes / 0.25e6
        assert r.metrics["simulated_time_s"] == pytest.approx(transfer_s + 7 * 0.01 * most + 10 + 3)


def test_what_travels_beside_the_model_takes_time(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    free = {**ROUND_TIME, "seconds_per_example": 0.0, "overhead_s": 0.0, "server_s": 0.0}
    plain, scaffold = (
        next(iter(raysim.rounds(experiment(systems={"time": free}, client=client), dataset=dataset))).metrics
        for client in (CLIENT, {**CLIENT, "correction": {"name": "scaffold"}})
    )
    assert plain["simulated_time_s"] is not None
    # Control variates double what is sent in both directions.
    assert scaffold["simulated_time_s"] == pytest.approx(2 * plain["simulated_time_s"])


def test_a_pass_for_full_gradients_is_counted(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    systems = {"time": {"name": "straggler", "alpha": 1.0, "lambda": 0.0}}
    mime = {**CLIENT, "correction": {"name": "mime", "base": "momentum"}}
    once, twice = (
        next(iter(raysim.rounds(experiment(systems=systems, client=client), dataset=dataset))).metrics
        for client in (CLIENT, mime)
    )
    assert once["simulated_time_s"] is not None
    assert twice["simulated_time_s"] == 2 * once["simulated_time_s"]


@pytest.mark.parametrize("correction", [None, {"name": "scaffold"}])
def test_who_does_not_count_is_not_trained_and_remembers_nothing(
    correction: dict[str, Any] | None, experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    client = {**CLIENT, "mid_round_dropout": 0.2, "correction": correction}
    here = {"workers": 0, "dtype": "float64", "chunk_size": 1}
    exp = experiment(rounds=6, systems=CHOOSY, client=client, engine=here)
    got = list(raysim.rounds(exp, dataset=dataset))
    counted = [counting(exp, dataset, r) for r in got]
    given = {"sampler": {"name": "replay", "cohorts": counted}}
    without = experiment(rounds=6, client={**client, "mid_round_dropout": 0.0}, engine=here, cohort=given)
    lost = np.zeros(3)
    for one, other, cohort in zip(got, raysim.rounds(without, dataset=dataset), counted, strict=True):
        m = {name: value for name, value in one.metrics.items() if value is not None}
        # ceil(1.5 * 7) are asked.
        assert (m["asked"], len(one.cohort)) == (11, 11)
        lost += [m["dropped"], m["late"], m["discarded"]]
        assert m["clients"] == len(cohort) == 11 - sum(m[key] for key in ("dropped", "late", "discarded"))
        assert m["bytes_down"] == 11 / len(cohort) * (other.metrics["bytes_down"] or 0)
        assert m["bytes_up"] == other.metrics["bytes_up"]
        wasted = [c for c in one.cohort if c not in cohort]
        assert m["wasted_examples"] == sum(int(dataset.train.sizes()[int(c[1:])]) for c in wasted)
        for name, value in one.params.items():
            np.testing.assert_allclose(value.numpy(), other.params[name].numpy(), 1e-11, 1e-13)
    assert (lost > 0).all()


def counting(exp: raysim.Experiment, dataset: raysim.FederatedDataset, r: raysim.Round) -> list[str]:
    """The first 7 of the cohort to report, worked out by hand."""
    from raysim.client.work import stays
    from raysim.systems.times import Load

    positions = np.array([dataset.train.position_of(c) for c in r.cohort])
    sizes = dataset.train.sizes(positions)
    assert exp.systems is not None
    times_s = exp.systems.times(exp.seed, r.index, positions, Load(sizes, 0, 0))
    probability = exp.client.mid_round_dropout
    reporting = [
        (time, place)
        for place, (time, stay) in enumerate(
            zip(times_s, stays(probability, exp.seed, r.index, positions), strict=True)
        )
        if stay and time <= 40
    ]
    return [r.cohort[place] for place in sorted(place for _, place in sorted(reporting)[:7])]


def test_over_selected_cohorts_are_nested(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    cohorts = [
        [
            r.cohort
            for r in raysim.rounds(experiment(systems={"time": STRAGGLER, "over_selection": factor}), dataset=dataset)
        ]
        for factor in (1.0, 1.5, 2.0)
    ]
    for small, middle, large in zip(*cohorts, strict=True):
        assert (len(small), len(middle), len(large)) == (7, 11, 14)
        assert middle[:7] == small
        assert large[:11] == middle


def test_over_selection_makes_rounds_shorter(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    times = [
        [
            r.metrics["simulated_time_s"] or 0.0
            for r in raysim.rounds(experiment(systems={"time": STRAGGLER, "over_selection": factor}), dataset=dataset)
        ]
        for factor in (1.0, 1.5, 2.0)
    ]
    # The same clients and more: the seventh report never comes later.
    assert all(a >= b >= c for a, b, c in zip(*times, strict=True))
    assert sum(times[0]) > sum(times[2])


def test_an_abandoned_round_leaves_the_model(
    experiment: Make, dataset: raysim.FederatedDataset, caplog: pytest.LogCaptureFixture
) -> None:
    hasty = {"time": STRAGGLER, "deadline_s": 1e-6, "min_reports": 2}
    first, second, *_ = raysim.rounds(experiment(systems=hasty), dataset=dataset)
    assert (first.metrics["clients"], first.metrics["late"], first.metrics["simulated_time_s"]) == (0, 7, 1e-6)
    assert params(first) == params(second)
    assert "round 0: fewer reports than systems.min_reports" in caplog.text


@pytest.mark.parametrize(
    "cohort",
    [
        {"size": 5},
        {"size": 5, "sampler": {"name": "adafl"}},
        {"size": 5, "sampler": {"name": "availability", "day": 3.0, "open": 0.4}},
        {"size": 2, "growth": {"every": 2}},
        {"size": 2, "sampler": {"name": "replay", "rounds": {"1": ["c4", "c5", "c6"]}}},
    ],
    ids=str,
)
def test_a_run_goes_on_to_the_same_bits(
    cohort: dict[str, Any], experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    long = experiment(rounds=5, cohort=cohort, systems=CHOOSY)
    whole = raysim.run(long, dataset=dataset, path=tmp_path / "whole")
    raysim.run(long.model_copy(update={"rounds": 2}), dataset=dataset, path=tmp_path / "part")
    part = raysim.resume(tmp_path / "part", dataset=dataset, rounds=5)
    for column in whole.rounds.column_names:
        if not cost_columns.tells_cost(column) and not column.startswith("eval"):
            assert part.rounds[column].equals(whole.rounds[column]), column
    assert [t.tolist() for t in part.params.values()] == [t.tolist() for t in whole.params.values()]


def test_a_replayed_round_has_its_figures_and_names_who_did_not_count(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result = raysim.run(experiment(systems=CHOOSY), dataset=dataset, path=tmp_path / "run")
    again = raysim.replay(tmp_path / "run", 2, dataset=dataset)
    assert isinstance(again, raysim.Round)
    for key in ("simulated_time_s", "discarded", "wasted_examples", "loss"):
        assert again.metrics[key] == result.rounds[key][2].as_py(), key
    said = []
    for client in again.cohort:
        try:
            raysim.replay(tmp_path / "run", 2, client=client, dataset=dataset)
        except raysim.RunFolderError as error:
            said.append(str(error))
    assert len(said) == again.metrics["asked"] - again.metrics["clients"] > 0  # type: ignore[operator]
    assert all("its report came too late to count" in sentence for sentence in said)


def test_central_training_has_no_devices(experiment: Make) -> None:
    assert raysim.centralized(experiment(systems=CHOOSY)).systems is None


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"systems": {}}, "systems.time must be given"),
        ({"systems": {**CHOOSY, "over_selection": 0.9}}, "systems.over_selection must be greater than or equal to 1"),
        ({"systems": {**CHOOSY, "min_reports": 8}}, r"min_reports <= cohort.size must hold.* 8 and size = 7"),
        (
            {"systems": CHOOSY, "cohort": {"sampler": {"name": "replay", "cohorts": [["c1"]] * 4}}},
            "over_selection = 1.5 .* replay sampler",
        ),
        (
            {"systems": CHOOSY, "cohort": {"sampler": {"name": "bernoulli", "probability": 0.5}}},
            "over_selection = 1.5 .* bernoulli sampler has no size",
        ),
        (
            {"systems": CHOOSY, "cohort": {"size": 3, "sampler": {"name": "md"}}},
            "over_selection = 1.5 .* md sampler may draw a client several times",
        ),
        ({"systems": {"time": {"name": "straggler", "alpha": 1.0, "lamda": 1.0}}}, "did you mean 'lambda'"),
        ({"systems": {"time": {**ROUND_TIME, "slowdown": -1}}}, "systems.time.slowdown must be .*but got -1"),
        (
            {"systems": {"time": {**ROUND_TIME, "slowdown": {"name": "uniform", "low": 3, "high": 1}}}},
            r"systems.time.slowdown: low <= high must hold",
        ),
    ],
)
def test_what_is_wrong_is_named(sections: dict[str, Any], message: str, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=message):
        experiment(**sections)


@pytest.mark.parametrize(
    "keys",
    [
        {"epochs": 3},
        {"batch_size": "full", "epochs": 2},
        {"local_steps": 7},
        {"local_steps": 7, "fill_last_batch": True},
        {"epochs": 2, "max_local_steps": 3},
        {"local_steps": 7, "drop_last": True},
        {"epochs": 3, "drop_last": True},
        {"epochs": {"low": 1, "high": 4}, "fill_last_batch": True},
        {"epochs": 2, "schedule": [{"round": 2, "batch_size": 3}]},
        {"epochs": 2, "schedule": [{"round": 1, "batch_size": "full"}]},
    ],
    ids=str,
)
def test_examples_at_counts_what_batches_hold(keys: dict[str, Any]) -> None:
    section = ClientSection.model_validate({"batch_size": 4, **keys})
    work = section.work_at(2)
    sizes, positions = np.arange(1, 14), np.arange(13)
    steps = work.steps(sizes, 0, 2, positions)
    held = [len(b.order) for b in batches.draw(section, sizes.tolist(), 0, 2, positions.tolist())]
    assert work.examples(sizes, steps).tolist() == held


def test_the_section_comes_back_from_its_record() -> None:
    section = SystemsSection.model_validate(CHOOSY)
    assert SystemsSection.model_validate(section.model_dump(mode="json", by_alias=True)) == section
