"""Data on several nodes: each has one copy, fetched once and whole, from the store or from the driver's node."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

import raysim
from raysim.data.array_split import ArraySplit
from raysim.data.prepare import prepare
from raysim.engine.on_ray.cluster import data_on_nodes
from raysim.engine.on_ray.cluster.cluster import place
from raysim.engine.on_ray.cluster.data_on_nodes import receive, send
from raysim.engine.on_ray.executor.client_pool import ClientPool
from raysim.engine.on_ray.executor.on_ray import OnRay
from raysim.engine.plan.resolve import resolve
from raysim.engine.rounds import loop
from raysim.storage.cache import cache_root
from tests.support.nodes import alone, assert_same, params

Make = Callable[..., raysim.Experiment]

DIGITS = {"name": "digits", "clients": 12}


@pytest.fixture(scope="module")
def far(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cache of a second node, which does not look into the first one's."""
    cache = tmp_path_factory.mktemp("far")
    node = ray_cluster.add_node(num_cpus=3, resources={"far": 1}, env_vars={"RAYSIM_CACHE": str(cache)})
    yield cache
    ray_cluster.remove_node(node)
    deadline_s = time.monotonic() + 240
    while ray.cluster_resources().get("CPU") != 4:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def copies(cache: Path) -> list[Path]:
    return [entry for entry in (cache / "datasets").glob("*") if not entry.name.startswith(".")]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def digits(experiment: Make, **sections: Any) -> raysim.Experiment:
    """Two workers, one on each node: there is no room for both on one."""
    engine = {"workers": 2, "cpus_per_worker": 3, "chunk_size": 1}
    return experiment(**{"data": DIGITS, "engine": engine, "rounds": 2, **sections})


def content_there(dataset: raysim.FederatedDataset) -> list[int]:
    """What the second node reads of the first client's labels."""

    @ray.remote(resources={"far": 0.01}, num_cpus=0)
    def read(data: Any) -> list[int]:
        return list(receive(data[0]).train.client(0)[1].tolist())

    found: list[int] = ray.get(read.remote([send(dataset, 60)]))
    return found


@pytest.mark.usefixtures("loop_here")
def test_a_node_without_the_data_fetches_one_copy_and_the_bits_are_the_same(experiment: Make, far: Path) -> None:
    exp = digits(experiment)
    plan = resolve(exp)
    on_ray = OnRay(plan, place(exp.engine))
    try:
        on_ray.wait_for(2)
        on_both = list(loop.rounds(plan, on_ray, plan.initial_state()))
    finally:
        on_ray.close()
    assert [finished.metrics["workers"] for finished in on_both] == [2, 2]
    assert_same(params(on_both), alone(plan))
    (copy,) = copies(far)
    (own,) = [entry for entry in copies(cache_root()) if entry.name == copy.name]
    assert contents(copy) == contents(own)


def test_a_truncated_copy_on_a_node_is_fetched_again(experiment: Make, far: Path) -> None:
    dataset = prepare(digits(experiment).data, 0)  # type: ignore[arg-type]
    expected = dataset.train.client(0)[1].tolist()
    assert content_there(dataset) == expected
    (copy,) = copies(far)
    os.truncate(copy / "train.arrow", 1000)
    assert content_there(dataset) == expected
    assert copies(far) == [copy]


def test_data_that_are_damaged_on_the_drivers_node_are_an_error_that_names_the_file(
    experiment: Make, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "near"))
    dataset = prepare(digits(experiment, seed=7).data, 7)  # type: ignore[arg-type]
    (entry,) = copies(tmp_path / "near")
    with (entry / "train.arrow").open("r+b") as file:
        file.seek(5000)
        file.write(b"\xff\x00" * 8)
    with pytest.raises(raysim.DataError, match=r"train\.arrow is damaged: expected \d+ bytes with blake2b \w+"):
        send(dataset, 60)


