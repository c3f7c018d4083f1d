"""What figures show, by the data behind them; how they are drawn is looked at by people and by a browser."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from raysim.report.gallery import (
    client_distribution,
    client_gain,
    client_percentiles,
    curves,
    fairness,
    final_accuracy,
    glad_factors,
    gradient_norm,
    heat_maps,
    label_similarity,
    learning_curves,
    own_model_gain,
    rounds_to_target,
    time_to_target,
    train_test,
    worker_timeline,
)
from raysim.report.gallery.gallery import kinds
from raysim.report.groups import Group, group_runs
from raysim.report.runs import read_all
from raysim.report.series import crossing
from raysim.run_folder import run_table
from tests.support.drawn import drawn, texts, ticks
from tests.support.run_folders import accuracies, write


def of(folder: Path) -> list[Group]:
    return group_runs(read_all([folder])[0])[0]


def by_size(folder: Path, rows: Mapping[int, Sequence[dict[str, Any]]], **sections: Any) -> list[Group]:
    """Groups that differ in the cohort's size only."""
    for size, recorded in rows.items():
        write(folder / f"{size}", recorded, cohort={"size": size}, rounds=len(recorded), **sections)
    return of(folder)


def test_every_kind_is_made_where_its_columns_are_there_and_none_where_they_are_not(
    sweep: Path, tmp_path: Path
) -> None:
    shares = {"fedex/theta/0": 0.5, "fedex/theta/1": 0.5}
    write(tmp_path / "fedex" / "run", [shares], rounds=1, fedex={"configs": [{}, {"epochs": 2}]})
    for size in range(1, 8):
        for lr in (0.1, 0.2):
            rows = [{"accuracy": lr, "examples_so_far": 9, "pseudo_gradient_norm": 1.0, "mean_cosine_similarity": 0.1}]
            client = {"optimizer": {"name": "sgd", "lr": lr}}
            write(tmp_path / "many" / f"{size}-{lr}", rows, rounds=1, cohort={"size": size}, client=client)
    found = [of(sweep), fair_runs(tmp_path / "fair"), of(tmp_path / "fedex"), of(tmp_path / "many")]
    for kind in kinds():
        assert any(list(kind.make(groups)) for groups in found), kind.title
    write(tmp_path / "alone" / "run", [{"clients": 3}], rounds=1)
    assert [kind.title for kind in kinds() if list(kind.make(of(tmp_path / "alone")))] == []


def fair_runs(folder: Path) -> list[Group]:
    """Two tilts; with the larger one the worst of eleven clients are better, and the others worse."""
    for t, low, high in ((0.0, 0.2, 0.9), (1.0, 0.4, 0.8)):
        for seed in (0, 1):
            clients = {f"c{i}": low + 0.1 * seed if i < 2 else high for i in range(11)}
            rows = [{"clients": 3, "eval/test/accuracy": high}]
            server = {"fairness": {"name": "tilt", "t": t}}
            write(folder / f"{t}-{seed}", rows, clients=clients, rounds=1, seed=seed, server=server)
    return of(folder)


def test_the_mean_stands_over_the_worst_tenth_along_the_parameter_of_fairness(tmp_path: Path) -> None:
    (figure,) = fairness.make(fair_runs(tmp_path))
    assert figure.name == "fairness-test-by-server.fairness.t"
    zero, one = figure.data.to_pylist()
    assert (zero["server_fairness_t"], one["server_fairness_t"]) == ("0", "1")
    assert (zero["worst_tenth"], one["worst_tenth"]) == pytest.approx((0.25, 0.45))
    assert (zero["mean"], one["mean"]) == pytest.approx(((2 * 0.25 + 9 * 0.9) / 11, (2 * 0.45 + 9 * 0.8) / 11))
    assert zero["trials"] == one["trials"] == 2
    (axes,) = drawn(figure)
    assert (axes.get_xlabel(), axes.get_ylabel()) == (
        "mean accuracy of the worst tenth of clients",
        "mean accuracy of clients",
    )
    assert texts(axes) == ["0", "1"]


