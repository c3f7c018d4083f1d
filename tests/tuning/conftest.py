"""Shared by the tests of studies: storages of every kind, and the smallest study there is."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import raysim
import tuning
from tests.support.postgres import POSTGRES, USER, Postgres, as_user
from tests.support.small_data import make_clients


@pytest.fixture
def small() -> raysim.FederatedDataset:
    """Ten training clients and two test clients."""
    return raysim.FederatedDataset.from_clients(
        train=make_clients([8 + i for i in range(10)]), test=make_clients([25] * 2, seed=1, prefix="t")
    )


@pytest.fixture(autouse=True)
def _no_pictures_of_a_study(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take longer than the smallest study: they are drawn where a test has the mark `pictures`."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("tuning.study.pictures.draw_all", lambda *given: None)


@pytest.fixture
def tuned(experiment: Callable[..., raysim.Experiment]) -> Callable[..., raysim.Experiment]:
    """An experiment of four rounds in-process whose client rate is tuned; keyword arguments are keys of [tuning]."""

    def make(**keys: Any) -> raysim.Experiment:
        space = {"client.optimizer.lr": {"grid": [0.01, 0.1, 1.0]}}
        return experiment(cohort={"size": 4}, model={"name": "linear"}, tuning={"space": space, **keys})

    return make


@pytest.fixture
def study(
    small: raysim.FederatedDataset, tuned: Callable[..., raysim.Experiment], tmp_path: Path
) -> Callable[..., tuning.Study]:
    """Tune the smallest study with keys of [tuning], in the same folder each time."""

    def run(**keys: Any) -> tuning.Study:
        return tuning.tune(tuned(**keys), dataset=small, path=tmp_path / "study")

    return run


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of the test's own, on loopback."""
    if not POSTGRES:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    pytest.importorskip("psycopg", reason="needs PostgreSQL's driver: pip install 'psycopg[binary]'")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # Its user must be able to go there, which pytest's own folders do not allow.
    folder = Path(tempfile.mkdtemp(prefix="raysim-postgres-"))
    if os.geteuid() == 0:
        shutil.chown(folder, USER, USER)
    make = [str(POSTGRES[-1] / "initdb"), "-D", str(folder / "data"), "-U", USER, "-A", "trust", "--no-sync"]
    subprocess.run(make, check=True, capture_output=True, **as_user())
    server = Postgres(folder, port)
    server.start()
    yield server
    assert server.process is not None
    # At SIGTERM it would wait for connections to be closed: a test that fails leaves some open.
    server.process.send_signal(signal.SIGINT)
    server.process.wait(timeout=240)
    shutil.rmtree(folder)


@pytest.fixture(params=["sqlite", "journal", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage of every kind."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path / 'shared.db'}"
        case "journal":
            return f"journal:{tmp_path / 'journal.log'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.url
