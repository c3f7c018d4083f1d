"""Loggers beside the records: what they are handed, and what the services themselves read back."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from sqlalchemy.engine import make_url

import raysim
from raysim.loggers import open as loggers
from raysim.loggers.logger import Logged, own_folder, scalars, settings
from raysim.loggers.mlflow import apart, tracking_uri

Make = Callable[..., raysim.Experiment]


def test_figures_are_finite_numbers_under_their_own_names() -> None:
    row = {"round": 3, "loss": 0.5, "clients": 4, "failure": True, "p": None, "nan": float("nan"), "ids": ["a"]}
    assert scalars(row) == {"loss": 0.5, "clients": 4.0, "failure": 1.0}


def test_settings_are_paths_and_text(experiment: Make) -> None:
    found = settings(experiment())
    assert found["client.optimizer.lr"] == "0.3"
    assert found["model.hidden"] == "[8]"
    assert "server.clip" not in found


def test_a_function_is_called_with_every_row(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    seen: list[Mapping[str, Any]] = []
    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", loggers=[seen.append])
    assert [row["round"] for row in seen] == [0, 1, 2, 3]
    assert [row["loss"] for row in seen] == result.rounds["loss"].to_pylist()
    raysim.resume(tmp_path / "run", dataset=dataset, rounds=5, loggers=[seen.append])
    assert [row["round"] for row in seen] == [0, 1, 2, 3, 4]


def test_a_function_that_changes_its_row_changes_that_of_no_other(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    rows: list[Mapping[str, Any]] = []

    def writes(row: Any) -> None:
        row["loss"] = -1.0
        row["rejected_clients"].append("nobody")

    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", loggers=[writes, rows.append])
    assert [row["loss"] for row in rows] == result.rounds["loss"].to_pylist()
    assert [row["rejected_clients"] for row in rows] == [[]] * len(rows)


def test_loggers_change_no_bits_and_no_fingerprint(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    plain = raysim.run(experiment(), dataset=dataset, path=tmp_path / "plain")
    logged = raysim.run(experiment(), dataset=dataset, path=tmp_path / "logged", loggers=[lambda row: None])
    assert plain.rounds["loss"].equals(logged.rounds["loss"])
    assert [(tmp_path / name / "experiment.json").read_bytes() for name in ("plain", "logged")] == [
        (tmp_path / "plain" / "experiment.json").read_bytes()
    ] * 2


def test_a_logger_that_fails_is_named_once_and_left_out(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Mapping[str, Any]] = []

    def broken(row: Mapping[str, Any]) -> None:
        raise OSError("no network")

    with caplog.at_level(logging.WARNING):
        raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", loggers=[broken, seen.append])
    said = [record.message for record in caplog.records if "logger" in record.message]
    assert said == ["The logger broken failed, and is left out from here on: OSError: no network"]
    assert len(seen) == 4


def test_loggers_are_closed_however_the_run_ends(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    @contextmanager
    def noted(run: Any) -> Any:
        try:
            yield lambda row: None
        finally:
            closed.append(run.first_round)

    monkeypatch.setattr(loggers, "_LOGGERS", {"tensorboard": noted})
    opened = loggers.Loggers(["tensorboard"], tmp_path, experiment())
    opened.row({"round": 7})
    opened.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert closed == [7]


class Received(NamedTuple):
    """What a service's logger received in a session: the first round that was not on record, all rounds, its end."""

    first_round: int
    rounds: list[int]
    ended: list[type[BaseException] | None]


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> list[Received]:
    """The sessions of the logger "tensorboard", in whose place another one stands."""
    every: list[Received] = []

    class Session(AbstractContextManager[Callable[[Mapping[str, Any]], None]]):
        def __init__(self, run: Logged) -> None:
            self.received = Received(run.first_round, [], [])
            every.append(self.received)

        def __enter__(self) -> Callable[[Mapping[str, Any]], None]:
            return lambda row: self.received.rounds.append(row["round"])

        def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
            self.received.ended.append(kind)

    monkeypatch.setattr(loggers, "_LOGGERS", {"tensorboard": Session})
    monkeypatch.setattr(loggers, "find_spec", lambda name: name)
    return every


