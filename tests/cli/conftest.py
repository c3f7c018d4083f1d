"""The command in a working folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command import Raysim

EXPERIMENT = """
name = "tiny"
rounds = 2
[data]
name = "digits"
clients = 20
[model]
name = "linear"
[cohort]
size = 5
[evaluation]
every = 1
[engine]
workers = 0
"""


@pytest.fixture
def raysim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raysim:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return Raysim(tmp_path)
