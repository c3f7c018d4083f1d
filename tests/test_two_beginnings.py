"""Two processes that begin in one folder at the same time: the second one is refused, and the first one's data stay."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.api.executors import begins
from raysim.api.series import Arguments
from raysim.errors import RunFolderError
from raysim.storage import lock
from tests.support.run_folders import experiment

Begin = Callable[..., Any]


def trials(path: Path, rate: float, **how: Any) -> Any:
    """Begin two trials in the folder, at this client rate."""
    client = {"optimizer": {"name": "sgd", "lr": rate}}
    asked = experiment(rounds=1, trials=2, engine={"workers": 0}, client=client)
    return raysim.run_trials(asked, path=path, progress=False, **how)


def swept(path: Path, rate: float, **how: Any) -> Any:
    """Begin a sweep of one point in the folder, at this client rate."""
    values = {"client.optimizer.lr": [rate]}
    return raysim.run_sweep(experiment(rounds=1, engine={"workers": 0}), values, path=path, progress=False, **how)


each = pytest.mark.parametrize("begin", [trials, swept])


def between(monkeypatch: pytest.MonkeyPatch, other: Callable[[], object]) -> None:
    """Have another one come between the look at the folder and the first file that is written to it."""
    resolved = Arguments.resolved

    def after_other(self: Arguments, member: Any) -> Any:
        monkeypatch.setattr(Arguments, "resolved", resolved)
        other()
        return resolved(self, member)

    monkeypatch.setattr(Arguments, "resolved", after_other)


@each
@pytest.mark.parametrize("resume", [False, True])
def test_what_another_one_began_meanwhile_stays(
    begin: Begin, resume: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = []
    between(monkeypatch, lambda: first.append(begin(tmp_path / "all", 0.1)))
    with pytest.raises(RunFolderError, match="exists already"):
        begin(tmp_path / "all", 0.2, resume=resume)
    assert raysim.read(tmp_path / "all").rounds == first[0].rounds


@each
def test_none_begins_while_another_one_begins(begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)
    with lock.locked(tmp_path / "all"), pytest.raises(RunFolderError, match="is being written by process"):
        begin(tmp_path / "all", 0.2)
    assert [file.name for file in (tmp_path / "all").iterdir()] == [lock.FILE]


@each
@pytest.mark.parametrize("how", [{"resume": True}, {"overwrite": True}, {}])
def test_none_begins_while_another_one_is_under_way(
    begin: Begin, how: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "PATIENCE_S", 0.0)
    refused = []

    def started(member: Any) -> None:
        with pytest.raises(RunFolderError, match="is being written by process") as error:
            begin(tmp_path / "all", 0.1, **how)
        refused.append(error)

    done = begin(tmp_path / "all", 0.1, started=started)
    assert refused
    assert raysim.read(tmp_path / "all").rounds == done.rounds


def test_a_run_that_another_one_replaced_meanwhile_is_not_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, others = tmp_path / "run", list[raysim.Result]()
    asked, other = (experiment(rounds=2, seed=seed, engine={"workers": 0}) for seed in (0, 1))
    raysim.run(asked, path=path, progress=False)

    def after_other(*arguments: Any) -> Any:
        monkeypatch.setattr("raysim.api.run.begins", begins)
        others.append(raysim.run(other, path=path, overwrite=True, progress=False))
        return begins(*arguments)

    monkeypatch.setattr("raysim.api.run.begins", after_other)
    with pytest.raises(RunFolderError, match="holds another run than"):
        raysim.run(asked.changed({"rounds": 4}), path=path, resume=True, progress=False)
    assert raysim.read(path).rounds == others[0].rounds
