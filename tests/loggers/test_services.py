"""The services' own readers find what a run logged, and what its continuation added."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.loggers.open import LoggerName
from raysim.run_folder import files

# The packages of these services warn of their own dependencies.
pytestmark = pytest.mark.filterwarnings("default")

Make = Callable[..., raysim.Experiment]


def logged(name: LoggerName, make: Make, dataset: raysim.FederatedDataset, path: Path) -> list[float]:
    """Run four rounds and a fifth after a resume; the losses of all."""
    raysim.run(make(), dataset=dataset, path=path, loggers=[name])
    return list(raysim.resume(path, dataset=dataset, rounds=5, loggers=[name]).rounds["loss"].to_pylist())


def test_tensorboard(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs raysim[tensorboard]")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    losses = logged("tensorboard", experiment, dataset, tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == [0, 1, 2, 3, 4]
    assert [event.value for event in events.Scalars("loss")] == pytest.approx(losses)
    assert [event.step for event in events.Scalars("eval/test/accuracy")] == [1, 3, 4]


@pytest.fixture
def mlflow_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The client of a store in a folder, into which MLflow logs."""
    pytest.importorskip("mlflow", reason="needs raysim[mlflow]")
    from mlflow import MlflowClient

    uri = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient(uri)


def test_mlflow(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, mlflow_client: Any) -> None:
    losses = logged("mlflow", experiment, dataset, tmp_path / "run")
    found = mlflow_client.get_experiment_by_name("test")
    (run,) = mlflow_client.search_runs([found.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["client.optimizer.lr"] == "0.3"
    history = sorted(mlflow_client.get_metric_history(run.info.run_id, "loss"), key=lambda metric: metric.step)
    assert [(metric.step, metric.value) for metric in history] == list(enumerate(losses))


def test_mlflow_has_the_rounds_that_a_resumed_run_repeats_once(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, mlflow_client: Any
) -> None:
    path = tmp_path / "run"
    raysim.run(experiment(checkpoint={"every": 2}), dataset=dataset, path=path, loggers=["mlflow"])
    # As a process leaves it that is killed after the row of the last round, and before its checkpoint.
    max(files.checkpoints(path).items())[1].unlink()
    # The third round is the last now, so it is evaluated, which it was not before.
    rows = raysim.resume(path, dataset=dataset, rounds=3, loggers=["mlflow"]).rounds
    (run,) = mlflow_client.search_runs([mlflow_client.get_experiment_by_name("test").experiment_id])
    losses = mlflow_client.get_metric_history(run.info.run_id, "loss")
    assert sorted(metric.step for metric in losses) == [0, 1, 2, 3]
    accuracies = mlflow_client.get_metric_history(run.info.run_id, "eval/test/accuracy")
    assert {metric.step: metric.value for metric in accuracies}[2] == rows["eval/test/accuracy"][2].as_py()


def test_wandb(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs raysim[wandb]")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    losses = logged("wandb", experiment, dataset, tmp_path / "run")
    identity = json.loads((tmp_path / "run" / "loggers.json").read_text())["wandb"]
    files = sorted((tmp_path / "run" / "wandb").glob(f"offline-run-*-{identity}/run-{identity}.wandb"))
    assert len(files) == 2, "the run and its continuation are one run of the service"
    seen: dict[int, float] = {}
    for data in (data for file in files for data in transactions(file.read_bytes())):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "loss" in items:
            seen[items["_step"]] = items["loss"]
    assert seen == pytest.approx(dict(enumerate(losses)))


def transactions(content: bytes) -> Iterator[bytes]:
    """The records of an offline run's file: LevelDB's log format after a header of seven bytes.

    Blocks of 32 KiB hold parts, each behind checksum (4 bytes), length (2) and kind (1): whole, first, middle, last.
    """
    whole, last, head, block = 1, 4, 7, 32_768
    place, record = head, b""
    while place + head <= len(content):
        if block - place % block < head:
            place += block - place % block
            continue
        length, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        record += content[place + head : place + head + length]
        place += head + length
        if kind in (whole, last):
            yield record
            record = b""
