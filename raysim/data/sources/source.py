"""A source without clients of its own, found but not yet read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from raysim.data.sources.examples import Examples


class Source(NamedTuple):
    """`address` is JSON-able and determines the content; `load` reads and checks the files."""

    address: dict[str, Any]
    load: Callable[[], Examples]