@pytest.mark.parametrize("clients", [1, 10, 11, 70, 90, 140])
def test_the_worst_tenth_is_a_tenth_rounded_up_to_whole_clients(clients: int) -> None:
    accuracies = np.linspace(0, 1, clients)
    worst = -(-clients // 10)
    assert fairness.worst_tenth(accuracies) == pytest.approx(accuracies[:worst].mean(), abs=1e-12)


def test_names_of_figures_are_unique_and_data_begin_with_the_group(sweep: Path) -> None:
    made = [figure for kind in kinds() for figure in kind.make(of(sweep))]
    assert len({figure.name for figure in made}) == len(made)
    for figure in made:
        assert figure.data.column_names[0] == "group"
        assert figure.data.num_rows
        assert figure.caption.endswith("."), figure.caption


def test_learning_curves_are_means_over_trials_against_each_axis(sweep: Path) -> None:
    made = {figure.name: figure for figure in learning_curves.make(of(sweep))}
    assert set(made) == {
        f"eval-{split}-{metric}-by-{against}"
        for split in ("test", "train")
        for metric in ("accuracy", "loss")
        for against in ("rounds", "examples", "bytes", "simulated_time", "wall_time", "epsilon")
    }
    first = made["eval-test-accuracy-by-simulated_time"].data.to_pylist()[1]
    # The second round of size 4 and rate 0.1; seeds 0 and 1 are 0.01 apart.
    assert first["simulated_time_s"] == 200.0
    assert first["mean"] == pytest.approx(1 - math.exp(-0.1 * 2 * 0.1 * 2) + 0.005)
    assert first["std"] == pytest.approx(0.01 / math.sqrt(2))
    assert first["trials"] == 2


def test_a_curve_against_time_does_not_go_back_where_a_trial_ends_before_the_others(tmp_path: Path) -> None:
    for seed, (count, seconds) in enumerate(((2, 100.0), (4, 10.0))):
        rows = [{"accuracy": 0.1 * t, "simulated_time_s": seconds} for t in range(count)]
        write(tmp_path / f"{seed}", rows, rounds=4, seed=seed)
    made = {figure.name: figure for figure in learning_curves.make(of(tmp_path))}
    points = made["accuracy-by-simulated_time"].data.to_pylist()
    assert [point["simulated_time_s"] for point in points] == pytest.approx([55.0, 110.0, 120.0, 130.0])
    assert [point["trials"] for point in points] == [2, 2, 1, 1]


def test_scores_of_other_models_are_drawn_and_called_what_they_are(tmp_path: Path) -> None:
    names = ("eval/test", "eval_average/test", "eval_tuned/test", "eval_tuned/test/before", "eval_personal/test")
    parts = (f"eval_personal/test/{part}" for part in ("global", "seen", "new"))
    write(tmp_path / "run", [{f"{name}/accuracy": 0.5 for name in (*names, *parts)}], rounds=1)
    titles = [each.title for each in learning_curves.make(of(tmp_path)) if each.name.endswith("accuracy-by-rounds")]
    assert titles == [
        "Test accuracy against rounds",
        "Test accuracy of the clients' mean model against rounds",
        "Test accuracy after fine-tuning against rounds",
        "Test accuracy before fine-tuning against rounds",
        "Test accuracy of clients' own models against rounds",
        "Test accuracy of the model of all, on clients with own models against rounds",
        "Test accuracy of own models of clients that took part against rounds",
        "Test accuracy of own models of clients that did not take part against rounds",
    ]


def test_without_an_evaluation_training_is_shown(tmp_path: Path) -> None:
    write(tmp_path / "run", [{"loss": 1.0, "accuracy": 0.5}] * 2)
    assert [figure.name for figure in learning_curves.make(of(tmp_path))] == ["accuracy-by-rounds", "loss-by-rounds"]


def test_long_lines_are_thinned_and_many_lines_more_so() -> None:
    assert len(curves.drawn_points(1_500)) == curves.MAX_POINTS
    assert len(curves.drawn_points(1_500, num_lines=50)) == curves.MAX_POINTS_IN_ALL // 50
    assert len(curves.drawn_points(1_500, num_lines=1_000)) == curves.MIN_POINTS
    assert curves.drawn_points(3).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        # 0.5 is half way between 0.4 and 0.6.
        ([0.2, 0.4, 0.6], 25.0),
        # A fall in between does not count: the running maximum stays at 0.4.
        ([0.4, 0.1, 0.6], 25.0),
        ([0.6, 0.1, 0.1], 10.0),
        ([0.1, 0.2, 0.3], None),
        # Of a line from infinity, or to it, nothing is known but its end.
        ([-math.inf, 0.6, 0.7], 20.0),
        ([-math.inf, 0.4, math.inf], 30.0),
        ([-math.inf, math.inf, 0.1], 20.0),
    ],
)
def test_the_target_is_crossed_where_the_running_maximum_is(values: list[float], expected: float | None) -> None:
    found = crossing(np.array([10.0, 20.0, 30.0]), np.array(values), 0.5)
    assert found == (None if expected is None else pytest.approx(expected))


