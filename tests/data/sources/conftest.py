"""Files as publishers have them, small, and the public ones where they are at hand."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def public() -> Callable[[str], Path]:
    """The folder of a public dataset; the test is skipped where RAYSIM_DATA does not hold it."""

    def folder(name: str) -> Path:
        root = Path(os.environ.get("RAYSIM_DATA", "")) / name
        if "RAYSIM_DATA" not in os.environ or not root.is_dir():
            pytest.skip(f"RAYSIM_DATA does not name a folder with {name}/")
        return root

    return folder
