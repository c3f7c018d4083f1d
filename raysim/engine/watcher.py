"""Who is told how a run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Watcher:
    """What is told of a run.

    started: once, where its workers run. row: every finished round.
    """

    started: Callable[[list[str]], None]
    row: Callable[[Mapping[str, Any]], None]


NO_WATCHER = Watcher(lambda workers: None, lambda row: None)
