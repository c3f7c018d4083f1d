"""Sweeps: which points they have, that a point is the experiment with its values, and what is put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import raysim
from raysim.api import series
from raysim.experiment import sweep
from raysim.experiment.pictures import ReportSection
from raysim.report import sweep_picture
from raysim.run_folder import cost_columns, experiment_record
from raysim.run_folder.series_record import stored_sweep
from raysim.run_folder.tables import with_tags

Make = Callable[..., raysim.Experiment]


@pytest.mark.parametrize(
    ("text", "key", "values"),
    [
        ("cohort.size=10,50", "cohort.size", [10, 50]),
        ('client.batch_size=10,"full"', "client.batch_size", [10, "full"]),
        ("server.optimizer.name=sgd, adam", "server.optimizer.name", ["sgd", "adam"]),
        ("model.hidden=[64],[64, 32]", "model.hidden", [[64], [64, 32]]),
        ('server.optimizer={name="sgd", lr=1.0},{name="adam", lr=0.1}', "server.optimizer", None),
    ],
)
def test_values_are_toml_or_bare_words(text: str, key: str, values: list[Any] | None) -> None:
    tables = [{"name": "sgd", "lr": 1.0}, {"name": "adam", "lr": 0.1}]
    assert sweep.parse([text]) == {key: tables if values is None else values}


@pytest.mark.parametrize("text", ["rounds=2\nseed=9,3", "rounds=2]\nseed=[9"])
def test_a_text_of_several_lines_loses_none(text: str) -> None:
    [values] = sweep.parse([text]).values()
    assert "seed" in str(values)


@pytest.mark.parametrize("text", ["cohort.size", "=3", "cohort.size="])
def test_a_sweep_has_a_key_and_values(text: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"has the form key\.key=value,value"):
        sweep.parse([text])
    with pytest.raises(raysim.ExperimentError, match="'a' comes twice"):
        sweep.parse(["a=1", "a=2"])


def test_a_message_on_a_key_of_odd_letters_can_be_printed() -> None:
    with pytest.raises(raysim.ExperimentError, match="comes twice") as refused:
        sweep.parse(["a\ud800=1", "a\ud800=2"])
    str(refused.value).encode()


def test_points_are_all_combinations_the_last_key_fastest(experiment: Make) -> None:
    found = sweep.points(experiment(), {"cohort.size": [2, 5], "client.batch_size": [4, "full"]})
    assert [(p.experiment.cohort.size, p.experiment.client.batch_size) for p in found] == [
        (2, 4),
        (2, "full"),
        (5, 4),
        (5, "full"),
    ]
    assert found[1].folder == "cohort.size=2,client.batch_size=full"
    assert {p.experiment.seed for p in found} == {experiment().seed}


def test_a_name_is_set_before_the_keys_that_it_would_drop(experiment: Make) -> None:
    found = sweep.points(experiment(), {"server.optimizer.lr": [0.1, 0.2], "server.optimizer.name": ["adam", "yogi"]})
    assert [(p.experiment.server.optimizer.name, p.experiment.server.optimizer.lr) for p in found] == [
        ("adam", 0.1),
        ("yogi", 0.1),
        ("adam", 0.2),
        ("yogi", 0.2),
    ]


def test_defaults_follow_what_is_swept(experiment: Make) -> None:
    corrections = [{"name": "prox", "mu": 0.1}, {"name": "scaffold"}]
    found = sweep.points(experiment(), {"client.correction": corrections})
    # SCAFFOLD is defined with uniform weights, FedProx is not.
    assert [p.experiment.server.weighting for p in found] == ["examples", "uniform"]
    assert [p.folder for p in found] == ["client.correction=prox", "client.correction=scaffold"]


def test_numpys_numbers_are_values(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    found = raysim.run_sweep(
        experiment(rounds=1), {"cohort.size": np.arange(2, 4)}, dataset=dataset, path=tmp_path / "all"
    )
    assert [point.path.name for point in found.points] == ["cohort.size=2", "cohort.size=3"]


def test_values_that_are_no_words_go_by_their_place() -> None:
    assert sweep.labels([[64], [32]]) == ["value-0", "value-1"]
    assert sweep.labels([0.1, 1e-05, "full", True]) == ["0.1", "1e-05", "full", "true"]
    assert sweep.labels([{"name": "sgd", "lr": 1}, {"name": "sgd", "lr": 2}]) == ["value-0", "value-1"]
    # One folder where a file system does not tell large letters from small ones.
    assert sweep.labels(["Mine", "mine"]) == ["value-0", "value-1"]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({}, "needs a key"),
        ({"cohort.size": []}, r"cohort.size has \[\]"),
        ({"cohort.size": [3, 3]}, r"each once, but cohort.size has \[3, 3\]"),
        ({"name": ["a", "b"]}, "name cannot be swept"),
        ({"cohort.size": [3, 0]}, r"cohort.size=0: .*cohort\.size"),
        ({"cohort.sise": [3]}, "cohort.sise"),
        ({"cohort.size": 5}, r"a list of values for each key, such as .*, but 'cohort.size' has 5\."),
        ({"cohort.size": "5"}, "but 'cohort.size' has '5'"),
        ({"cohort.size": {"grid": [5]}}, "but 'cohort.size' has {'grid'"),
        (["cohort.size"], r"a list of values for each key, .*, but got \['cohort.size'\]"),
        (
            {"client.optimizer.lr": [0.1, math.nan]},
            r"^client\.optimizer\.lr\[1\] must be .* nan; a text is \"nan\"$",
        ),
        (
            {"client.optimizer.lr": np.array([-np.inf])},
            r"^client\.optimizer\.lr\[0\] must be .* -inf; a text is \"-inf\"$",
        ),
        (
            {"client.optimizer": [{"name": "sgd", "lr": math.inf}]},
            r"^client\.optimizer\[0\]\.lr must be a finite number",
        ),
        (
            sweep.parse(["client.optimizer.lr=nan,nan"]),
            r"^client\.optimizer\.lr\[0\] must .*; .*lr\[1\] must",
        ),
        (sweep.parse(["cohort.size=3,-inf"]), r"^cohort\.size\[1\] must be a finite number, but got -inf; "),
        (
            sweep.parse(["client.optimizer.lr=1e999"]),
            r"^client\.optimizer\.lr\[0\] must be .* inf; a text is \"inf\"$",
        ),
    ],
)
def test_a_sweep_that_means_nothing(experiment: Make, values: Any, said: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=said):
        sweep.points(experiment(), sweep.plain(values))


def test_a_point_is_the_experiment_with_its_values(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = raysim.run_sweep(experiment(), {"cohort.size": [3, 7]}, dataset=dataset, path=tmp_path / "all")
    alone = raysim.run(experiment(cohort={"size": 3}), dataset=dataset, path=tmp_path / "alone")
    assert found.points[0].rounds["loss"] == alone.rounds["loss"]
    assert [point.path.name for point in found.points] == ["cohort.size=3", "cohort.size=7"]
    again = raysim.resume(found.points[0].path, dataset=dataset)
    assert all(torch.equal(alone.params[name], value) for name, value in again.params.items())
    assert found.rounds["cohort.size"].to_pylist() == [3] * 4 + [7] * 4
    assert set(found.clients["cohort.size"].to_pylist()) == {3, 7}
    assert (tmp_path / "all" / "sweep.parquet").exists()
    assert (tmp_path / "all" / "sweep.png").exists()


@pytest.mark.parametrize("momentum", [0.0, 0.5], ids=["may be trained together", "may not"])
def test_points_have_the_bits_that_they_have_alone(
    momentum: float, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp = experiment(client={"optimizer": {"lr": 0.3, "momentum": momentum}, "batch_size": 4})
    values = {"client.optimizer.lr": [0.05, 0.1, 0.3], "server.optimizer.lr": [0.5, 1.0]}
    found = raysim.run_sweep(exp, values, dataset=dataset, path=tmp_path / "all")
    assert len(found.points) == 6
    for point in found.points:
        alone = raysim.run(exp.changed(dict(point.values)), dataset=dataset, path=tmp_path / point.path.name)
        names = [name for name in alone.rounds.column_names if not cost_columns.tells_cost(name)]
        assert point.rounds.select(names).equals(alone.rounds.select(names))
        assert point.clients.equals(alone.clients)


@pytest.mark.pictures
def test_more_points_than_go_at_a_time(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "AT_A_TIME", 2)
    begun: list[str] = []
    values = {"cohort.size": [2, 3, 4, 5, 6]}
    found = raysim.run_sweep(
        experiment(rounds=2),
        values,
        dataset=dataset,
        path=tmp_path / "all",
        started=lambda member: begun.append(
            f"{member.path.name} after {len(list((tmp_path / 'all').glob('*/curve.png')))}"
        ),
    )
    assert [name.split()[0] for name in begun] == [f"cohort.size={size}" for size in values["cohort.size"]]
    assert found.rounds["cohort.size"].to_pylist() == [size for size in values["cohort.size"] for _ in range(2)]


def test_a_sweep_over_workers_goes_through_them(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = raysim.run_sweep(
        experiment(rounds=1), {"engine.threads": [1, 2]}, dataset=dataset, path=tmp_path / "all", executor="local"
    )
    assert [experiment_record.stored_experiment(point.path).engine.threads for point in found.points] == [1, 2]


def test_cohorts_of_different_sizes_are_nested(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    small, large = (p.experiment for p in sweep.points(experiment(), {"cohort.size": [3, 7]}))
    for few, many in zip(raysim.rounds(small, dataset=dataset), raysim.rounds(large, dataset=dataset), strict=True):
        assert few.cohort == many.cohort[:3]


def test_finished_points_are_read_and_values_added(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    where = tmp_path / "bits"
    raysim.run_sweep(experiment(rounds=2), {"cohort.size": [3]}, dataset=dataset, path=where)
    file = where / "cohort.size=3" / "rounds.parquet"
    written_ns = file.stat().st_mtime_ns
    more: dict[str, list[int]] = {"cohort.size": [3, 7]}
    raysim.run_sweep(experiment(rounds=2), more, dataset=dataset, path=where, resume=True)
    assert file.stat().st_mtime_ns == written_ns
    found = raysim.run_sweep(experiment(), more, dataset=dataset, path=where, resume=True)
    whole = raysim.run_sweep(experiment(), more, dataset=dataset, path=tmp_path / "whole")
    assert [p.rounds["loss"] for p in found.points] == [p.rounds["loss"] for p in whole.points]
    assert stored_sweep(where) == (experiment(), more)


def test_an_interrupt_says_how_the_sweep_goes_on(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    def interrupt(row: Any) -> None:
        raise KeyboardInterrupt

    where = tmp_path / "all"
    with pytest.raises(KeyboardInterrupt) as cut:
        raysim.run_sweep(experiment(), {"cohort.size": [2, 3]}, dataset=dataset, path=where, loggers=[interrupt])
    again = f"raysim.run_sweep(experiment, values, path={str(where)!r}, resume=True, dataset=...)"
    assert cut.value.__notes__ == [f"stopped among several runs; go on with: {again}"]


def test_a_damaged_record_of_a_sweep_is_refused(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    where, values = tmp_path / "all", {"cohort.size": [3]}
    raysim.run_sweep(experiment(rounds=1), values, dataset=dataset, path=where)
    file = where / "sweep.json"
    file.write_text(file.read_text().replace(" 3\n", " 2\n"))
    with pytest.raises(raysim.RunFolderError, match=r"sweep\.json is damaged: its content has the checksum"):
        stored_sweep(where)


@pytest.mark.parametrize("trials", [1, 2])
def test_a_point_or_a_trial_that_is_a_link_is_not_written_to(
    trials: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    e, values = experiment(trials=trials), {"client.optimizer.lr": [0.1, 0.2]}
    raysim.run_sweep(e, values, dataset=dataset, path=tmp_path / "sweep")
    place = tmp_path / "sweep" / "client.optimizer.lr=0.2"
    place = place / "trial-1" if trials > 1 else place
    outside = place.rename(tmp_path / "outside")
    place.symlink_to(outside)
    before = {file: file.stat().st_mtime_ns for file in outside.rglob("*")}
    with pytest.raises(raysim.RunFolderError, match=rf"{place} is a symbolic link to {outside}, outside of"):
        raysim.run_sweep(e.changed({"rounds": 9}), values, dataset=dataset, path=tmp_path / "sweep", resume=True)
    assert {file: file.stat().st_mtime_ns for file in outside.rglob("*")} == before


@pytest.mark.parametrize(
    ("key", "before", "now", "said"),
    [
        (
            "server.optimizer",
            [{"name": "sgd", "lr": 1.0}],
            [{"name": "sgd", "lr": 1.0}, {"name": "sgd", "lr": 0.5}],
            r"server\.optimizer=sgd would be server\.optimizer=value-0",
        ),
        ("client.optimizer.lr", [1], [1.0, 0.5], r"client\.optimizer\.lr=1 would be client\.optimizer\.lr=1\.0"),
    ],
)
def test_points_keep_their_folders_when_values_are_added(
    key: str,
    before: list[Any],
    now: list[Any],
    said: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
) -> None:
    where = tmp_path / "all"
    raysim.run_sweep(experiment(rounds=1), {key: before}, dataset=dataset, path=where)
    had = sorted(each.name for each in where.iterdir())
    with pytest.raises(raysim.RunFolderError, match=said):
        raysim.run_sweep(experiment(rounds=1), {key: now}, dataset=dataset, path=where, resume=True)
    assert sorted(each.name for each in where.iterdir()) == had


def test_a_sweep_goes_on_as_what_it_was(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    where, values = tmp_path / "all", {"cohort.size": [3, 7]}
    raysim.run_sweep(experiment(rounds=1), values, dataset=dataset, path=where)
    for other, asked, said in (
        (experiment(rounds=1, seed=3), values, "seed was 0, and is 3"),
        (experiment(rounds=1), {"cohort.size": [3]}, "cohort.size had the value 7, and has not"),
        (experiment(rounds=1), {"client.epochs": [3]}, r"swept keys were cohort\.size, and are client\.epochs"),
    ):
        with pytest.raises(raysim.RunFolderError, match=said):
            raysim.run_sweep(other, asked, dataset=dataset, path=where, resume=True)
    with pytest.raises(raysim.RunFolderError, match="exists already"):
        raysim.run_sweep(experiment(rounds=1), values, dataset=dataset, path=where)
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "one")
    with pytest.raises(raysim.RunFolderError, match="holds no sweep"):
        raysim.run_sweep(experiment(rounds=1), values, dataset=dataset, path=tmp_path / "one", resume=True)


def test_one_run_is_no_sweep(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    where = tmp_path / "all"
    raysim.run_sweep(experiment(rounds=1), {"cohort.size": [3, 7]}, dataset=dataset, path=where)
    for call in (
        lambda: raysim.resume(where, dataset=dataset),
        lambda: raysim.replay(where, 0, dataset=dataset),
        lambda: raysim.run(experiment(rounds=1), dataset=dataset, path=where, resume=True),
    ):
        with pytest.raises(raysim.RunFolderError, match="holds a sweep, and this is for one run"):
            call()


def test_every_point_is_checked_before_the_first_one_runs(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    with pytest.raises(raysim.ExperimentError, match="number of training clients"):
        raysim.run_sweep(experiment(), {"cohort.size": [3, 21]}, dataset=dataset, path=tmp_path / "all")
    assert not (tmp_path / "all").exists()


def test_every_point_has_its_trials(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    values = {"client.optimizer.lr": [0.1, 0.3]}
    found = raysim.run_sweep(experiment(trials=2, rounds=2), values, dataset=dataset, path=tmp_path / "all")
    alone = raysim.run_trials(experiment(trials=2, rounds=2), dataset=dataset, path=tmp_path / "alone")
    assert found.points[1].rounds["loss"] == alone.rounds["loss"]
    assert list(zip(*(found.rounds[key].to_pylist() for key in ("client.optimizer.lr", "trial")), strict=True)) == [
        (lr, trial) for lr in (0.1, 0.3) for trial in (0, 1) for _ in range(2)
    ]
    assert (found.points[0].path / "summary.parquet").exists()
    more = experiment(trials=3, rounds=2)
    again = raysim.run_sweep(more, values, dataset=dataset, path=tmp_path / "all", resume=True)
    assert set(again.points[0].rounds["trial"].to_pylist()) == {0, 1, 2}


def test_values_of_different_kinds_are_written_as_json() -> None:
    rows = pa.table({"round": [0]})
    mixed = with_tags([({"b": 10}, rows), ({"b": "full"}, rows), ({"b": [1]}, rows)])
    assert mixed["b"].to_pylist() == ["10", '"full"', "[1]"]
    assert with_tags([({"b": 1}, rows), ({"b": 0.5}, rows)])["b"].to_pylist() == [1.0, 0.5]


def rounds(*accuracies: float) -> pa.Table:
    count = len(accuracies)
    return pa.table({"round": range(count), "accuracy": [0.1] * count, "eval/test/accuracy": list(accuracies)})


def test_the_picture_has_a_curve_for_each_point_and_their_ends() -> None:
    picture = sweep_picture.figure(
        [({"m": 10}, rounds(0.2, 0.4)), ({"m": 100}, rounds(0.3, 0.6))], "title", ReportSection()
    )
    assert picture is not None
    left, right = picture.axes
    assert [np.asarray(line.get_ydata()).tolist() for line in left.get_lines()] == [[0.2, 0.4], [0.3, 0.6]]
    ends = right.get_lines()[0]
    assert (np.asarray(ends.get_xdata()).tolist(), np.asarray(ends.get_ydata()).tolist()) == ([10.0, 100.0], [0.4, 0.6])
    assert right.get_xscale() == "log"
    assert [axes.yaxis.get_major_formatter()(0.234) for axes in (left, right)] == ["23.4 %"] * 2


def test_the_end_of_a_point_is_the_mean_of_the_last_values_of_all_of_its_trials() -> None:
    trials = [(rounds(0.2, 0.9), 0), (rounds(0.3, 0.4, 0.5), 1)]
    both = pa.concat_tables(table.append_column("trial", pa.array([i] * len(table))) for table, i in trials)
    picture = sweep_picture.figure([({"m": 1}, both)], "title", ReportSection())
    assert picture is not None
    ends = picture.axes[1].get_lines()[0]
    assert np.asarray(ends.get_ydata()).tolist() == pytest.approx([0.7])


def test_the_picture_of_words_and_of_nothing() -> None:
    points = [({"o": name, "m": m}, rounds(0.2, 0.4)) for name in ("sgd", "adam") for m in (1, 2)]
    picture = sweep_picture.figure(points, "title", ReportSection())
    assert picture is not None
    assert [tick.get_text() for tick in picture.axes[1].get_xticklabels()] == ["sgd", "adam"]
    assert sweep_picture.figure([({"m": 1}, pa.table({"round": [0]}))], "title", ReportSection()) is None


def test_runs_share_workers_only_where_all_of_the_placement_is_the_same(experiment: Make, tmp_path: Path) -> None:
    one = experiment(engine={"workers": 2})
    for key, value in {"workers": 1, "cpus_per_worker": 2.0, "gpus_per_worker": 0, "wait_s": 7.0}.items():
        other = one.model_copy(update={"engine": one.engine.model_copy(update={key: value})})
        assert key in one.engine.PLACEMENT
        assert not series._same_workers([series.Member(tmp_path, one), series.Member(tmp_path, other)])
    faster = one.model_copy(update={"engine": one.engine.model_copy(update={"threads": 3})})
    assert series._same_workers([series.Member(tmp_path, one), series.Member(tmp_path, faster)])


@pytest.mark.parametrize(
    ("started", "message"),
    [
        (lambda: None, r"its parameters are \(\): too many positional arguments"),
        (lambda path, experiment: None, r"its parameters are \(path, experiment\): missing a required argument"),
        ("begun", "but got 'begun'"),
    ],
)
def test_what_cannot_be_called_with_a_run_is_refused_before_the_first_one(
    started: Any, message: str, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    path = tmp_path / "all"
    with pytest.raises(raysim.ExperimentError, match=f"started= must be a function of one argument.*{message}"):
        raysim.run_sweep(experiment(), {"seed": [1, 2]}, dataset=dataset, path=path, started=started)
    with pytest.raises(raysim.ExperimentError, match=f"started= must be a function of one argument.*{message}"):
        raysim.run_trials(experiment(trials={"count": 2}), dataset=dataset, path=path, started=started)
    assert not path.exists()
