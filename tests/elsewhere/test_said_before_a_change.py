"""All that changes a copy, or reads what it goes on with there, says so before: the driver, followers, `launch`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import raysim
from raysim.api import attach
from raysim.api.preflight import opening_of
from raysim.engine import wire
from raysim.engine.on_ray.driver import session, watched_driver
from raysim.engine.rounds.opening import Opening
from raysim.engine.rounds.run_status import ENDED, UnderWay
from raysim.run_folder import client_table, round_table
from raysim.storage import lock
from raysim.storage.remote.mirror import WRITERS, Mirror

Make = Callable[..., raysim.Experiment]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    """Of an empty folder."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "machine"))
    mirror = Mirror.of((tmp_path / "there").as_uri())
    mirror.pull()
    mirror.path.mkdir()
    return mirror


def is_said(mirror: Mirror) -> bool:
    return lock.is_held(mirror.path.parent / WRITERS)


class NoDriver:
    """Stands for a driver of two rounds; notes at each of its steps whether it was said that the copy changes."""

    weights = SimpleNamespace(to_named=lambda stated: {})
    workers = ()
    stopped = None

    def __init__(self, mirror: Mirror) -> None:
        self.said: dict[str, bool] = {}
        self._mirror, self._left = mirror, 2
        self.folder = SimpleNamespace(rows=[])

    def note(self, step: str) -> None:
        self.said[step] = is_said(self._mirror)

    def start(self) -> None:
        self.note("start")

    def open(self, overlap: bool) -> None:
        self.note("open")

    def next(self) -> object:
        self.note("next")
        self._left -= 1
        return object() if self._left >= 0 else None

    def close(self) -> None:
        self.note("close")


@pytest.mark.parametrize("name", [None, "detached"])
def test_a_driver(name: str | None, experiment: Make, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    driver, ended = NoDriver(mirror), threading.Event()
    monkeypatch.setattr(watched_driver, "Driver", lambda *arguments: driver)
    monkeypatch.setattr(watched_driver, "put_rest", lambda path: driver.note("put"))
    monkeypatch.setattr(watched_driver, "LINGER_S", 0.0)
    monkeypatch.setattr(watched_driver, "_end_this_process", ended.set)
    sent: Any = SimpleNamespace(plan=SimpleNamespace(experiment=experiment()))
    nothing: Any = None
    made = watched_driver.WatchedDriver(
        sent, nothing, None, Opening(mirror.path), lambda path, experiment: driver.note("draw"), name
    )
    while made.watch("running", None, 0).stage not in ENDED:
        pass
    if name is not None:
        ended.wait()
    assert driver.said == dict.fromkeys(("start", "open", "next", "draw", "close", *(["put"] if name else [])), True)
    assert not is_said(mirror)


def test_a_follower(experiment: Make, mirror: Mirror, monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    run = UnderWay("tiny", experiment(), "host", mirror.path, mirror.uri, 0.0, "running", 0)
    tables = round_table.read_rounds(mirror.path), client_table.read_clients(mirror.path)
    remains = watched_driver.Remains(wire.pack({"w": torch.zeros(1)}), *tables, None)
    driver = SimpleNamespace(about=SimpleNamespace(remote=lambda: run), remains=SimpleNamespace(remote=lambda: remains))
    monkeypatch.setattr("raysim.engine.on_ray.cluster.cluster.connected", lambda address: nullcontext())
    monkeypatch.setattr("raysim.engine.on_ray.cluster.remote_errors.answer", lambda answer, folder=None: answer)
    monkeypatch.setattr(session, "find", lambda name: driver)
    monkeypatch.setattr(session, "follow", lambda *arguments: said.append(is_said(mirror)))
    assert attach.attach("tiny", progress=False).path == mirror.path
    assert said == [True]
    assert not is_said(mirror)


def test_a_launch(
    experiment: Make, dataset: raysim.FederatedDataset, mirror: Mirror, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = []

    def noting(*arguments: Any) -> Opening:
        said.append(is_said(mirror))
        return opening_of(*arguments)

    def launch(*arguments: object) -> str:
        said.append(is_said(mirror))
        return "tiny"

    monkeypatch.setattr("raysim.api.attach.opening_of", noting)
    monkeypatch.setattr(session, "launch", launch)
    assert raysim.launch(experiment(engine={"workers": 1}), dataset=dataset, path=mirror.uri) == "tiny"
    assert said == [True, True]
    assert not is_said(mirror)
