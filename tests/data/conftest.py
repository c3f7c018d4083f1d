"""No test reads or fills the user's cache."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of this test's own."""
    root = tmp_path / "cache"
    monkeypatch.setenv("RAYSIM_CACHE", str(root))
    return root
