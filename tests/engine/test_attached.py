"""Runs on a cluster go on without the script that started them, others follow and end them, nothing is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import raysim
from raysim import records
from raysim.engine.on_ray import named
from tests.engine.test_resume import same_records

Make = Callable[..., raysim.Experiment]

# A module of the script's own travels with the plan, and a round takes a while.
SCRIPT = """
import sys, time
import raysim
from raysim.models.softmax import cross_entropy

pause_s = float(sys.argv[3])

def slow(outputs, targets):
    time.sleep(pause_s)
    return cross_entropy(outputs, targets)

exp = raysim.Experiment.model_validate({
    "name": "tiny", "rounds": 12, "data": {"name": "digits", "clients": 20}, "model": {"name": "linear"},
    "cohort": {"size": 5}, "client": {"batch_size": "full"}, "checkpoint": {"every": 3},
    "engine": {"workers": 2, "cpus_per_worker": 0.5, "form": "one_by_one"},
})
how = {"loss": slow, "path": sys.argv[2]}
"""
RUN = SCRIPT + "raysim.run(exp, address=sys.argv[1], **how)"
LAUNCH = SCRIPT + "print(raysim.launch(exp, address=sys.argv[1], **how))"
HERE = SCRIPT + "raysim.run(exp, executor='local', **how)"

SLOW, FAST = "0.15", "0"


@pytest.fixture
def address(ray_cluster: None) -> Iterator[str]:
    """Of a cluster that outlives a script; at the end no run is left on it."""
    yield ray.get_runtime_context().gcs_address
    wait_until(lambda: not names(), "a driver is left over")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> raysim.Result:
    """What the script's run comes to."""
    folder = tmp_path_factory.mktemp("undisturbed") / "tiny"
    with start(HERE, "none", folder, FAST) as process:
        assert process.wait(120) == 0
    return left(folder)


def left(folder: Path) -> raysim.Result:
    fingerprint = records.stored_fingerprint(folder)
    state = records.newest_state(folder, fingerprint)
    assert state is not None
    params = {"all": state.weights.params}
    return raysim.Result(params, records.read_rounds(folder), records.read_clients(folder), folder)


def start(script: str, address: str, folder: Path, pause_s: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    command = [sys.executable, "-c", script, address, str(folder), pause_s]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=folder.parent
    )


def names() -> list[str]:
    return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]  # type: ignore[attr-defined]


def wait_until(condition: Callable[[], Any], otherwise: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


def rounds_of(name: str) -> int:
    return next((run.rounds for run in raysim.under_way() if run.name == name), 0)


def test_a_launched_run_is_listed_followed_and_whole(address: str, tmp_path: Path, undisturbed: raysim.Result) -> None:
    folder = tmp_path / "tiny"
    with start(LAUNCH, address, folder, SLOW) as process:
        said, err = process.communicate(timeout=120)
    assert (process.returncode, said) == (0, "tiny\n"), err
    (run,) = raysim.under_way()
    assert (run.name, run.path, run.stage) == ("tiny", folder, "running")
    rows: list[int] = []
    result = raysim.attach("tiny", loggers=[lambda row: rows.append(row["round"])])
    assert rows == list(range(rows[0], 12))
    same_records(left(folder), undisturbed)
    assert result.rounds.equals(records.read_rounds(folder))
    assert result.clients.equals(undisturbed.clients)
    assert (folder / "curve.png").exists()
    # Who comes late is told too, for a moment; then the name is free.
    assert raysim.attach("tiny").rounds.num_rows == 12
    assert raysim.under_way() == []


def test_a_run_goes_on_when_its_script_is_killed(address: str, tmp_path: Path, undisturbed: raysim.Result) -> None:
    folder = tmp_path / "tiny"
    with start(RUN, address, folder, SLOW) as process:
        wait_until(lambda: names() or process.poll() is not None, "the run does not begin")
        # As early as can be: its workers have not started yet.
        process.kill()
    raysim.attach("tiny")
    same_records(left(folder), undisturbed)


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "raysim.stop"])
def test_a_run_that_is_ended_leaves_a_checkpoint_to_go_on_from(
    how: str, address: str, tmp_path: Path, undisturbed: raysim.Result
) -> None:
    folder = tmp_path / "tiny"
    with start(RUN, address, folder, SLOW) as process:
        wait_until(lambda: rounds_of("tiny") >= 2, "no round is finished")
        if how == "raysim.stop":
            assert raysim.stop("tiny").stage == "stopped"
        else:
            process.send_signal(signal.Signals[how])
        _, err = process.communicate(timeout=60)
    assert err.endswith("KeyboardInterrupt\n"), err
    done = records.read_rounds(folder).num_rows
    state = records.newest_state(folder, records.stored_fingerprint(folder))
    assert state is not None
    assert 2 <= state.round == done < 12
    assert raysim.under_way() == []
    with start(RUN.replace("raysim.run(exp,", "raysim.run(exp, resume=True,"), address, folder, FAST) as process:
        _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    same_records(left(folder), undisturbed)


