"""A recorded folder is read as the result that its call returned, without running anything."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import raysim
from tests.support.interrupted import same_records

Make = Callable[..., raysim.Experiment]


def width(dataset: raysim.FederatedDataset) -> int:
    return int(dataset.train.client(0)[0].shape[1])


def test_a_run_of_a_scripts_own_parts_is_read_without_them(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    def make() -> torch.nn.Module:
        module = torch.nn.Sequential(torch.nn.Linear(width(dataset), 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
        module[0].requires_grad_(False)
        return module

    client = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": "full"}
    ran = raysim.run(experiment(model=None, client=client), dataset=dataset, model=make, path=tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    found = raysim.read(tmp_path / "run")
    assert isinstance(found, raysim.Result)
    same_records(found, ran)
    assert {"1.running_mean", "1.num_batches_tracked", "2.weight"} <= found.params.keys()
    assert str(found) == str(ran)
    assert found.stopped == ran.stopped
    assert sorted(tmp_path.rglob("*")) == before


def test_a_stopped_run_says_why(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    ran = raysim.run(experiment(stop={"budget": {"rounds": 2}}), dataset=dataset, path=tmp_path / "run")
    found = raysim.read(tmp_path / "run")
    assert isinstance(found, raysim.Result)
    assert found.stopped == ran.stopped is not None


def test_a_run_without_a_checkpoint_has_rows_and_no_model(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    ran = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints")
    found = raysim.read(tmp_path / "run")
    assert isinstance(found, raysim.Result)
    assert found.params == {}
    assert found.rounds.equals(ran.rounds)


def test_trials_are_read_as_far_as_they_have_begun(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    ran = raysim.run_trials(experiment(trials=3), dataset=dataset, path=tmp_path / "all")
    found = raysim.read(tmp_path / "all")
    assert isinstance(found, raysim.TrialsResult)
    for left, right in zip(found.trials, ran.trials, strict=True):
        same_records(left, right)
    assert found.summary.equals(ran.summary)
    shutil.rmtree(tmp_path / "all" / "trial-2")
    fewer = raysim.read(tmp_path / "all")
    assert isinstance(fewer, raysim.TrialsResult)
    assert [trial.path.name for trial in fewer.trials] == ["trial-0", "trial-1"]
    assert "2 have begun" in str(fewer)
    assert "begun" not in str(found)
    shutil.rmtree(tmp_path / "all" / "trial-0")
    last = raysim.read(tmp_path / "all")
    assert isinstance(last, raysim.TrialsResult)
    # Its number is not its place.
    for table, of_all in ((last.rounds, ran.rounds), (last.clients, ran.clients)):
        assert table.to_pylist() == [row for row in of_all.to_pylist() if row["trial"] == 1]
    shutil.rmtree(tmp_path / "all" / "trial-1")
    with pytest.raises(raysim.RunFolderError, match="holds trials, none of which has begun"):
        raysim.read(tmp_path / "all")


@pytest.mark.parametrize("trials", [1, 2])
def test_a_sweep_is_read_as_far_as_its_points_have_begun(
    trials: int, experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    values = {"cohort.size": [3, 5]}
    ran = raysim.run_sweep(experiment(trials=trials), values, dataset=dataset, path=tmp_path / "all")
    found = raysim.read(tmp_path / "all")
    assert isinstance(found, raysim.SweepResult)
    assert found.rounds.equals(ran.rounds)
    assert found.clients.equals(ran.clients)
    assert [(p.values, p.path, p.stopped) for p in found.points] == [(p.values, p.path, p.stopped) for p in ran.points]
    assert str(found) == str(ran)
    shutil.rmtree(tmp_path / "all" / "cohort.size=3")
    fewer = raysim.read(tmp_path / "all")
    assert isinstance(fewer, raysim.SweepResult)
    assert [point.values for point in fewer.points] == [{"cohort.size": 5}]
    each = ", of 2 trials each" if trials > 1 else ""
    assert f"1 of 2{each}: the others have not begun, or are lost" in str(fewer)
    shutil.rmtree(tmp_path / "all" / "cohort.size=5")
    with pytest.raises(raysim.RunFolderError, match="holds a sweep, no point of which has begun"):
        raysim.read(tmp_path / "all")


def test_a_trial_of_other_data_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Which table it was trained on is no setting, so the folder is in its place as far as these tell."""
    for number, name in enumerate(("own", "other")):
        x = np.random.default_rng(number).normal(size=(40, 3))
        table = pa.table({"client": np.arange(40) % 4, "x": list(x), "y": np.arange(40) % 2})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        data = {"name": "arrow", "train": str(tmp_path / f"{name}.parquet")}
        made = {
            "name": name,
            "rounds": 1,
            "data": data,
            "model": {"name": "linear"},
            "cohort": {"size": 2},
            "trials": 2,
        }
        raysim.run_trials(raysim.Experiment.model_validate(made), path=tmp_path / name, executor="local")
    caplog.clear()
    raysim.read(tmp_path / "own")
    assert caplog.messages == []
    shutil.rmtree(tmp_path / "own" / "trial-1")
    shutil.copytree(tmp_path / "other" / "trial-1", tmp_path / "own" / "trial-1")
    raysim.read(tmp_path / "own")
    (said,) = caplog.messages
    assert said.startswith(
        f"{tmp_path / 'own' / 'trial-1'} was run on other data than {tmp_path / 'own' / 'trial-0'}: "
    )


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(raysim.RunFolderError, match="is not a run's folder: there is no such folder"):
        raysim.read(tmp_path / "none")