def test_speed_up_is_over_the_smallest_cohort_and_who_misses_is_named(tmp_path: Path) -> None:
    rows = {4: accuracies(0.1, 0.2, 0.3, 0.5), 8: accuracies(0.1, 0.5, 0.5, 0.5), 9: accuracies(0.1, 0.1, 0.1, 0.2)}
    rounds, speed_up = rounds_to_target.make(by_size(tmp_path, rows), [0.5])
    assert [row["rounds"] for row in rounds.data.to_pylist()] == [4.0, 2.0, None]
    assert [row["speed_up"] for row in speed_up.data.to_pylist()] == [1.0, 2.0, None]
    assert "made: 2 times the clients (4 to 8) are a speed-up of 2." in speed_up.caption
    assert "Not reached by: made with 9 (not in 4 rounds)." in speed_up.caption


def test_time_to_target_is_relative_to_the_smallest_cohort(tmp_path: Path) -> None:
    rows = {4: accuracies(0.1, 0.2, 0.3, 0.5), 8: accuracies(0.1, 0.5, 0.5, 0.5), 9: accuracies(0.1, 0.1, 0.1, 0.2)}
    # Four rounds of 10 s, and two of 30 s.
    for size, takes_s in ((4, 10.0), (8, 30.0), (9, 5.0)):
        rows[size] = [{**row, "simulated_time_s": takes_s} for row in rows[size]]
    (figure,) = time_to_target.make(by_size(tmp_path, rows), [0.5])
    assert [row["seconds"] for row in figure.data.to_pylist()] == [40.0, 60.0, None]
    assert [row["relative"] for row in figure.data.to_pylist()] == [1.0, 1.5, None]
    assert "Not reached by: made with 9 (not in 4 rounds)." in figure.caption
    rows[4] = rows[9]
    (figure,) = time_to_target.make(by_size(tmp_path / "late", rows), [0.5])
    assert [row["relative"] for row in figure.data.to_pylist()] == [None, 1.0, None]
    assert figure.title.endswith("relative to the smallest cohort that reaches it")
    assert [axes.get_ylabel() for axes in drawn(figure)] == ["time over that of the smallest to arrive"]
    assert not list(time_to_target.make(by_size(tmp_path / "none", {4: accuracies(0.5), 8: accuracies(0.5)}), [0.5]))


