"""What a driver tells those who watch: news while its run goes on, and what the run leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from raysim.engine.under_way import Stage


@dataclass(frozen=True)
class News:
    """What a watcher has not heard yet.

    workers: where they run; empty until they have started. rows: of the rounds that were finished since. seen: what to
    ask with next; None before the run knows where it goes on.
    """

    stage: Stage
    workers: tuple[str, ...]
    rows: tuple[Mapping[str, Any], ...]
    seen: int | None


@dataclass(frozen=True)
class Remains:
    """What an ended run leaves.

    params: by name, packed to travel. rounds, clients: the tables on record. behind: see `UnderWay`.
    """

    params: Any
    rounds: pa.Table
    clients: pa.Table
    behind: str | None
