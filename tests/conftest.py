"""Shared by all tests: one Ray start, and small datasets."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings

import raysim
from raysim.client.trainers import trainer_table
from tests.support import ray_mark, steady_names
from tests.support.executors import DiesOnce
from tests.support.interrupted import Stops
from tests.support.kernel import needs_kernel
from tests.support.small_data import make_clients

# How long an example takes says more of the machine than of the code.
settings.register_profile("raysim", deadline=None)
settings.load_profile("raysim")

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

# A shell starts what runs in its background with Ctrl-C ignored, which the processes of tests would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """No test is named by bytes: they need not be the same in both test processes (gzip writes the time into them)."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests on Ray are marked, so that one can leave them out: scripts/test -m "not ray"."""
    steady_names.check(items)
    ray_mark.put(items)


@pytest.fixture(autouse=True)
def _no_ray_without_its_mark(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    ray_mark.enforce(request.node, monkeypatch)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """What trains by the compiled kernel is skipped where that cannot be had."""
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    if any(isinstance(value, str) and value == "compiled" for value in params):
        needs_kernel()


@pytest.fixture(autouse=True, scope="module")
def _begins_with_the_loss(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs that break off by their loss are compared, to the bit, with whole ones, which have the loss built in."""
    with pytest.MonkeyPatch.context() as patch:
        if {Stops, DiesOnce} & {one for one in vars(request.module).values() if isinstance(one, type)}:
            patch.setattr(trainer_table, "CALL_AUTOGRAD", ())
        yield


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """A Ray of this session's own with four logical CPUs, which raysim uses as it finds it; nodes can be added."""
    from tests.support.cluster import cluster

    with cluster(num_cpus=4) as started:
        yield started


@pytest.fixture(autouse=True)
def _no_picture_of_a_run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run's picture takes longer than the smallest run: it is drawn where a test has the mark `pictures`."""
    if request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr("raysim.report.curve.of_run", lambda path, experiment: None)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared datasets go to a folder of the test session."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def dataset() -> raysim.FederatedDataset:
    """Twenty unequal training clients and four test clients."""
    return raysim.FederatedDataset.from_clients(
        train=make_clients([3 + 2 * i for i in range(20)]), test=make_clients([25] * 4, seed=1, prefix="t")
    )


@pytest.fixture
def experiment() -> Callable[..., raysim.Experiment]:
    """A short experiment in-process; keyword arguments replace whole sections."""

    def make(**sections: Any) -> raysim.Experiment:
        base: dict[str, Any] = {
            "name": "test",
            "rounds": 4,
            "model": {"name": "mlp", "hidden": [8]},
            "client": {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4},
            "cohort": {"size": 7},
            "evaluation": {"every": 2},
            "engine": {"workers": 0},
        }
        return raysim.Experiment.model_validate({**base, **sections})

    return make
