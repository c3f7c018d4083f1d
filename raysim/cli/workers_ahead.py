"""Begins to load what workers need before anything else is imported, if an experiment's file asks for workers."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from raysim.engine.on_ray.cluster import warm_workers

KEY = "engine.workers"


def workers_ahead(
    file: Path, changes: Sequence[str] | None, local: bool, address: str | None
) -> AbstractContextManager[object]:
    """Serve workers inside the block, if the run will begin on a Ray of its own.

    What is wrong with the file is said when it is read.
    """
    if local or address is not None:
        return nullcontext()
    values = [change.partition("=")[2] for change in changes or () if change.partition("=")[0].strip() == KEY]
    try:
        workers = int(values[-1]) if values else _of_file(file)
    except ValueError:
        workers = 0
    return warm_workers.serving() if workers > 0 else nullcontext()


def _of_file(file: Path) -> int:
    try:
        engine = tomllib.loads(file.read_text(encoding="utf-8")).get("engine", {})
    except (OSError, ValueError):
        return 0
    workers = engine.get("workers", 0) if isinstance(engine, dict) else 0
    return workers if isinstance(workers, int) else 0
