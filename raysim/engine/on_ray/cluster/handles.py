"""Defines the types of an actor's methods as its handle has them, and ends an actor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar, cast

import ray

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

P = ParamSpec("P")
T = TypeVar("T")


class RemoteMethod(Protocol[P, T]):
    """A method of an actor."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> ObjectRef[T]:
        """Call it, without waiting."""
        ...


class GroupedMethod(RemoteMethod[P, T], Protocol[P, T]):
    """A method that can be called in a concurrency group of its actor."""

    def options(self, *, concurrency_group: str) -> RemoteMethod[P, T]:
        """Return the method in that group."""
        ...


class SeveralResults(Protocol[P]):
    """A method of which each result is an object of its own."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Sequence[ObjectRef[object]]:
        """Call it, without waiting."""
        ...


class ApartMethod(Protocol[P]):
    """A method of an actor that returns several objects."""

    def options(self, *, num_returns: int) -> SeveralResults[P]:
        """Return the method with that number of objects."""
        ...


def kill(handle: object) -> None:
    """End an actor by its handle, without waiting."""
    ray.kill(cast("ActorHandle[Any]", handle))
