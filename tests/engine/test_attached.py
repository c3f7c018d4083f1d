"""Runs on a cluster go on without the script that started them, others follow and end them, nothing is left over."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import ray
import torch

import raysim
from raysim.api import attach as attached
from raysim.engine.on_ray.cluster import run_names
from raysim.experiment.row import Row
from raysim.loggers import open as loggers
from raysim.loggers.logger import Logged
from raysim.models.softmax import cross_entropy
from raysim.run_folder import experiment_record, kept_checkpoints, round_table
from raysim.storage.remote.mirror import Mirror
from tests.support.executors import failing_loss
from tests.support.interrupted import same_records

Make = Callable[..., raysim.Experiment]

ROUNDS = 12
PAUSE_S = 0.3


def slow(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The task's own loss, which takes its time."""
    time.sleep(PAUSE_S)
    return cross_entropy(outputs, targets)


SCRIPT = f"""
import sys, time
import raysim
from raysim.models.softmax import cross_entropy

def slow(outputs, targets):
    time.sleep({PAUSE_S})
    return cross_entropy(outputs, targets)

raysim.run(raysim.load("tiny.toml"), loss=slow, address=sys.argv[1])
"""
"""It needs no file of these tests, which a cluster's workers may not find."""

FILE = f"""
name = "tiny"
rounds = {ROUNDS}
data = {{ name = "digits", clients = 20 }}
model = {{ name = "linear" }}
cohort = {{ size = 4 }}
client = {{ batch_size = "full" }}
checkpoint = {{ every = 3 }}
evaluation = {{ every = {ROUNDS} }}
engine = {{ workers = 2, cpus_per_worker = 0.5, trainer = "one_by_one" }}
"""


@pytest.fixture
def address(ray_cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Of a cluster that outlives scripts, in a working folder with tiny.toml; at the end no run is left on it."""
    (tmp_path / "tiny.toml").write_text(FILE)
    monkeypatch.chdir(tmp_path)
    # For scripts that join at host:port.
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    yield ray.get_runtime_context().gcs_address
    try:
        wait_until(lambda: not names(), "a driver is left over")
    finally:
        # What a failed test leaves is not the next one's.
        for run in raysim.under_way():
            raysim.stop(run.name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> raysim.Result:
    """What the run of tiny.toml comes to."""
    folder = tmp_path_factory.mktemp("undisturbed")
    (folder / "tiny.toml").write_text(FILE)
    return raysim.run(raysim.load(folder / "tiny.toml"), loss=cross_entropy, path=folder / "tiny", executor="local")


def launch(*changes: str, **how: Any) -> str:
    return raysim.launch(raysim.load("tiny.toml", changes), loss=slow, **how)


ENDLESS = "rounds=1000"


def start(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, *command], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def resumed(path: str) -> raysim.Result:
    """The run's end, as this process comes to it; nothing is left to do where the run is whole."""
    return raysim.resume(path, loss=cross_entropy, executor="local")


def names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]


def wait_until(condition: Callable[[], Any], otherwise: str) -> None:
    deadline = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def rounds_of(name: str) -> int:
    return next((run.rounds for run in raysim.under_way() if run.name == name), 0)


@pytest.mark.usefixtures("address")
@pytest.mark.pictures
def test_a_launched_run_is_listed_followed_and_whole(undisturbed: raysim.Result) -> None:
    assert launch() == "tiny"
    (run,) = raysim.under_way()
    assert (run.name, run.path, run.stage) == ("tiny", Path("runs/tiny").absolute(), "running")
    rows: list[int] = []
    result = raysim.attach("tiny", loggers=[lambda row: rows.append(row["round"])])
    assert rows == list(range(rows[0], ROUNDS))
    same_records(result, undisturbed)
    assert (result.path / "curve.png").exists()
    # Who comes late is told too, for a moment; and the run is no longer under way.
    assert raysim.attach("tiny").rounds.num_rows == ROUNDS
    assert raysim.under_way() == []


@pytest.mark.usefixtures("address")
def test_who_follows_from_another_machine_is_told_what_is_not_to_be_had_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    uri = (tmp_path / "shared").as_uri()
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "its"))
    name = launch(path=uri)
    # Somebody else writes to its folder, so that it may not.
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "mine"))
    mine = Mirror.of(uri)
    mine.pull()
    mine.path.mkdir(exist_ok=True)
    (mine.path / "rows").write_text("mine")
    mine.push()
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    monkeypatch.setattr(attached, "check", lambda loggers: None)
    rows: list[int] = []
    result = raysim.attach(name, loggers=["tensorboard", lambda row: rows.append(row["round"])])
    assert rows[-1] == result.rounds.num_rows - 1 == ROUNDS - 1
    assert "the logger tensorboard needs it" in caplog.text
    assert f"{uri} was changed by another machine meanwhile" in caplog.text
    assert not (result.path / "tensorboard").exists()


