"""Records as raysim writes them, with their checksum: what tests change in one is content, not damage."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from raysim.storage import sealed


def write(file: Path, record: Mapping[str, Any]) -> None:
    """Write a record, which may have been read from such a file."""
    sealed.write(file, json.dumps({"checksum": sealed.BLANK, **record}).encode())
