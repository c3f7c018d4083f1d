"""Defines the place where a worker runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import ray


@dataclass(frozen=True)
class Whereabouts:
    """name: of the worker, for messages. address: of its node. node: the node's identity in Ray."""

    name: str
    address: str
    node: str


def here(name: str) -> Whereabouts:
    """Return the place of this process."""
    return Whereabouts(name, ray.util.get_node_ip_address(), ray.get_runtime_context().get_node_id())


def listed(places: Sequence[Whereabouts], nodes: Sequence[str]) -> list[str]:
    """Return a line for each worker; on several nodes, with the node's number in `nodes`, as in the records."""
    several = len({place.node for place in places} | set(nodes)) > 1
    named = [f"{place.name} on {place.address}" for place in places]
    return [f"{name}, node {nodes.index(p.node)}" for name, p in zip(named, places, strict=True)] if several else named
