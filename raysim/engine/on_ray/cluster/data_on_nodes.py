"""Sends data to the nodes of a cluster: a node fetches a prepared dataset once, if its disk has no copy.

It fetches from the store of the script that started the run ($RAYSIM_STORE), else from the driver's node, in blocks
through Ray; raysim/data/copies.py checks the copy. Arrays in memory are sent directly.
"""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import cloudpickle, exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from raysim.data.arrow_split import ArrowSplit, SplitPlace
from raysim.data.copies import fetch_copy
from raysim.data.dataset import FederatedDataset
from raysim.data.shared_rows import mapped_by_others
from raysim.data.store import store_uri, take
from raysim.engine.on_ray.cluster import own_ray
from raysim.engine.on_ray.cluster.remote_errors import own_cause, raise_again
from raysim.errors import RaysimError, RemoteError, ResourceError
from raysim.storage.remote.remote import Remote

if TYPE_CHECKING:
    from ray import ObjectRef

    # Tasks that fetch import this file; torch would take them seconds.
    from raysim.engine.plan.plan import Plan

log = logging.getLogger("raysim")

BLOCK_BYTES = 8 << 20
BLOCKS_AHEAD = 4
"""Blocks read before they are needed: a fetch holds no more than these in the object store."""


@dataclass(frozen=True)
class SentDataset:
    """A dataset that was sent.

    dataset: a reference to it; get it after its folders were fetched. places: the folders that it maps. node: the node
    that has them all. store: the URI of a store that may have them too. wait_s: how long to wait for that node's next
    block. kept: the dataset itself, whose memory workers that start later may map; only where it was sent from.
    """

    dataset: ObjectRef[FederatedDataset]
    places: tuple[SplitPlace, ...]
    node: str
    store: str | None
    wait_s: float
    kept: FederatedDataset | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "kept": None}


@dataclass(frozen=True)
class SentPlan:
    """A plan that was sent: `plan` has no data."""

    plan: Plan
    data: SentDataset


@dataclass(frozen=True)
class SentRuns:
    """The data of several runs, which a worker receives before the first segment.

    datasets: of the runs. log_level: of raysim's log, as in the process that started the runs.
    """

    datasets: tuple[SentDataset, ...]
    log_level: int


def send_plan(plan: Plan, wait_s: float, data: SentDataset | None = None) -> SentPlan:
    """Put a plan where every node can get it. Call it on the node with the data, see `send`, unless they were sent."""
    return _without_data(plan, data or send(plan.dataset, wait_s))


def _without_data(plan: Plan, data: SentDataset) -> SentPlan:
    without: Any = replace(plan, dataset=None)  # type: ignore[arg-type]
    return SentPlan(without, data)


def hand_over(plan: Plan, wait_s: float) -> SentPlan:
    """Put a plan where a process of this node can get it: other nodes fetch nothing."""
    return _without_data(plan, _put(plan.dataset, ray.get_runtime_context().get_node_id(), wait_s))


def receive_plan(sent: SentPlan) -> Plan:
    """Return the plan, on a node that may have to fetch its data first; see `receive`.

    Raises:
        ExperimentError: this process has other code of a script's parts.
    """
    from raysim.engine.plan import sent_code

    sent_code.check(sent.plan)
    return replace(sent.plan, dataset=receive(sent.data))


def send(dataset: FederatedDataset, wait_s: float) -> SentDataset:
    """Put a dataset where every node can get it; the present nodes fetch missing folders before this returns.

    Call it on the node with the data.

    Args:
        dataset: to send.
        wait_s: how long to wait for a node to begin, and then, for the next block. A node that does not begin is left
            out, with a warning: it fetches when a pool starts there.

    Raises:
        DataError: a file is damaged at its source.
        ResourceError: a node that fetches waited in vain for this one.
    """
    here = ray.get_runtime_context().get_node_id()
    own = _put(dataset, here, wait_s)
    others = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] != here and node["Resources"].get("CPU")]
    if not (own.places and others):
        return own
    # Before the pools start: a pool that fetches would seem not to start.
    fetches = [_on_node(_fetching, node["NodeID"], num_returns="streaming").remote(own) for node in others]
    begun: list[Any]
    begun, late = ray.wait(fetches, num_returns=len(fetches), timeout=wait_s)
    for fetch in begun:
        try:
            ray.get(list(fetch))
        except exceptions.RayTaskError as error:
            raise_again(error)
        except exceptions.RayError as error:
            # A lost node needs no data; if it returns, it fetches them when a pool starts there.
            log.warning("a node left while it fetched data: %s", error)
    for node, fetch in zip(others, fetches, strict=True):
        if fetch in late:
            ray.cancel(fetch)
            log.warning(
                "node %s (%s) has not begun to fetch the data in %g s (engine.wait_s), so the run goes on without it "
                "for now: it may be busy, or short of memory; Ray's logs say more",
                node["NodeID"],
                node["NodeManagerAddress"],
                wait_s,
            )
    return own


