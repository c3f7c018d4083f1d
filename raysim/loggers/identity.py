"""Which run of a tracking service a run's folder is: a resumed run goes on there, one that starts afresh is new."""

from __future__ import annotations

import json
from pathlib import Path

from raysim import whole

FILE = "loggers.json"


def stored(path: Path, service: str) -> str | None:
    """The run's id with the service; None where it has none yet."""
    file = path / FILE
    found = json.loads(file.read_text()).get(service) if file.exists() else None
    return None if found is None else str(found)


def store(path: Path, service: str, identity: str) -> None:
    """Keep the run's id with the service in its folder."""
    file = path / FILE
    known = json.loads(file.read_text()) if file.exists() else {}
    whole.write_text(file, json.dumps({**known, service: identity}, indent=2) + "\n")