@pytest.mark.parametrize("kind", [rounds_to_target, time_to_target])
def test_a_size_of_which_some_trials_reached_the_target_is_named(tmp_path: Path, kind: Any) -> None:
    values = {4: ((0.1, 0.5), (0.5, 0.5)), 8: ((0.1, 0.1), (0.1, 0.5))}
    for size, trials in values.items():
        for seed, scores in enumerate(trials):
            rows = [{**row, "simulated_time_s": 10.0} for row in accuracies(*scores)]
            write(tmp_path / f"{size}-{seed}", rows, seed=seed, cohort={"size": size}, rounds=2)
    made = list(kind.make(of(tmp_path), [0.5]))
    assert made
    for figure in made:
        assert [row["reached"] for row in figure.data.to_pylist()] == [2, 1]
        assert "Reached by some trials only, whose mean is shown: made with 8 (1 of 2)." in figure.caption
        assert "made with 4" not in figure.caption


def test_bytes_are_those_in_both_directions_so_far(sweep: Path) -> None:
    figure = next(f for f in learning_curves.make(of(sweep)) if f.name == "eval-test-accuracy-by-bytes")
    # 4 clients, 3 kB down and 1 kB up each, in two rounds.
    assert figure.data["bytes"].to_pylist()[1] == 2 * 4 * 4000


def test_without_a_target_it_is_a_share_of_the_best(tmp_path: Path) -> None:
    rows = {4: accuracies(0.1, 0.4), 8: accuracies(0.1, 0.8)}
    rounds, _ = rounds_to_target.make(by_size(tmp_path, rows), ())
    assert "The target is 76.0 %" in rounds.caption


def test_the_norms_prediction_falls_with_the_root_of_the_cohort(sweep: Path) -> None:
    (figure,) = gradient_norm.make(of(sweep))
    for row in figure.data.to_pylist():
        # Recorded as 2 / sqrt(M), which is what is predicted.
        assert row["mean_norm"] == row["prediction"] == pytest.approx(2 / math.sqrt(row["cohort_size"]))


def test_final_accuracy_against_cohort_size_is_a_line_per_method(sweep: Path) -> None:
    figure, shares = final_accuracy.by_cohort_size(of(sweep))
    points = [(row["of"], row["group"], row["cohort_size"], row["trials"]) for row in figure.data.to_pylist()]
    assert points == [
        (f"eval/{split}/accuracy", f"client.optimizer.lr = {rate}", size, 2)
        for split in ("train", "test")
        for rate in (0.1, 0.2)
        for size in (4.0, 16.0)
    ]
    # Of 64 training clients.
    assert [axes.get_xticks().tolist() for axes in drawn(shares)] == [[4 / 64, 16 / 64]] * 2
    assert ticks(drawn(shares)[0]) == ["6.2 %", "25.0 %"]
    assert [axes.get_title() for axes in drawn(figure)] == ["train accuracy", "test accuracy"]


def test_only_a_cohort_is_a_share_of_the_clients(sweep: Path) -> None:
    along_sizes, along_rates = final_accuracy.by_cohort_size(of(sweep)), final_accuracy.by_other_keys(of(sweep))
    for figure in along_sizes:
        assert set(figure.data["share_of_clients"].to_pylist()) == {4 / 64, 16 / 64}
    (figure,) = along_rates
    assert set(figure.data["client_optimizer_lr"].to_pylist()) == {0.1, 0.2}
    assert "share_of_clients" not in figure.data.column_names


def test_train_and_test_accuracy_are_of_the_same_round(tmp_path: Path) -> None:
    rows = [{"eval/test/accuracy": 0.5, "eval/train/accuracy": 0.7}, {"eval/test/accuracy": 0.9}]
    write(tmp_path / "run", rows)
    curve, pair, gap = train_test.make(of(tmp_path))
    assert curve.data.select(["of", "round", "mean"]).to_pylist() == [
        {"of": "eval/train/accuracy", "round": 1, "mean": 0.7},
        {"of": "eval/test/accuracy", "round": 1, "mean": 0.5},
        {"of": "eval/test/accuracy", "round": 2, "mean": 0.9},
    ]
    assert pair.data.select(["train", "test"]).to_pylist() == [{"train": 0.7, "test": 0.5}]
    assert gap.data["mean"].to_pylist() == [pytest.approx(0.2)]


