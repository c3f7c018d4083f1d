"""Every file under configs/ is valid and runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import raysim

FILES = sorted((Path(__file__).parent.parent / "configs").rglob("*.toml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_round_of_the_file(file: Path, tmp_path: Path) -> None:
    exp = raysim.load(file, ["rounds=1", "engine.workers=0"])
    if exp.data is not None and exp.data.name in ("mnist", "fashion_mnist") and "RAYSIM_DATA" not in os.environ:
        pytest.skip("needs the public files: set RAYSIM_DATA to the folder that holds them")
    result = raysim.run(exp, path=tmp_path / "run")
    assert result.rounds.num_rows == 1
    assert 0 < result.rounds["eval/test/accuracy"][0].as_py() < 1