def _put(dataset: FederatedDataset, here: str, wait_s: float) -> SentDataset:
    with mapped_by_others() if own_ray.is_there() else nullcontext():
        put = ray.put(dataset)
    return SentDataset(put, _places(dataset), here, store_uri(), wait_s, dataset)


def receive(data: SentDataset) -> FederatedDataset:
    """Return the dataset, mapped from this node's disk; fetch it first if the disk has no complete copy.

    Raises:
        DataError: a file is damaged at its source, or its folder is gone or another dataset's by now.
        ResourceError: the node with the data does not send them.
    """
    _fetch(data)
    try:
        dataset: FederatedDataset = ray.get(data.dataset)
    except exceptions.RaySystemError as error:
        # Of an object that cannot be unpickled, Ray tells by an error of its own.
        raise own_cause(error) or error from None
    return dataset


def _fetching(data: SentDataset) -> Iterator[None]:
    """Fetch; the first value says that the process has started."""
    yield
    _fetch(data)


def _fetch(data: SentDataset) -> None:
    if data.node != ray.get_runtime_context().get_node_id():
        for place in data.places:
            if not _on_shared_disk(place):
                _fetch_one(place, data)


def _on_shared_disk(place: SplitPlace) -> bool:
    """Whether a folder outside the caches has the same path on this node."""
    if place.key != place.fingerprint:
        return False
    try:
        return bool(FederatedDataset.open(place.folder).fingerprint == place.fingerprint)
    except RaysimError:
        return False


def _fetch_one(place: SplitPlace, data: SentDataset) -> None:
    if data.store is not None:
        try:
            if take(place.key, place.fingerprint, Remote(data.store)) is not None:
                return
        except RemoteError as error:
            log.warning("the store cannot be read from this node, so its data come from the driver's: %s", error)
    fetch_copy(place.key, place.fingerprint, _OtherNode(place.folder, data.node, data.wait_s))


@dataclass(frozen=True)
class _OtherNode:
    """A folder on another node; see `CopySource`. wait_s: how long to wait for a block."""

    folder: str
    node: str
    wait_s: float

    @property
    def uri(self) -> str:
        return f"{self.folder} on the driver's node"

    def read(self, name: str) -> Iterator[bytes]:
        ahead = {"num_returns": "streaming", "_generator_backpressure_num_objects": BLOCKS_AHEAD}
        blocks = _on_node(_blocks, self.node, **ahead).remote(self.folder, name)
        while ray.wait([blocks], timeout=self.wait_s)[0]:
            if (block := next(blocks, None)) is None:
                return
            yield ray.get(block)
        ray.cancel(blocks)
        raise ResourceError(
            f"{self.uri} has not sent {name} on for {self.wait_s:g} s (engine.wait_s): that node, or the network "
            f"between, may be busy, or short of memory; Ray's logs say more."
        )


def _blocks(folder: str, name: str) -> Iterator[bytes]:
    with (Path(folder) / name).open("rb") as file:
        while block := file.read(BLOCK_BYTES):
            yield block


def _on_node(function: Any, node: str, **options: Any) -> Any:
    """The function as a task that runs there, besides whatever else does."""
    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(function).options(num_cpus=0, scheduling_strategy=there, **options)


def _places(dataset: FederatedDataset) -> tuple[SplitPlace, ...]:
    """Find the prepared folders to which a pickle of the dataset refers, however its splits are wrapped."""
    found: dict[str, SplitPlace] = {}

    def note(split: ArrowSplit) -> Any:
        found[split.place.key] = split.place
        return split.__reduce__()

    plain: Any = cloudpickle.CloudPickler
    noting = type("Noting", (plain,), {"dispatch_table": {**plain.dispatch_table, ArrowSplit: note}})
    # The pickle is discarded; arrays in memory are skipped.
    noting(io.BytesIO(), protocol=5, buffer_callback=lambda buffer: None).dump(dataset)
    return tuple(found.values())
