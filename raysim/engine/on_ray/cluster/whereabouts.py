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


def line(place: Whereabouts, nodes: Sequence[str]) -> str:
    """Return the line for a worker that has started; beside the first of `nodes`, with the node's number in records."""
    index = len(nodes) if place.node not in nodes else nodes.index(place.node)
    return f"{place.name} on {place.address}" + (f", node {index}" if index else "")
