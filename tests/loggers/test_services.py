"""The services' own readers find what a run logged, and what its continuation added."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

import raysim
from raysim.experiment.row import Row
from raysim.loggers.mlflow import tracking_uri
from raysim.loggers.open import LoggerName
from raysim.loggers.wandb_sessions import records
from raysim.run_folder import files
from tests.support import command
from tests.support.small_data import make_clients

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
    monkeypatch.setenv("WANDB_MODE", "offline")
    losses = logged("wandb", experiment, dataset, tmp_path / "run")
    assert len(wandb_files(tmp_path / "run")) == 2, "the run and its continuation are one run of the service"
    check_once(of_wandb(tmp_path / "run"), losses)


def wandb_files(path: Path) -> list[Path]:
    identity = json.loads((path / "loggers.json").read_text())["wandb"]
    return sorted((path / "wandb").glob(f"offline-run-*-{identity}*/run-{identity}.wandb"))


def of_tensorboard(path: Path) -> list[tuple[int, float]]:
    """Steps and losses in a run's event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(path / "tensorboard")).Reload()
    return [(event.step, event.value) for event in events.Scalars("loss")]


def of_mlflow(path: Path) -> list[tuple[int, float]]:
    """Steps and losses of a run in MLflow's store, in which it has finished."""
    from mlflow import MlflowClient

    client, identity = MlflowClient(tracking_uri(path)), json.loads((path / "loggers.json").read_text())["mlflow"]
    assert client.get_run(identity).info.status == "FINISHED"
    return sorted((metric.step, metric.value) for metric in client.get_metric_history(identity, "loss"))


def of_wandb(path: Path) -> list[tuple[int, float]]:
    """Steps and losses in the files of a run's sessions, the last of which has ended without an error."""
    found = []
    for file in wandb_files(path):
        codes = []
        for record in records(file.read_bytes()):
            items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
            if "loss" in items:
                found.append((items["_step"], items["loss"]))
            if record.WhichOneof("record_type") == "exit":
                codes.append(record.exit.exit_code)
    assert codes == [0]
    return found


def check_once(found: Sequence[tuple[int, float]], losses: Sequence[float]) -> None:
    assert [step for step, _ in found] == list(range(len(losses)))
    assert [loss for _, loss in found] == pytest.approx(losses)


OF: Mapping[LoggerName, Callable[[Path], list[tuple[int, float]]]] = MappingProxyType(
    {"tensorboard": of_tensorboard, "mlflow": of_mlflow, "wandb": of_wandb}
)

ROUNDS = 4


def small() -> raysim.FederatedDataset:
    train, test = make_clients([8, 9, 10, 11]), make_clients([20, 20], seed=1, prefix="t")
    return raysim.FederatedDataset.from_clients(train=train, test=test)


def run_small(path: Path, *loggers: Any, rounds: int = ROUNDS) -> raysim.Result:
    """Begin a run, or go on with it."""
    experiment = raysim.Experiment.model_validate(
        {
            "name": "small",
            "rounds": rounds,
            "model": {"name": "linear"},
            "client": {"optimizer": {"name": "sgd", "lr": 0.1}},
            "cohort": {"size": 2},
            "engine": {"workers": 0},
            "checkpoint": {"every": 1},
        }
    )
    return raysim.run(experiment, path=path, resume=True, progress=False, dataset=small(), loggers=loggers)


def killed_at(last: int, path: str, name: str) -> None:
    """Run until a round is on record, and kill the process before the service has it."""

    def kill(row: Row) -> None:
        if row["round"] == last:
            os.kill(os.getpid(), signal.SIGKILL)

    run_small(Path(path), kill, name)


@pytest.mark.parametrize("name", OF)
@pytest.mark.parametrize("last", [2, ROUNDS - 1], ids=["under way", "complete"])
def test_a_service_has_each_round_of_a_killed_run_once(
    name: LoggerName, last: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name, reason=f"needs raysim[{name}]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    # wandb names the process that writes its files here, and one that is killed with the run is meant.
    monkeypatch.delenv("WANDB_SERVICE", raising=False)
    path = tmp_path / "run"
    done = command.killed("-c", f"from {__name__} import killed_at; killed_at({last}, {str(path)!r}, {name!r})")
    assert done.returncode == -signal.SIGKILL, done.stderr
    losses = run_small(path, name).rounds["loss"].to_pylist()
    check_once(OF[name](path), losses)
    before = services_files(tmp_path)
    run_small(path, name)
    assert services_files(tmp_path) == before, "what is complete is left as it is"
    losses = run_small(path, name, rounds=ROUNDS + 1).rounds["loss"].to_pylist()
    check_once(OF[name](path), losses)


def services_files(path: Path) -> dict[str, bytes]:
    files = [file for file in path.rglob("*") if file.is_file() and {"tensorboard", "wandb"} & set(file.parts)]
    return {str(file): file.read_bytes() for file in [*files, *path.glob("mlflow.db")]}


@pytest.mark.parametrize("name", OF)
def test_a_service_has_each_round_of_an_interrupted_run_once(
    name: LoggerName, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(name, reason=f"needs raysim[{name}]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def interrupt(row: Row) -> None:
        if row["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_small(tmp_path / "run", interrupt, name)
    losses = run_small(tmp_path / "run", name).rounds["loss"].to_pylist()
    check_once(OF[name](tmp_path / "run"), losses)


def test_a_session_of_wandb_that_was_cut_short_is_gone_on_from_where_its_file_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="needs raysim[wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    path = tmp_path / "run"
    run_small(path, "wandb", rounds=30)
    (file,) = wandb_files(path)
    # As a process leaves it that is killed: whole blocks.
    file.write_bytes(file.read_bytes()[:32_768])
    losses = run_small(path, "wandb", rounds=30).rounds["loss"].to_pylist()
    check_once(of_wandb(path), losses)


def test_event_files_that_were_cut_short_are_written_again_from_the_first_round_that_lacks_a_figure(
    tmp_path: Path,
) -> None:
    pytest.importorskip("tensorboard", reason="needs raysim[tensorboard]")
    path = tmp_path / "run"
    run_small(path, "tensorboard")
    (file,) = (path / "tensorboard").iterdir()
    file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    losses = run_small(path, "tensorboard").rounds["loss"].to_pylist()
    check_once(of_tensorboard(path), losses)