@pytest.mark.usefixtures("address")
def test_who_follows_gives_a_service_the_rounds_before_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[int] = []
    rows: list[int] = []

    @contextmanager
    def service(run: Logged) -> Iterator[Callable[[Row], None]]:
        yield lambda row: heard.append(row["round"])

    monkeypatch.setattr(loggers, "_LOGGERS", {"tensorboard": service})
    monkeypatch.setattr(attached, "check", lambda loggers: None)
    name = launch("rounds=3")
    wait_until(lambda: rounds_of(name) >= 2, "the run makes no rounds")
    raysim.attach(name, loggers=["tensorboard", lambda row: rows.append(row["round"])])
    assert heard == [0, 1, 2]
    assert rows in ([2], []), "a function is told what finishes from now on"


def test_a_run_goes_on_when_its_script_is_killed(address: str, undisturbed: raysim.Result) -> None:
    with start("-c", SCRIPT, address) as script:
        wait_until(lambda: raysim.under_way() or script.poll() is not None, "the run does not begin")
        # As early as can be: the driver has what it needs, its workers may not have started yet.
        script.kill()
    same_records(raysim.attach("tiny"), undisturbed)


@pytest.mark.parametrize("how", ["SIGTERM", "raysim.stop"])
def test_a_run_that_is_ended_leaves_a_checkpoint_to_go_on_from(
    how: str, address: str, undisturbed: raysim.Result
) -> None:
    with start("-c", SCRIPT, address) as script:
        wait_until(lambda: rounds_of("tiny") >= 2, "no round is finished")
        if how == "raysim.stop":
            assert raysim.stop("tiny").stage == "stopped"
        else:
            script.send_signal(signal.SIGTERM)
        _, err = script.communicate(timeout=240)
    assert re.search(r"KeyboardInterrupt\nstopped after round \d+; go on with: raysim\.resume\(.*\)\n$", err), err
    assert raysim.under_way() == []
    folder = Path("runs/tiny")
    state = kept_checkpoints.newest_state(folder, experiment_record.stored_owner(folder))
    assert state is not None
    assert 2 <= state.round == round_table.read_rounds(folder).num_rows < ROUNDS
    same_records(resumed("runs/tiny"), undisturbed)


@pytest.mark.usefixtures("address")
def test_a_folder_in_use_is_refused_and_another_folder_gets_another_name() -> None:
    assert launch(ENDLESS) == "tiny"
    for again in ({"resume": True}, {"overwrite": True}, {}):
        with pytest.raises(raysim.RunFolderError, match="Follow it with `raysim attach tiny`"):
            launch(ENDLESS, **again)
    assert launch(ENDLESS, path="other/tiny") == "tiny-2"
    assert launch(ENDLESS, path="other/one") == "tiny/one"
    assert [run.name for run in raysim.under_way()] == ["tiny", "tiny-2", "tiny/one"]
    for name in ("tiny", "tiny-2", "tiny/one"):
        raysim.stop(name)


def test_who_follows_may_leave(address: str) -> None:
    launch(ENDLESS)
    with start("-m", "raysim", "attach", "tiny", "--address", address) as watcher:
        assert watcher.stderr is not None
        # "placement ...", and a line for the first round that it is told.
        while "round" not in (line := watcher.stderr.readline()):
            assert line
        watcher.send_signal(signal.SIGINT)
        said = watcher.stderr.read()
    assert watcher.returncode == 130
    # A worker that joins the run may have been told of before.
    assert said.splitlines()[-1] == "tiny goes on; stop it with: raysim stop tiny"
    before = rounds_of("tiny")
    wait_until(lambda: rounds_of("tiny") > before, "the run does not go on")
    assert raysim.stop("tiny").stage == "stopped"


def test_a_run_that_fails_tells_why_and_leaves_nothing(
    address: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(cohort={"size": 20}, engine={"workers": 1, "cpus_per_worker": 0.5}, client={"batch_size": "full"})
    with pytest.raises(raysim.ClientError, match="my own mistake"):
        raysim.run(exp, dataset=dataset, loss=failing_loss, address=address)
    with pytest.raises(raysim.ClientError, match="my own mistake"):
        raysim.attach("test")


class OnlyHere:
    """A model factory that other processes cannot unpickle."""

    def __reduce__(self) -> Any:
        return (_only_in, (os.getpid(),))

    def __call__(self) -> torch.nn.Module:
        return torch.nn.Linear(5, 3)


def _only_in(process: int) -> OnlyHere:
    assert os.getpid() == process, "it is not on this machine"
    return OnlyHere()


def test_a_driver_that_cannot_begin_is_an_error_and_leaves_nothing(
    address: str, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(model=None, engine={"workers": 1, "cpus_per_worker": 0.5})
    with pytest.raises(raysim.WorkerLostError, match="it is not on this machine"):
        raysim.launch(exp, dataset=dataset, model=OnlyHere(), address=address)
    assert not Path("runs/test").exists()


@pytest.mark.usefixtures("address")
def test_an_unknown_name_is_an_error_that_says_which_there_are() -> None:
    for ask in (raysim.attach, raysim.stop):
        with pytest.raises(raysim.UnknownRunError, match=r"No run 'quick' is under way .*\(under way: none\)"):
            ask("quick")
    assert run_names.under_way() == []


def test_a_run_in_this_process_cannot_be_left_to_itself(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"engine\.workers is 0"):
        raysim.launch(experiment(), dataset=dataset)