def test_a_folder_in_use_is_refused_and_another_folder_gets_another_name(address: str, tmp_path: Path) -> None:
    with start(LAUNCH, address, tmp_path / "tiny", SLOW) as process:
        assert process.communicate(timeout=120)[0] == "tiny\n"
    with start(RUN, address, tmp_path / "tiny", FAST) as process:
        _, err = process.communicate(timeout=120)
    assert "RunFolderError" in err
    assert "raysim attach tiny" in err
    (tmp_path / "other").mkdir()
    with start(LAUNCH, address, tmp_path / "other" / "tiny", SLOW) as process:
        assert process.communicate(timeout=120)[0] == "tiny-2\n"
    assert [run.name for run in raysim.under_way()] == ["tiny", "tiny-2"]
    for name in ("tiny", "tiny-2"):
        raysim.stop(name)


def test_who_follows_may_leave(address: str, tmp_path: Path) -> None:
    with start(LAUNCH, address, tmp_path / "tiny", SLOW) as process:
        assert process.communicate(timeout=120)[0] == "tiny\n"
    command = [sys.executable, "-m", "raysim", "attach", "tiny", "--address", address]
    environment = {**os.environ, "RAY_AUTH_MODE": "token"}
    with subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE) as watcher:
        assert watcher.stderr is not None
        # "placement ...", and a line for the first round that it is told.
        while "round" not in (line := watcher.stderr.readline()):
            assert line
        watcher.send_signal(signal.SIGINT)
        said = watcher.stderr.read()
    assert watcher.returncode == 130
    assert "left tiny, which goes on; end it with: raysim stop tiny" in said
    before = rounds_of("tiny")
    wait_until(lambda: rounds_of("tiny") > before, "the run does not go on")
    assert raysim.stop("tiny").stage == "stopped"


def test_a_run_that_fails_tells_why_and_leaves_nothing(
    address: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    def broken(outputs: Any, targets: Any) -> Any:
        raise KeyError("my own mistake")

    exp = experiment(engine={"workers": 1, "cpus_per_worker": 0.5})
    with pytest.raises(raysim.ClientError, match="my own mistake"):
        raysim.run(exp, dataset=dataset, loss=broken, path=tmp_path / "run", address=address)
    with pytest.raises(raysim.ClientError, match="my own mistake"):
        raysim.attach("test/run")


class NotThere:
    """A model factory that only this process can unpickle."""

    def __reduce__(self) -> Any:
        return (_only_here, (os.getpid(),))

    def __call__(self) -> Any:
        import torch

        return torch.nn.Linear(5, 3)


def _only_here(process: int) -> NotThere:
    assert os.getpid() == process, "the module is not on this machine"
    return NotThere()


def test_a_driver_that_cannot_begin_is_an_error_and_leaves_nothing(
    address: str, tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make
) -> None:
    exp = experiment(model=None, engine={"workers": 1, "cpus_per_worker": 0.5})
    with pytest.raises(raysim.WorkerLostError, match="the module is not on this machine"):
        raysim.launch(exp, dataset=dataset, model=NotThere(), path=tmp_path / "run", address=address)
    assert not (tmp_path / "run").exists()


def test_an_unknown_name_is_an_error_that_says_which_there_are(address: str) -> None:
    for ask in (raysim.attach, raysim.stop):
        with pytest.raises(raysim.UnknownRunError, match=r"No run 'quick' is under way .*\(under way: none\)"):
            ask("quick", address=address)
    assert named.under_way() == []


def test_a_run_in_this_process_cannot_be_left_to_itself(dataset: raysim.FederatedDataset, experiment: Make) -> None:
    with pytest.raises(raysim.ExperimentError, match=r"engine\.workers is 0"):
        raysim.launch(experiment(), dataset=dataset)
