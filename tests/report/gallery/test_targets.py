"""Rounds and times to targets, along any key: tables, lines and heat maps."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysim.report.gallery import (
    lanes,
    learning_curves,
    rounds_heat_maps,
    rounds_table,
    rounds_to_target,
    speed_up_base,
    time_ratio,
    time_to_target,
)
from raysim.report.groups import Group, group_runs, with_labels
from raysim.report.runs import read_all
from tests.support.drawn import drawn, texts, ticks
from tests.support.run_folders import accuracies, write

REACHED_AFTER = {(1, 10): 4, (1, "full"): 8, (5, 10): 2, (5, "full"): None}
"""Rounds to an accuracy of 0.9, of ten, by epochs and batch size."""


def groups(folder: Path) -> list[Group]:
    return group_runs(read_all([folder])[0])[0]


def rising(after: int | None, rounds: int = 10) -> list[dict[str, float]]:
    """Rows that go straight up to 0.9 in this round, or stay at 0.3."""
    return accuracies(*(0.3 if after is None else min(0.9, 0.9 * t / after) for t in range(1, rounds + 1)))


def by_work(folder: Path, after: Mapping[tuple[int, Any], int | None], **sections: Any) -> list[Group]:
    for (epochs, batch), reached in after.items():
        client = {"epochs": epochs, "batch_size": batch, "optimizer": {"name": "sgd", "lr": 0.1}}
        write(folder / f"{epochs}-{batch}", rising(reached), client=client, rounds=10, **sections)
    return groups(folder)


def test_the_table_has_rounds_and_the_speed_up_over_fedsgd(tmp_path: Path) -> None:
    (figure,) = rounds_table.make(by_work(tmp_path, REACHED_AFTER), [0.9, 0.45])
    cells = [(row["client.epochs"], row["client.batch_size"]) for row in figure.data.to_pylist()]
    assert cells == [(e, b) for e, b in (("1", "10"), ("1", "full"), ("5", "10"), ("5", "full")) for _ in range(2)]
    assert figure.data["rounds"].to_pylist() == pytest.approx([2, 4, 4, 8, 1, 2, None, None])
    # FedSGD, one epoch of one batch, is the base: it has no speed-up over itself.
    assert figure.data["speed_up"].to_pylist() == pytest.approx([2, 2, None, None, 4, 4, None, None])
    assert "the speed-up over client.epochs = 1, client.batch_size = full" in figure.caption
    (axes,) = drawn(figure)
    assert {"client.\nepochs", "client.\nbatch_size", "rounds to\n45.0 %", "rounds to\n90.0 %"} <= set(texts(axes))
    assert "1 (4.0x)" in texts(axes)
    assert texts(axes).count("not in 10") == 2


def test_speed_ups_over_the_pooled_data_count_its_local_steps(tmp_path: Path) -> None:
    """As table 3 of McMahan et al.: SGD in minibatches, FedSGD, FedAvg; their work and their decays differ."""
    sections: dict[str, dict[str, Any]] = {
        "sgd": {"pooled": True, "cohort": {"size": 1}, "client": {"epochs": 1, "batch_size": 30}},
        "fedsgd": {"client": {"epochs": 1, "batch_size": "full", "lr_decay": 0.9}},
        "fedavg": {"client": {"epochs": 5, "batch_size": 10}},
    }
    for (name, changed), after in zip(sections.items(), (8, 5, 2), strict=True):
        client = {"optimizer": {"name": "sgd", "lr": 0.1}, **changed["client"]}
        rows = [{**row, "examples_held": 100} for row in rising(after)]
        write(tmp_path / name, rows, name=name, rounds=10, **{**changed, "client": client})
    (figure,) = rounds_table.make(groups(tmp_path), [0.9])
    found = {row["group"]: row for row in figure.data.to_pylist()}
    assert [found[name]["rounds"] for name in sections] == pytest.approx([8, 5, 2])
    # 100 examples are four local steps of 30, the last one short: 32 in eight rounds.
    assert [found[name]["local_steps"] for name in sections] == [32, None, None]
    assert [found[name]["speed_up"] for name in sections] == [None, pytest.approx(32 / 5), pytest.approx(32 / 2)]
    assert "the speed-up over the pooled data, of which each local step counts as a round" in figure.caption
    shown = texts(drawn(figure)[0])
    assert {"data", "pooled", "clients", "8, 32 steps", "5 (6.4x)", "2 (16.0x)"} <= set(shown)
    assert not {"True", "False"} & set(shown)


def test_the_pooled_data_are_no_base_where_there_is_a_smallest_cohort(tmp_path: Path) -> None:
    for size, after in ((5, 8), (10, 4)):
        write(tmp_path / f"{size}", rising(after), cohort={"size": size}, rounds=10)
    rows = [{**row, "examples_held": 100} for row in rising(2)]
    write(tmp_path / "pooled", rows, pooled=True, cohort={"size": 1}, rounds=10)
    (figure,) = rounds_table.make(groups(tmp_path), [0.9])
    ratios = {row["cohort.size"]: row["speed_up"] for row in figure.data.to_pylist()}
    assert ratios == {"1": None, "5": None, "10": pytest.approx(2)}
    assert "the speed-up over cohort.size = 5, other keys the same" in figure.caption


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        # A setting's, and a key's.
        (["client.epochs = 5=E5", "client.batch_size=B"], {"client.\nepochs", "B", "1", "E5", "10"}),
        # A method's own.
        (
            ["client.batch_size = full, client.epochs = 1=FedSGD"],
            {"FedSGD", "client.batch_size = 10, client.epochs = 5"},
        ),
    ],
)
def test_the_table_has_the_given_names(names: list[str], shown: set[str], tmp_path: Path) -> None:
    made = with_labels(by_work(tmp_path, REACHED_AFTER), names)
    (figure,) = rounds_table.make(made, [0.9])
    assert shown <= set(texts(drawn(figure)[0]))
    assert figure.data["client.epochs"].to_pylist() == ["1", "1", "5", "5"], "the data keep keys and values"
    assert figure.data["group"].to_pylist() == [group.label for group in made]


def test_a_target_that_some_trials_reach_says_how_many(tmp_path: Path) -> None:
    for seed, size in itertools.product((0, 1), (5, 10)):
        write(tmp_path / f"{size}-{seed}", rising(4 if seed else None), seed=seed, cohort={"size": size}, rounds=10)
    (figure,) = rounds_table.make(groups(tmp_path), [0.9])
    assert "4, 1 of 2 (1.0x)" in texts(drawn(figure)[0])
    assert figure.data["rounds_run"].to_pylist() == [10, 10]


@pytest.mark.parametrize(
    ("swept", "expected"),
    [
        # Cohorts are compared with the smallest, at the same work; work with FedSGD; rates with the smallest.
        ({"cohort": [{"size": 20}, {"size": 5}], "client": [{"epochs": 1}, {"epochs": 5}]}, {"cohort.size": "5"}),
        ({"client": [{"batch_size": 50}, {"batch_size": 10}]}, {"client.batch_size": "50"}),
        ({"client": [{"local_steps": 4}, {"local_steps": 2}]}, {"client.local_steps": "2"}),
        ({"server": [{"optimizer": {"name": "sgd", "lr": lr}} for lr in (0.3, 0.1)]}, {"server.optimizer.lr": "0.1"}),
        ({"server": [{"optimizer": {"name": name}} for name in ("sgd", "momentum")]}, {}),
    ],
)
def test_the_base_of_a_speed_up(swept: dict[str, list[Any]], expected: dict[str, str], tmp_path: Path) -> None:
    for number, sections in enumerate(itertools.product(*swept.values())):
        made = dict(zip(swept, sections, strict=True))
        made.setdefault("client", {})
        made["client"] = {"optimizer": {"name": "sgd", "lr": 0.1}, **made["client"]}
        write(tmp_path / f"{number}", rising(4), rounds=10, **made)
    assert speed_up_base.base(groups(tmp_path)) == expected


def test_lanes_run_along_any_key_whose_values_have_an_order(tmp_path: Path) -> None:
    found = by_work(tmp_path, dict.fromkeys(itertools.product((1, 5), ("full", 50, 10)), 4))
    by_key = {along.key: along for along in lanes.every(found)}
    assert set(by_key) == {"client.epochs", "client.batch_size"}
    batches = by_key["client.batch_size"]
    assert list(batches.ticks.values()) == ["10", "50", "full"], "a full batch is the largest"
    assert not batches.is_logarithmic
    assert [lane.label for lane in batches.lanes] == ["client.epochs = 1", "client.epochs = 5"]
    assert by_key["client.epochs"].ticks == {1.0: "1", 5.0: "5"}
    assert by_key["client.epochs"].is_logarithmic
    assert lanes.lanes(by_work(tmp_path / "two", {(1, "full"): 4, (1, 10): 4}), "client.batch_size") is None


def test_lines_along_a_key_are_of_those_that_arrive(tmp_path: Path) -> None:
    found = by_work(tmp_path, {**REACHED_AFTER, (1, 50): 6, (5, 50): 3})
    figures = {figure.name: figure for figure in rounds_to_target.make(found, [0.9])}
    assert set(figures) == {"rounds-to-target-by-client.epochs", "rounds-to-target-by-client.batch_size"}
    figure = figures["rounds-to-target-by-client.batch_size"]
    (axes,) = drawn(figure)
    assert axes.get_xlabel() == "client.batch_size"
    assert ticks(axes) == ["10", "50", "full"]
    assert "Not reached by: client.epochs = 5 with full (not in 10 rounds)." in figure.caption
    points = [line.get_ydata().tolist() for line in axes.get_lines() if line.get_marker() != "None"]
    assert points == [pytest.approx([4, 6, 8]), pytest.approx([2, 3])]


def test_several_targets_are_lines_of_a_panel_each_method(tmp_path: Path) -> None:
    for size, rate in itertools.product((5, 10), (0.1, 0.2)):
        client = {"optimizer": {"name": "sgd", "lr": rate}}
        write(tmp_path / f"{size}-{rate}", rising(40 // size), cohort={"size": size}, client=client, rounds=10)
    figures = {figure.name: figure for figure in rounds_to_target.make(groups(tmp_path), [0.9, 0.45])}
    panels = drawn(figures["rounds-to-target"])
    assert [axes.get_title() for axes in panels] == ["client.optimizer.lr = 0.1", "client.optimizer.lr = 0.2"]
    for axes in panels:
        assert axes.get_legend_handles_labels()[1] == ["to 45.0 %", "to 90.0 %"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("clients in a round", "rounds")
    assert set(figures["rounds-to-target"].data["target"].to_pylist()) == {0.45, 0.9}


def test_targets_that_are_asked_for_are_not_rounded(tmp_path: Path) -> None:
    """0.9996 is not 100 %, and not 0.9995 either."""
    for size, rate in itertools.product((5, 10), (0.1, 0.2)):
        client = {"optimizer": {"name": "sgd", "lr": rate}}
        rows = [{**row, "simulated_time_s": 1.0} for row in accuracies(0.5, 1.0)]
        write(tmp_path / f"{size}-{rate}", rows, cohort={"size": size}, client=client, rounds=2)
    found, targets = groups(tmp_path), [0.9995, 0.9996]
    (table,) = rounds_table.make(found, targets)
    (axes,) = drawn(table)
    assert {"rounds to\n99.95 %", "rounds to\n99.96 %"} <= set(texts(axes))
    assert "The targets are 99.95 %, 99.96 % (given)." in table.caption
    assert [figure.title[:17] for figure in rounds_heat_maps.make(found, targets)] == [
        "Rounds to 99.95 %",
        "Rounds to 99.96 %",
    ]
    lines = next(rounds_to_target.make(found, targets))
    assert drawn(lines)[0].get_legend_handles_labels()[1] == ["to 99.95 %", "to 99.96 %"]
    assert [figure.title[18:25] for figure in time_to_target.make(found, targets)] == ["99.95 %", "99.96 %"]


def test_the_heat_map_has_rounds_and_says_who_misses(tmp_path: Path) -> None:
    (figure,) = rounds_heat_maps.make(by_work(tmp_path, REACHED_AFTER), [0.9])
    (axes,) = drawn(figure)
    assert {axes.get_xlabel(), axes.get_ylabel()} == {"client.epochs", "client.batch_size"}
    assert sorted(texts(axes)) == ["2\n(4.0x)", "4\n(2.0x)", "8", "not in\n10"]
    assert "speed-up over" in figure.caption
    reached, missed = axes.collections
    assert np.ma.count(reached.get_array()) == 3
    assert np.ma.count(missed.get_array()) == 1, "it is grey"
    assert sorted(figure.data["rounds"].to_pylist(), key=str) == [2.0, 4.0, 8.0, None]


def test_a_heat_map_takes_the_fewest_rounds_over_other_keys(tmp_path: Path) -> None:
    for (epochs, batch), after in {(1, 10): 4, (1, "full"): 8, (5, 10): 2, (5, "full"): 6}.items():
        for rate, slower in ((0.1, 2), (0.2, 0)):
            client = {"epochs": epochs, "batch_size": batch, "optimizer": {"name": "sgd", "lr": rate}}
            write(tmp_path / f"{epochs}-{batch}-{rate}", rising(after + slower), client=client, rounds=10)
    figures = {figure.name: figure for figure in rounds_heat_maps.make(groups(tmp_path), [0.9])}
    figure = next(f for name, f in figures.items() if "lr" not in name)
    assert sorted(figure.data["rounds"].to_pylist()) == [2.0, 4.0, 6.0, 8.0]
    assert "the best over them" in figure.caption


def test_a_heat_map_says_how_many_trials_a_mean_is_of(tmp_path: Path) -> None:
    for epochs, rate in itertools.product((1, 5), (0.1, 0.2)):
        for seed in range(3):
            client = {"epochs": epochs, "optimizer": {"name": "sgd", "lr": rate}}
            after = None if (epochs, rate) == (5, 0.2) and seed else 2 * epochs
            write(tmp_path / f"{epochs}-{rate}-{seed}", rising(after), client=client, rounds=10, seed=seed)
    (figure,) = rounds_heat_maps.make(groups(tmp_path), [0.9])
    (axes,) = drawn(figure)
    assert sorted(texts(axes)) == ["10\n(0.2x)", "10, 1 of 3\n(0.2x)", "2", "2"]
    counts = {(row["rounds"], row["reached"], row["trials"]) for row in figure.data.to_pylist()}
    assert counts == {(2.0, 3, 3), (10.0, 3, 3), (10.0, 1, 3)}
    assert "mean over the trials that reached it" in figure.caption


def test_time_ratios_are_by_target_and_a_panel_per_lambda(tmp_path: Path) -> None:
    for size, takes_s, scale in ((5, 10.0, 1.0), (10, 15.0, 2.0)):
        for slow in (1.0, 10.0):
            rows = [{**row, "simulated_time_s": takes_s * slow} for row in rising(int(8 / scale), 8)]
            time = {"name": "straggler", "alpha": 1.0, "lambda": slow}
            write(tmp_path / f"{size}-{slow}", rows, cohort={"size": size}, systems={"time": time}, rounds=8)
    (figure,) = time_ratio.make(groups(tmp_path))
    panels = drawn(figure)
    assert [axes.get_title() for axes in panels] == ["systems.time.lambda = 1", "systems.time.lambda = 10"]
    for axes in panels:
        assert axes.get_legend_handles_labels()[1] == ["M = 10"]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("target accuracy", "time over that of M = 5")
    # Half of the rounds, each of 1.5 times the length: 0.75. Both lines are straight beyond the first evaluations.
    late = [row["relative"] for row in figure.data.to_pylist() if row["target"] > 0.3]
    assert late
    assert late == pytest.approx([0.75] * len(late))


def test_a_time_ratio_is_of_mean_times_and_ends_where_a_trial_does_not_arrive(tmp_path: Path) -> None:
    for size, seed, high, takes_s in ((5, 0, 0.4, 10.0), (5, 1, 0.8, 40.0), (10, 0, 0.8, 10.0), (10, 1, 0.8, 10.0)):
        rows = [{"eval/test/accuracy": high * t / 4, "simulated_time_s": takes_s} for t in range(1, 5)]
        write(tmp_path / f"{size}-{seed}", rows, cohort={"size": size}, seed=seed, rounds=4)
    (figure,) = time_ratio.make(groups(tmp_path))
    *_, last = figure.data.to_pylist()
    # To 0.4 the trials of 5 clients take 40 s and 80 s, those of 10 take 20 s. Then the first trial arrives no more.
    assert last["target"] == pytest.approx(0.4)
    assert last["relative"] == pytest.approx(20 / 60)


def test_a_time_ratio_names_the_smallest_cohort_that_it_is_over(tmp_path: Path) -> None:
    """A method may lack the smallest cohort that others have."""
    for slow, sizes in ((1.0, (5, 10, 20)), (10.0, (10, 20))):
        for size in sizes:
            rows = [{**row, "simulated_time_s": slow * size} for row in rising(8, 8)]
            time = {"name": "straggler", "alpha": 1.0, "lambda": slow}
            write(tmp_path / f"{size}-{slow}", rows, cohort={"size": size}, systems={"time": time}, rounds=8)
    (figure,) = time_ratio.make(groups(tmp_path))
    assert [axes.get_ylabel() for axes in drawn(figure)] == ["time over that of M = 5", "time over that of M = 10"]
    rows = figure.data.to_pylist()
    found = {(row["cohort_size"], row["over_cohort_size"]): row["relative"] for row in rows}
    assert found == {(10, 5): pytest.approx(2), (20, 5): pytest.approx(4), (20, 10): pytest.approx(2)}
    assert "The smallest cohort has" not in figure.caption


def test_monotone_curves_are_each_trials_best_so_far(tmp_path: Path) -> None:
    for seed, values in ((0, (0.2, 0.6, 0.4)), (1, (0.4, 0.2, 0.8))):
        rows = [{**row, "eval/test/loss": 1 - row["eval/test/accuracy"]} for row in accuracies(*values)]
        write(tmp_path / f"{seed}", rows, seed=seed, rounds=3)
    made = {figure.name: figure for figure in learning_curves.make(groups(tmp_path), monotone=True)}
    accuracy = made["eval-test-accuracy-by-rounds"]
    # Of the best so far, not the best of the mean: (0.2, 0.6, 0.6) and (0.4, 0.4, 0.8).
    assert accuracy.data["mean"].to_pylist() == pytest.approx([0.3, 0.5, 0.7])
    assert accuracy.title == "Best test accuracy so far against rounds"
    assert made["eval-test-loss-by-rounds"].data["mean"].to_pylist() == pytest.approx([0.7, 0.5, 0.3])
    plain = next(learning_curves.make(groups(tmp_path)))
    assert np.allclose(plain.data["mean"].to_pylist(), [0.3, 0.4, 0.6])