def test_a_client_gains_beside_its_own_accuracy_in_the_trial_of_the_same_seed(tmp_path: Path) -> None:
    for rate, scores in {0.1: (0.5, 0.5, 0.9), 0.2: (0.75, 0.5, 0.4)}.items():
        clients = dict(zip("abc", scores, strict=True))
        write(tmp_path / f"{rate}", accuracies(0.5, 0.6), clients, client={"optimizer": {"name": "sgd", "lr": rate}})
    (figure,) = client_gain.make(of(tmp_path))
    assert figure.data["gain"].to_pylist() == pytest.approx([-0.5, 0.0, 0.25])
    assert "33.3 % gain, 33.3 % lose" in figure.caption


def test_a_client_gains_by_a_model_of_its_own(tmp_path: Path) -> None:
    own = {
        name: {
            "accuracy": accuracy,
            "global_accuracy": of_all,
            "training_examples": size,
            "label_similarity": alike,
            "seen": size > 1,
        }
        for name, accuracy, of_all, size, alike in (
            ("a", 0.5, 0.75, 9, 0.2),
            ("b", 1.0, 0.25, 4, 0.8),
            ("c", 0, 0, 1, None),
        )
    }
    write(tmp_path / "one", [{"clients": 3}], clients=dict.fromkeys(own, 0.5), own_models=own, rounds=1)
    (figure,) = own_model_gain.make(of(tmp_path))
    # A file's name has no folder in it.
    assert figure.name == "own-model-gain-personal-test"
    assert "33.3 % gain" in figure.caption
    assert "Hollow" in figure.caption
    assert figure.data["gain"].to_pylist() == [-0.25, 0.75, 0.0]
    assert figure.data["training_examples"].to_pylist() == [9, 4, 1]
    assert [panel.title for panel in figure.panels] == [
        "client by client",
        "by training examples",
        "by label similarity",
    ]
    write(tmp_path / "two", [{"clients": 3}], clients=dict.fromkeys(own, 0.5), rounds=1)
    assert not list(own_model_gain.make(of(tmp_path / "two")))


def test_a_heat_map_has_a_cell_for_each_pair_of_values(sweep: Path, tmp_path: Path) -> None:
    (figure,) = heat_maps.make(of(sweep))
    cells = {(row["client.optimizer.lr"], row["cohort.size"]) for row in figure.data.to_pylist()}
    assert cells == {(rate, size) for rate in ("0.1", "0.2") for size in ("4", "16")}
    # Two methods that differ in two keys at once are two cells of four: no map.
    write(tmp_path / "a", accuracies(0.5, 0.6))
    write(tmp_path / "b", accuracies(0.5, 0.6), cohort={"size": 9}, client={"optimizer": {"name": "sgd", "lr": 0.5}})
    assert not list(heat_maps.make(of(tmp_path)))


def test_a_heat_map_takes_the_better_of_what_other_keys_make(tmp_path: Path) -> None:
    for size, rate, epochs in [(4, 0.1, 1), (4, 0.2, 1), (8, 0.1, 1), (8, 0.2, 1), (8, 0.2, 2)]:
        client = {"optimizer": {"name": "sgd", "lr": rate}, "epochs": epochs}
        loss = size * rate / epochs
        write(tmp_path / f"{size}-{rate}-{epochs}", [{"loss": loss}], rounds=1, cohort={"size": size}, client=client)
    figure = next(
        figure for figure in heat_maps.make(of(tmp_path)) if figure.data.num_rows == 4 and "size" in figure.name
    )
    cells = {tuple(row.values())[1:3]: row["mean"] for row in figure.data.to_pylist()}
    assert sorted(cells.values()) == pytest.approx([0.4, 0.8, 0.8, 0.8])


def test_factors_of_one_value_share_a_line(tmp_path: Path) -> None:
    rows = [{"glad_factor/a": 1.0, "glad_factor/b": 1.0, "glad_factor/c": f} for f in (1.0, 1.1)]
    write(tmp_path / "run", rows, server={"glad": {}})
    (figure,) = glad_factors.make(of(tmp_path))
    assert set(figure.data["parameters"].to_pylist()) == {"a", "c"}