@pytest.mark.usefixtures("ray_cluster")
def test_a_folder_that_is_deleted_in_mid_run_is_named_by_a_worker_that_starts_later(
    experiment: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache is cleaned, and then a worker is lost, or a node joins."""
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "near"))
    plan = resolve(digits(experiment, seed=19))
    sent = data_on_nodes.send_plan(plan, 60)
    (entry,) = copies(tmp_path / "near")
    shutil.rmtree(entry)
    with pytest.raises(raysim.DataError, match=r"dataset\.json is missing.*A run that is resumed prepares or fetches"):
        ClientPool(sent, 0, 0).ready()


def test_a_node_that_does_not_begin_to_fetch_is_left_out(
    experiment: Make, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "near"))
    dataset = prepare(digits(experiment, seed=9).data, 9)  # type: ignore[arg-type]
    before, on_node = copies(far), data_on_nodes._on_node
    # A process that never starts: it waits for what another task holds.
    held = ray.remote(resources={"far": 1}, num_cpus=0)(lambda: time.sleep(3600)).remote()
    monkeypatch.setattr(data_on_nodes, "_on_node", lambda *given, **more: on_node(*given, resources={"far": 1}, **more))
    try:
        while ray.available_resources().get("far"):
            time.sleep(0.05)
        send(dataset, 0.01)
    finally:
        ray.cancel(held, force=True)
    assert re.search(r"node \w+ \(.*\) has not begun to fetch the data in 0.01 s \(engine.wait_s\)", caplog.text)
    monkeypatch.undo()
    assert copies(far) == before


def test_a_node_that_sends_nothing_is_an_error_of_the_one_that_fetches(
    ray_cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(folder: str, name: str) -> Iterator[bytes]:
        time.sleep(3600)
        yield b""

    monkeypatch.setattr(data_on_nodes, "_blocks", silent)
    here = ray.get_runtime_context().get_node_id()
    with pytest.raises(raysim.ResourceError, match=r"has not sent a.arrow on for 0.01 s \(engine.wait_s\)"):
        list(data_on_nodes._OtherNode(str(tmp_path), here, 0.01).read("a.arrow"))


def test_a_store_that_holds_the_data_is_asked_before_the_driver(
    experiment: Make, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSIM_STORE", (tmp_path / "store").as_uri())
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / "near"))
    dataset = prepare(digits(experiment, seed=8).data, 8)  # type: ignore[arg-type]
    expected = dataset.train.client(0)[1].tolist()
    (entry,) = copies(tmp_path / "near")
    # Were the driver's files read, what they hold now would show.
    (entry / "train.arrow").rename(tmp_path / "hidden.arrow")
    before = len(copies(far))
    assert content_there(dataset) == expected
    assert len(copies(far)) == before + 1


def test_clients_that_remember_on_several_nodes_need_a_disk_that_these_share(
    experiment: Make, far: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{**node, "NodeManagerHostname": f"machine-{at}"} for at, node in enumerate(ray.nodes())]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    client = {"optimizer": {"name": "sgd", "lr": 0.3}, "correction": {"name": "scaffold"}}
    uri = (tmp_path / "elsewhere").as_uri()
    with pytest.raises(raysim.ExperimentError, match=f"a disk that all of them share, but got {uri}, whose copy is"):
        raysim.run(digits(experiment, client=client), path=uri)


@pytest.mark.parametrize("way", ["rounds", "run"])
def test_driver_and_workers_have_the_data_from_one_copy(
    way: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    ray_cluster: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put: list[str] = []
    was_put = data_on_nodes._put

    def noted(*given: Any) -> Any:
        put.append("put")
        return was_put(*given)

    def pickled(split: ArraySplit) -> Any:
        put.append("pickled")
        return of_plain_arrays(split)

    of_plain_arrays = ArraySplit.__reduce__
    monkeypatch.setattr(data_on_nodes, "_put", noted)
    monkeypatch.setattr(ArraySplit, "__reduce__", pickled)
    exp = experiment(engine={"workers": 2, "cpus_per_worker": 1})
    if way == "rounds":
        assert len(list(raysim.rounds(exp, dataset=dataset, executor="ray"))) == exp.rounds
    else:
        raysim.run(exp, dataset=dataset, executor="ray", path=tmp_path / "run", progress=False)
    # Each of two splits once to send it, and once to look for folders.
    assert put == ["put", *["pickled"] * 4]
