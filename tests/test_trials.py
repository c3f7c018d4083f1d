"""Trials: which seeds they have, what varies, and what mean and deviation are of."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

import raysim
from raysim.api import many, series
from raysim.engine.plan.resolve import resolve
from raysim.run_folder import cost_columns, experiment_record, round_table, tables

Make = Callable[..., raysim.Experiment]


def seeds(experiment: raysim.Experiment) -> list[tuple[int, Any, Any, Any]]:
    each = raysim.trials_of(experiment)
    assert all(trial.trials.count == 1 for trial in each)
    return [(t.seed, t.data.seed if t.data else None, t.model.seed if t.model else None, t.cohort.seed) for t in each]


def with_data(experiment: Make, **sections: Any) -> raysim.Experiment:
    return experiment(seed=7, data={"name": "digits", "clients": 10}, **sections)


def test_a_number_is_how_many_and_everything_varies(experiment: Make) -> None:
    assert seeds(with_data(experiment, trials=3)) == [
        (7, None, None, None),
        (8, None, None, None),
        (9, None, None, None),
    ]


def test_what_does_not_vary_keeps_the_seed_of_the_first(experiment: Make) -> None:
    only_model = with_data(experiment, trials={"count": 2, "vary": ["model"]})
    assert seeds(only_model) == [(7, 7, None, 7), (8, 7, None, 7)]


def test_a_seed_that_is_given_moves_from_where_it_is(experiment: Make) -> None:
    given = with_data(experiment, trials=2, cohort={"size": 7, "seed": 100})
    assert seeds(given) == [(7, None, None, 100), (8, None, None, 101)]
    kept = with_data(experiment, trials={"count": 2, "vary": ["data"]}, cohort={"size": 7, "seed": 100})
    assert seeds(kept) == [(7, None, 7, 100), (8, None, 7, 100)]


@pytest.mark.parametrize("key", ["seed", "cohort.seed"])
def test_no_trial_has_a_seed_beyond_64_bits(key: str, experiment: Make, tmp_path: Path) -> None:
    """The record of such a trial was written, and could not be read any more."""
    most = with_data(experiment, trials=2).changed({key: 2**63 - 2})
    assert max(seed for seed in seeds(most)[-1] if seed is not None) == 2**63 - 1
    with pytest.raises(raysim.ExperimentError, match=rf"^{key} = {2**63 - 2}: trial 2 would have the seed"):
        raysim.run_trials(most.changed({"trials": 3}), path=tmp_path / "trials", executor="local")
    assert not (tmp_path / "trials").exists()


def test_trials_are_trained_together_only_where_that_leaves_their_bits_alone(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def key(plan: Any, exact: bool) -> None:
        asked.append(exact)

    monkeypatch.setattr(many, "lockstep_key", key)
    raysim.run_trials(experiment(trials=2, rounds=1), dataset=dataset, path=tmp_path / "all")
    assert asked == [True, True]


def test_a_trial_is_the_experiment_with_its_seed(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = raysim.run_trials(experiment(trials=3, seed=5), dataset=dataset, path=tmp_path / "all")
    alone = raysim.run(experiment(seed=6), dataset=dataset, path=tmp_path / "alone")
    assert all(torch.equal(alone.params[name], value) for name, value in found.trials[1].params.items())
    assert [result.path.name for result in found.trials] == ["trial-0", "trial-1", "trial-2"]


def test_cohorts_are_paired_across_algorithms(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    one = raysim.trials_of(experiment(trials=2))
    other = raysim.trials_of(experiment(trials=2, server={"optimizer": {"name": "adam", "lr": 0.01}}))
    for left, right in zip(one, other, strict=True):
        cohorts = [[r.cohort for r in raysim.rounds(e, dataset=dataset)] for e in (left, right)]
        assert cohorts[0] == cohorts[1]
    cohorts = [[r.cohort for r in raysim.rounds(e, dataset=dataset)] for e in one]
    assert cohorts[0] != cohorts[1]


def test_initial_weights_that_would_vary_all_the_same_are_refused(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    """Without [model] the seed of a trial draws them."""
    exp = experiment(model=None, trials={"count": 2, "vary": ["cohort"]})
    with pytest.raises(raysim.ExperimentError, match=r'trials.vary leaves "model" out.*name = "own"'):
        raysim.run_trials(exp, dataset=dataset, model=lambda: torch.nn.Linear(64, 10), path=tmp_path / "refused")
    own = exp.changed({"model": {"name": "own"}})
    assert [t.model.seed for t in raysim.trials_of(own) if t.model] == [exp.seed] * 2


def test_cohorts_that_do_not_vary_are_those_of_the_first(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    trials = raysim.trials_of(experiment(trials={"count": 2, "vary": ["model"]}))
    first, second = (list(raysim.rounds(e, dataset=dataset)) for e in trials)
    assert [r.cohort for r in first] == [r.cohort for r in second]
    assert first[0].metrics["loss"] != second[0].metrics["loss"]


@pytest.mark.pictures
def test_the_summary_is_mean_and_sample_deviation(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    found = raysim.run_trials(experiment(trials=3), dataset=dataset, path=tmp_path / "all")
    final = [result.rounds["eval/test/accuracy"][-1].as_py() for result in found.trials]
    last = found.summary.to_pylist()[-1]
    assert (last["round"], last["trials"]) == (3, 3)
    assert last["eval/test/accuracy/mean"] == pytest.approx(statistics.fmean(final))
    assert last["eval/test/accuracy/std"] == pytest.approx(statistics.stdev(final))
    assert found.rounds["trial"].to_pylist() == [i for i in range(3) for _ in range(4)]
    assert set(found.clients["trial"].to_pylist()) == {0, 1, 2}
    assert (tmp_path / "all" / "curve.png").exists()


@pytest.mark.pictures
def test_a_run_that_ended_has_its_picture_though_its_process_was_killed_before(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    (tmp_path / "run" / "curve.png").unlink()
    raysim.resume(tmp_path / "run", dataset=dataset)
    drawn_ns = (tmp_path / "run" / "curve.png").stat().st_mtime_ns
    raysim.resume(tmp_path / "run", dataset=dataset)
    assert (tmp_path / "run" / "curve.png").stat().st_mtime_ns == drawn_ns


@pytest.mark.pictures
def test_a_trial_that_ended_has_its_picture_though_a_process_was_killed_before(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    raysim.run_trials(experiment(trials=3), dataset=dataset, path=tmp_path)
    pictures = [tmp_path / f"trial-{number}" / "curve.png" for number in range(3)]
    pictures[0].unlink()
    os.utime(pictures[1], (0, 0))  # drawn when an earlier process was interrupted
    before_ns = [picture.stat().st_mtime_ns for picture in pictures[1:]]
    # One that is left: they go side by side.
    raysim.run_trials(experiment(trials=4), dataset=dataset, path=tmp_path, resume=True)
    assert pictures[0].exists()
    now_ns = [picture.stat().st_mtime_ns for picture in pictures[1:]]
    assert [now == before for now, before in zip(now_ns, before_ns, strict=True)] == [False, True]


def test_the_summary_of_trials_that_are_not_equally_far() -> None:
    long = pa.table({"round": [0, 1], "loss": [1.0, 2.0], "rejected_clients": [["a"], []]})
    short = pa.table({"round": [0], "loss": [4.0]})
    assert tables.summarise([long, short]).to_pylist() == [
        {"round": 0, "trials": 2, "loss/mean": 2.5, "loss/std": pytest.approx(4.5**0.5)},
        {"round": 1, "trials": 1, "loss/mean": 2.0, "loss/std": None},
    ]


def test_finished_trials_are_read_others_continued_and_more_added(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    whole = raysim.run_trials(experiment(trials=3), dataset=dataset, path=tmp_path / "whole")
    where = tmp_path / "bits"
    raysim.run_trials(experiment(trials=2), dataset=dataset, path=where)
    file = where / "trial-0" / "rounds.parquet"
    written_ns = file.stat().st_mtime_ns
    # The second one is as if it had been stopped after round 2.
    with_two = raysim.trials_of(experiment(trials=2, rounds=2))[1]
    raysim.run(with_two, dataset=dataset, path=where / "trial-1", overwrite=True)
    found = raysim.run_trials(experiment(trials=3), dataset=dataset, path=where, resume=True)
    for got, expected in zip(found.trials, whole.trials, strict=True):
        assert all(torch.equal(got.params[name], value) for name, value in expected.params.items())
    assert file.stat().st_mtime_ns == written_ns
    assert experiment_record.stored_experiment(where).trials.count == 3


def test_one_run_is_not_many(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    many = experiment(trials=2, rounds=1)
    for call in (raysim.run, raysim.rounds):
        with pytest.raises(raysim.ExperimentError, match=r"asks for 2 trials.*run_trials"):
            call(many, dataset=dataset)
    raysim.run_trials(many, dataset=dataset, path=tmp_path / "many")
    with pytest.raises(raysim.RunFolderError, match=r"holds 2 trials.*trial-0"):
        raysim.resume(tmp_path / "many", dataset=dataset)
    with pytest.raises(raysim.RunFolderError, match=r"holds 2 trials.*trial-0"):
        raysim.replay(tmp_path / "many", 0, dataset=dataset)
    with pytest.raises(raysim.RunFolderError, match="exists already"):
        raysim.run_trials(many, dataset=dataset, path=tmp_path / "many")
    with pytest.raises(raysim.RunFolderError, match=r"holds 2 trials.*trial-0"):
        raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "many", resume=True)
    with pytest.raises(raysim.ExperimentError, match="asks for one trial"):
        raysim.run_trials(experiment(rounds=1), dataset=dataset, path=tmp_path / "single")
    raysim.run(experiment(rounds=1), dataset=dataset, path=tmp_path / "one")
    with pytest.raises(raysim.RunFolderError, match="holds one run and no trials"):
        raysim.run_trials(many, dataset=dataset, path=tmp_path / "one", resume=True)


@pytest.mark.parametrize("given", [0, -1, True, {"count": 2, "vary": ["weather"]}, {"number": 3}])
def test_trials_that_mean_nothing(given: Any, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match="trials"):
        experiment(trials=given)


def test_trials_go_on_as_what_they_were(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    where = tmp_path / "all"
    raysim.run_trials(experiment(trials=3, rounds=1), dataset=dataset, path=where)
    for other, said in (
        (experiment(trials=3, rounds=1, cohort={"size": 5}), r"cohort.size was 7, and is 5"),
        (experiment(trials={"count": 3, "vary": ["model"]}, rounds=1), r"trials.vary was .*, and is \['model'\]"),
        (experiment(trials=2, rounds=1), "holds 3 trials, so it cannot go on with 2 only"),
    ):
        with pytest.raises(raysim.RunFolderError, match=said):
            raysim.run_trials(other, dataset=dataset, path=where, resume=True)
    assert experiment_record.stored_experiment(where).cohort.size == 7


def test_what_cannot_run_leaves_the_old_trials(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    where = tmp_path / "all"
    raysim.run_trials(experiment(trials=2, rounds=1), dataset=dataset, path=where)
    with pytest.raises(raysim.ExperimentError, match="number of training clients"):
        raysim.run_trials(experiment(trials=2, cohort={"size": 21}), dataset=dataset, path=where, overwrite=True)
    assert (where / "trial-1" / "rounds.parquet").exists()


def same(result: raysim.Result, alone: raysim.Result) -> bool:
    """Whether all but what it cost has the same bits."""
    names = [name for name in alone.rounds.column_names if not cost_columns.tells_cost(name)]
    rows = result.rounds.select(names).equals(alone.rounds.select(names)) and result.clients.equals(alone.clients)
    return bool(rows) and all(torch.equal(result.params[name], value) for name, value in alone.params.items())


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.parametrize("workers", [3, 2], ids=["one after the other", "side by side"])
def test_on_ray_each_trial_is_the_run_alone(
    workers: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    engine = {"workers": workers, "cpus_per_worker": 0.5, "chunk_size": 2}
    exp = experiment(trials=2, engine=engine, client={"optimizer": {"lr": 0.1, "momentum": 0.5}, "batch_size": 4})
    found = raysim.run_trials(exp, dataset=dataset, path=tmp_path / "all", profile=True)
    for number, trial in enumerate(raysim.trials_of(exp)):
        alone = raysim.run(trial, dataset=dataset, executor="local", path=tmp_path / f"alone-{number}")
        assert same(found.trials[number], alone)
        files = {file.name for file in found.trials[number].path.iterdir()} - {".lock"}
        assert files - {"timeline.json"} == {file.name for file in alone.path.iterdir()} - {".lock"}
        assert "timeline.json" in files
    # Only rounds that are spread over the workers have bytes that went through Ray.
    assert all(count > 0 for count in found.rounds["ray_bytes_up"].to_pylist()) == (workers == 3)


@pytest.mark.usefixtures("ray_cluster")
def test_trials_go_side_by_side_where_they_fill_the_workers_better_than_a_rounds_chunks(
    experiment: Make, dataset: raysim.FederatedDataset
) -> None:
    def busy(engine: dict[str, Any], **sections: Any) -> int:
        return series.busy_workers(resolve(experiment(engine=engine, **sections), dataset=dataset))

    assert busy({"workers": 0}) == 1
    assert busy({"workers": 3, "chunk_size": 2}) == 3
    assert busy({"workers": 3, "chunk_size": 4}) == 2, "of 7 clients in chunks of 4"
    assert busy({"workers": 3, "chunk_size": 2}, cohort={"size": 1}) == 1


@pytest.mark.parametrize("cores", [2, 3], ids=["side by side", "one after the other"])
def test_trials_connect_to_ray_beforehand_only_if_each_has_all_workers(
    cores: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: list[str | None] = []

    def connect(address: str | None) -> AbstractContextManager[None]:
        connected.append(address)
        return nullcontext()

    # The tests before may have connected this process.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.cluster.connected", connect)
    for module in ("series", "shared_workers"):
        monkeypatch.setattr(f"raysim.api.{module}.workers_here", lambda cpus: cores)
    exp = experiment(trials=2, engine={"chunk_size": 2, "workers": "auto"})
    found = raysim.run_trials(exp, dataset=dataset, path=tmp_path / "auto")
    assert connected == ([] if cores == 2 else [None])
    told = raysim.run_trials(exp, dataset=dataset, executor="local", path=tmp_path / "local")
    assert all(map(same, found.trials, told.trials))


def test_an_interrupt_leaves_a_checkpoint_of_every_trial(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    exp, where = experiment(trials=3, rounds=6), tmp_path / "all"
    heard: list[int] = []

    def interrupt(row: Any) -> None:
        heard.append(row["round"])
        if row["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as cut:
        raysim.run_trials(exp, dataset=dataset, path=where, loggers=[interrupt])
    again = f"raysim.run_trials(experiment, path={str(where)!r}, resume=True, dataset=...)"
    assert cut.value.__notes__ == [f"stopped among several runs; go on with: {again}"]
    left = [round_table.read_rounds(where / f"trial-{i}").num_rows for i in range(3)]
    assert left == [4, 2, 2]
    assert all(
        (where / f"trial-{i}" / "checkpoints" / f"round-{n:06d}.safetensors").exists() for i, n in enumerate(left)
    )
    found = raysim.run_trials(exp, dataset=dataset, path=where, resume=True)
    whole = raysim.run_trials(exp, dataset=dataset, path=tmp_path / "whole")
    assert all(same(*pair) for pair in zip(found.trials, whole.trials, strict=True))


def test_a_trial_that_fails_says_so_and_the_others_are_left_to_go_on_with(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    left = [10**6]

    def loss(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise ArithmeticError("too large")
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    def make(loss: Any, path: Path, **how: Any) -> raysim.TrialsResult:
        return raysim.run_trials(experiment(trials=2), dataset=dataset, loss=loss, path=path, **how)

    whole = make(loss, tmp_path / "whole")
    left[0] = (10**6 - left[0]) // 2
    with pytest.raises(raysim.ClientError, match="too large"):
        make(loss, tmp_path / "all")
    left[0] = 10**6
    again = make(loss, tmp_path / "all", resume=True)
    assert all(same(*pair) for pair in zip(again.trials, whole.trials, strict=True))


def test_loggers_and_progress_hear_every_round_of_one_trial_after_the_other(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[tuple[int, float]] = []
    found = raysim.run_trials(
        experiment(trials=3),
        dataset=dataset,
        path=tmp_path / "all",
        loggers=[lambda row: heard.append((row["round"], row["loss"]))],
        progress=True,
    )
    rows = [(row["round"], row["loss"]) for result in found.trials for row in result.rounds.to_pylist()]
    assert heard == rows
    placement, first, last = capsys.readouterr().err.splitlines()
    assert placement == "placement  1 run at a time, one on each worker"
    assert first.startswith("round 1/12: ")
    assert last.startswith("round 12/12: ")


def test_the_summary_of_figures_that_are_not_finite() -> None:
    def summary(*values: float) -> tuple[Any, Any]:
        (row,) = tables.summarise([pa.table({"round": [0], "loss": [value]}) for value in values]).to_pylist()
        return row["loss/mean"], row["loss/std"]

    assert list(map(str, summary(1.0, math.inf))) == ["inf", "nan"]
    assert list(map(str, summary(1.0, math.nan))) == ["nan", "nan"]
    assert list(map(str, summary(-math.inf, math.inf))) == ["nan", "nan"]
    assert summary(1e308, 1e308) == (1e308, 0.0)
    assert summary(1.7e308, -1.7e308) == (0.0, math.inf)