def test_correlation_is_pearsons(tmp_path: Path) -> None:
    rows = [{"label_similarity": x, "gsi": y} for x, y in ((0.1, 3.0), (0.2, 2.0), (0.3, 1.0), (0.4, None))]
    write(tmp_path / "run", rows, rounds=4)
    (figure,) = label_similarity.make(of(tmp_path))
    assert "-1.00" in figure.caption
    assert figure.data.num_rows == 3


def test_an_index_that_varies_by_rounding_alone_has_no_correlation(tmp_path: Path) -> None:
    rows = [{"label_similarity": x, "gsi": y} for x, y in ((0.1, 1.0), (0.2, 1.0 + 2**-52), (0.3, 1.0))]
    write(tmp_path / "run", rows, rounds=3)
    (figure,) = label_similarity.make(of(tmp_path))
    assert "undefined" in figure.caption


def test_the_timeline_shows_the_last_rounds_and_survives_a_cut_off_file(sweep: Path, tmp_path: Path) -> None:
    (figure,) = worker_timeline.make(of(sweep))
    assert set(figure.data["who"].to_pylist()) == {"driver", "worker 0"}
    assert figure.data["start_s"].to_pylist()[0] == 0.0
    path = write(tmp_path / "run", accuracies(0.5, 0.6))
    whole = next(sweep.rglob("timeline.json")).read_text()
    (path / "timeline.json").write_text(whole[: len(whole) - 20])
    assert [len(figures) for figures in [list(worker_timeline.make(of(tmp_path)))]] == [1]


def test_curves_carry_their_labels_bands_and_percent(sweep: Path) -> None:
    figure = next(learning_curves.make(of(sweep)))
    (axes,) = drawn(figure)
    assert [line.get_label() for line in axes.get_lines()] == [group.label for group in of(sweep)]
    assert len(axes.collections) == 4, "a band each"
    assert axes.yaxis.get_major_formatter()(0.5, 0) == "50 %"


def test_losses_over_many_decades_are_on_a_logarithmic_axis(tmp_path: Path) -> None:
    write(tmp_path / "run", [{"eval/test/loss": 1.0}, {"eval/test/loss": 1e6}])
    assert drawn(next(learning_curves.make(of(tmp_path))))[0].get_yscale() == "log"


def test_the_accuracies_of_clients_that_fine_tuned_are_those_after_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", accuracies(0.5, 0.5), {"a": 0.2, "b": 0.4}, clients_of="fine_tuning/test")
    (file,) = (folder / "clients").iterdir()
    rows = run_table.read_table(folder, file)
    run_table.write_table(rows.append_column("tuned_accuracy", pa.array([0.9, 0.7])), file)
    (figure,) = client_distribution.make(of(tmp_path))
    assert figure.name == "clients-fine_tuning-test-distribution"
    assert figure.data["accuracy"].to_pylist() == [0.7, 0.9]


def test_percentiles_over_clients_have_their_deviation_over_trials(tmp_path: Path) -> None:
    for seed, shift in ((0, 0.0), (1, 0.2)):
        figures = {f"eval/test/p{p}": p / 200 + shift for p in (5, 25, 50, 75, 95)}
        write(tmp_path / f"{seed}", [{"eval/test/accuracy": 0.5, **figures}], rounds=1, seed=seed)
    (figure,) = client_percentiles.make(of(tmp_path))
    (row,) = figure.data.to_pylist()
    assert row["p50"] == pytest.approx(0.35)
    assert row["p50_std"] == pytest.approx(statistics.stdev([0.25, 0.45]))
    assert row["trials"] == 2
    write(tmp_path / "2", [{"accuracy": 0.5}], rounds=1, seed=2)
    (figure,) = client_percentiles.make(of(tmp_path))
    assert figure.data["trials"].to_pylist() == [2], "the third trial ended before its first evaluation"