def test_a_service_receives_the_rounds_on_record_before_those_of_the_session(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, sessions: list[Received]
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    seen: list[int] = []
    named: list[Any] = ["tensorboard", lambda row: seen.append(row["round"])]
    raysim.resume(tmp_path / "run", dataset=dataset, rounds=6, loggers=named)
    assert sessions == [Received(4, [0, 1, 2, 3, 4, 5], [None])]
    assert seen == [4, 5], "a function has no service that knows what it had"


def test_a_service_receives_a_run_that_was_complete_before(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, sessions: list[Received]
) -> None:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    seen: list[int] = []
    named: list[Any] = ["tensorboard", lambda row: seen.append(row["round"])]
    raysim.resume(tmp_path / "run", dataset=dataset, loggers=named)
    assert sessions == [Received(4, [0, 1, 2, 3], [None])]
    assert seen == []


def test_a_service_receives_trials_that_were_complete_before(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, sessions: list[Received]
) -> None:
    raysim.run_trials(experiment(trials=2), dataset=dataset, path=tmp_path / "all")
    raysim.run_trials(
        experiment(trials=3), dataset=dataset, path=tmp_path / "all", resume=True, loggers=["tensorboard"]
    )
    assert [(run.first_round, run.rounds) for run in sessions] == [(4, [0, 1, 2, 3])] * 2 + [(0, [0, 1, 2, 3])]


def test_records_that_cannot_be_read_leave_loggers_with_the_rounds_of_the_session(
    experiment: Make, tmp_path: Path, sessions: list[Received], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rounds.parquet").write_text("damaged")
    with loggers.Loggers(["tensorboard"], tmp_path, experiment()) as opened:
        opened.row({"round": 2})
    assert sessions == [Received(2, [2], [None])]
    assert "The loggers do not receive earlier rounds" in caplog.text


def test_functions_receive_rounds_from_the_first_that_was_not_finished(
    experiment: Make, tmp_path: Path, sessions: list[Received]
) -> None:
    seen: list[int] = []
    named: list[Any] = ["tensorboard", lambda row: seen.append(row["round"])]
    with loggers.Loggers(named, tmp_path, experiment(), first=2) as opened:
        for place in range(4):
            opened.row({"round": place})
    assert sessions == [Received(0, [0, 1, 2, 3], [None])]
    assert seen == [2, 3]


def test_a_logger_that_is_none_or_not_installed_is_an_error_before_anything_starts(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong: Any = "tensorbored"
    with pytest.raises(raysim.ExperimentError, match="no logger 'tensorbored': they are tensorboard, mlflow, wandb"):
        raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", loggers=[wrong])
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    with pytest.raises(raysim.ExperimentError, match=r"pip install 'raysim\[mlflow\]'"):
        raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", loggers=["mlflow"])
    assert not (tmp_path / "run").exists()


def test_whole_and_parts_have_names_that_can_be_files() -> None:
    figures = {"gsi": 1.0, "gsi/fc.weight": 2.0, "loss": 3.0}
    assert apart(figures) == {"gsi/model": 1.0, "gsi/fc.weight": 2.0, "loss": 3.0}


def test_mlflow_goes_where_its_variable_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert tracking_uri(Path("/a/runs/first")) == "sqlite:////a/runs/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracker")
    assert tracking_uri(Path("/a/runs/first")) == "http://tracker"


def test_what_a_service_writes_does_not_leave_the_folder(tmp_path: Path) -> None:
    run, outside = tmp_path / "run", tmp_path / "outside"
    run.mkdir()
    outside.mkdir()
    assert own_folder(run, "tensorboard") == run / "tensorboard"
    (run / "tensorboard").symlink_to(outside)
    with pytest.raises(raysim.RunFolderError, match=r"leads to \S+outside by a symbolic link"):
        own_folder(run, "tensorboard")
    (run / "other").mkdir()
    (run / "other" / "events").symlink_to(outside / "x")
    with pytest.raises(raysim.RunFolderError, match=r"events is a symbolic link to"):
        own_folder(run, "other")


def test_links_that_wandb_makes_are_its_own(experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its folder of a run has a link to its newest session, and each session one to a file in the service's cache."""
    session = tmp_path / "run" / "wandb" / "run-1"
    (session / "logs").mkdir(parents=True)
    (session / "logs" / "debug-core.log").symlink_to(tmp_path / "cache" / "core.log")
    (session.parent / "latest-run").symlink_to("run-1")
    service = Mock()
    service.init.return_value.id, service.init.return_value.starting_step = "a", 0
    monkeypatch.setitem(sys.modules, "wandb", service)
    with loggers._LOGGERS["wandb"](Logged(tmp_path / "run", experiment(), 1)) as log:
        log({"round": 1, "loss": 0.5})
    service.init.return_value.log.assert_called_once_with({"loss": 0.5}, step=1)


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_no_service_is_opened_on_a_folder_that_leads_out(
    name: str, experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(tmp_path / "outside")
    opened = Mock()
    for package in ("torch.utils.tensorboard", "wandb"):
        monkeypatch.setitem(sys.modules, package, opened)
    with (
        pytest.raises(raysim.RunFolderError, match="symbolic link"),
        loggers._LOGGERS[name](Logged(tmp_path / "run", experiment(), 0)),
    ):
        pass
    assert not opened.mock_calls


def test_mlflow_s_file_lies_beside_the_folder_whatever_its_letters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    found = make_url(tracking_uri(tmp_path / "lr?=1" / "run"))
    assert found.database == str(tmp_path / "lr?=1" / "mlflow.db")
