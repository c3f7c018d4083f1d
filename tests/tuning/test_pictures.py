"""The pictures of a study: which there are, and what stands in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pyarrow as pa
import pytest

import raysim
import tuning
from raysim.report.looks import GREY, ON_DARK, ON_LIGHT, SERIES
from raysim.run_folder.run_table import write_table
from tests.support.drawn import drawn
from tests.support.drawn import texts as texts_of
from tests.support.run_folders import experiment as small_experiment
from tuning.objective import Objective
from tuning.pictures import curves, heat_map, importance, pareto, regret
from tuning.pictures.curves import mean_curve
from tuning.pictures.values import Shades
from tuning.regret import Regret
from tuning.result import Configuration, Study
from tuning.search import trial_folder
from tuning.space import Space, parse

X, Y = "client.optimizer.lr", "server.optimizer.lr"


def study(rows: list[tuple[float, float, str, float | None]], objective: Objective, **other: Any) -> Study:
    columns = ["trial", X, Y, "outcome", "value"]
    table = pa.table(dict(zip(columns, zip(*((i, *row) for i, row in enumerate(rows)), strict=True), strict=True)))
    done = [(row[3], i) for i, row in enumerate(rows) if row[3] is not None]
    value, best = max(done) if objective.is_maximised else min(done)
    values = {X: rows[best][0], Y: rows[best][1]}
    first = Configuration(best, values, value, (value,), None, None, {})
    return Study("study", objective, first, None, table, {}, (), {}, Path())


def texts(found: Study, space: Space) -> list[str]:
    picture = heat_map.figure(found, space)
    assert picture is not None
    (axes,) = drawn(picture)
    return texts_of(axes)


def test_a_cell_for_every_pair() -> None:
    space = parse({X: {"grid": [0.1, 1.0]}, Y: {"grid": [0.01, 0.1]}})
    rows = [(0.1, 0.01, "finished", 0.5), (1.0, 0.01, "finished", 0.75), (0.1, 0.1, "diverged", None)]
    assert sorted(texts(study(rows, Objective()), space)) == ["50.0", "75.0", "diverged", "not tried"]


def test_a_target_that_was_not_reached_is_no_number() -> None:
    space = parse({X: {"grid": [0.1, 1.0]}, Y: {"grid": [0.1]}})
    aim = Objective(name="rounds_to_target", target=0.9)
    rows = [(0.1, 0.1, "finished", 34.25), (1.0, 0.1, "not reached", None)]
    assert sorted(texts(study(rows, aim), space)) == ["34.25", "not reached"]
    none = replace(study(rows, aim), trials=study(rows, aim).trials.slice(1))
    assert heat_map.figure(none, space) is None


def test_the_front_is_drawn_where_trials_cost_differently() -> None:
    found = study(
        [(0.1, 0.01, "finished", 0.5), (1.0, 0.01, "finished", 0.6), (2.0, 0.01, "finished", 0.4)], Objective()
    )
    costs = {**found.trials.to_pydict(), "bytes": [10.0, 20.0, 15.0]}
    known = replace(found, trials=pa.table(costs), front=(0, 1))
    picture = pareto.figure(known)
    assert picture is not None
    (axes,) = drawn(picture)
    assert axes.get_legend_handles_labels()[1] == ["client lr 0.1, server lr 0.01", "client lr 1, server lr 0.01"]
    assert pareto.figure(replace(known, trials=pa.table({**costs, "bytes": [10.0] * 3}))) is None


def test_the_regret_falls_with_the_clients() -> None:
    found = study([(0.1, 0.01, "finished", 0.5)], Objective())
    assert regret.figure(found) is None
    known = replace(found, regret=(Regret(1, 0.04, 0.1, 0.5), Regret(5, 0.01, 0.02, 0.8)))
    picture = regret.figure(known)
    assert picture is not None
    (axes,) = drawn(picture)
    assert axes.lines[0].get_xydata().tolist() == [[1.0, 0.04], [5.0, 0.01]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "5"]


def test_of_more_keys_a_cell_has_the_best() -> None:
    space = parse({X: {"grid": [0.1]}, Y: {"grid": [0.1]}, "client.epochs": {"grid": [1, 2]}})
    rows = [(0.1, 0.1, "finished", 2.5), (0.1, 0.1, "finished", 1.5), (0.1, 0.1, "failed", None)]
    assert texts(study(rows, Objective(name="loss")), space) == ["1.5"]


def test_a_point_for_every_trial_where_there_is_no_grid() -> None:
    space = parse({X: {"log": [0.01, 1.0]}, Y: {"uniform": [0, 1]}})
    rows = [(0.1, 0.2, "finished", 0.5), (0.3, 0.4, "finished", 0.6), (0.9, 0.9, "diverged", None)]
    picture = heat_map.figure(study(rows, Objective()), space)
    assert picture is not None
    (axes,) = drawn(picture)
    assert [len(np.asarray(drawn.get_offsets())) for drawn in axes.collections] == [2, 1, 1]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "linear")


def test_one_number_makes_no_map() -> None:
    space = parse({X: {"grid": [0.1, 1]}, "server.weighting": {"choices": ["uniform", "examples"]}})
    assert heat_map.figure(study([(0.1, 0, "finished", 0.5)], Objective()), space) is None


def test_a_map_tells_bad_values_apart_and_good_ones_too() -> None:
    shades = Shades.of([0.15, 0.55, 0.9, 0.92, 0.95], Objective())
    places = [float(shades.scale(value)) for value in (0.15, 0.55, 0.9, 0.95)]
    assert all(high - low >= 0.1 for low, high in pairwise(places))
    # Of losses over decades, too; and equal ones have a colour.
    of_losses = Shades.of([0.5, 1.0, 500.0], Objective(name="loss"))
    assert float(of_losses.scale(1.0)) - float(of_losses.scale(0.5)) >= 0.1
    assert 0 <= float(Shades.of([0.5] * 3, Objective()).scale(0.5)) <= 1


@pytest.mark.parametrize("name", ["accuracy", "loss"])
def test_light_is_good(name: Any) -> None:
    shades = Shades.of([0.2, 0.4, 0.6, 0.8], Objective(name=name))
    good, bad = (0.8, 0.2) if name == "accuracy" else (0.2, 0.8)
    assert (shades.ink(good), shades.ink(bad)) == (ON_LIGHT, ON_DARK)


def test_a_curve_is_the_mean_of_the_rounds_that_all_seeds_have(tmp_path: Path) -> None:
    for place, values in enumerate([[1.0, None, 3.0], [2.0, None, None]]):
        (tmp_path / f"seed-{place}").mkdir()
        rounds = pa.table({"round": [0, 1, 2], "eval/validation/accuracy": values})
        write_table(rounds, tmp_path / f"seed-{place}" / "rounds.parquet")
    curve = mean_curve(tmp_path, "eval/validation/accuracy")
    assert curve is not None
    assert (curve.rounds.tolist(), curve.mean.tolist()) == ([1], [1.5])
    assert mean_curve(tmp_path, "eval/validation/loss") is None
    assert mean_curve(tmp_path / "nowhere", "loss") is None


def test_a_seed_that_has_lost_its_rows_is_not_left_out(tmp_path: Path) -> None:
    raysim.run(small_experiment(engine={"workers": 0}), path=tmp_path / "seed-0", progress=False)
    (tmp_path / "seed-1").mkdir()
    assert mean_curve(tmp_path, "eval/test/accuracy") is not None
    (tmp_path / "seed-0" / "rounds.parquet").unlink()
    with pytest.raises(raysim.RunFolderError, match=r"rounds\.parquet is missing"):
        mean_curve(tmp_path, "eval/test/accuracy")


def test_only_trials_that_finished_are_named(tmp_path: Path) -> None:
    rows = [(0.1, 1.0, "diverged", None), (0.2, 1.0, "finished", 0.5), (0.3, 1.0, "pruned", None)]
    for trial in range(3):
        folder = trial_folder(tmp_path, trial) / "seed-0"
        folder.mkdir(parents=True)
        rounds = pa.table({"round": [0, 1], "eval/validation/accuracy": [0.25, 0.5]})
        write_table(rounds, folder / "rounds.parquet")
    picture = curves.figure(replace(study(rows, Objective()), path=tmp_path))
    assert picture is not None
    (axes,) = drawn(picture)
    assert axes.get_legend_handles_labels()[1] == ["client lr 0.2, server lr 1: 50.0 %"]
    assert [line.get_color() for line in axes.get_lines()] == [GREY, GREY, SERIES[0]]


def test_what_only_two_keys_together_explain_is_the_share_of_neither() -> None:
    places = [0.0, 1.0, 2.0, 3.0]
    tried = optuna.create_study(sampler=optuna.samplers.GridSampler({X: places, Y: places}))
    # Whether one of both is large: the rate of one alone says nothing.
    tried.optimize(lambda t: float((t.suggest_float(X, 0, 3) > 1) ^ (t.suggest_float(Y, 0, 3) > 1)), n_trials=16)
    rows = [(trial.params[X], trial.params[Y], "finished", trial.value) for trial in tried.trials]
    picture = importance.figure(study(rows, Objective()), tried)
    assert picture is not None
    assert 0 < sum(picture.data["share"].to_pylist()) < 0.5


@pytest.mark.pictures
def test_a_study_draws_what_it_has(
    small: raysim.FederatedDataset, tuned: Callable[..., raysim.Experiment], tmp_path: Path
) -> None:
    space = {X: {"grid": [0.01, 1.0]}, Y: {"grid": [0.5, 1.0]}}
    tuning.tune(tuned(), space, dataset=small, path=tmp_path)
    names = ["curves", "gap", "heat_map", "importance", "regret"]
    assert sorted(file.stem for file in tmp_path.glob("*.png")) == names
    assert all((tmp_path / f"{name}.png").stat().st_size > 5_000 for name in names)
    assert all((tmp_path / f"{name}.{kind}").is_file() for name in names for kind in ("svg", "pdf", "csv"))
