"""The columns that say where a round's time went."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import raysim
from raysim.run_folder import cost_columns
from raysim.run_folder.writer import RunFolder

Make = Callable[..., raysim.Experiment]

ONE_AFTER_ANOTHER = ("sample", "plan", "submit", "train", "step", "write", "evaluate")
PARTS = ("put", "fold")
"""Of submit and of train."""
WRITE_S = 0.02


@pytest.fixture
def rows(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]]:
    """Of a run in which writing a row takes at least `WRITE_S`."""
    add = RunFolder.add

    def slowly(self: RunFolder, row: Mapping[str, Any], clients: pa.Table | None, spans: Any = ()) -> None:
        time.sleep(WRITE_S)
        add(self, row, clients, spans)

    monkeypatch.setattr(RunFolder, "add", slowly)
    made = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run", progress=False)
    return made.rounds.to_pylist()


def test_a_row_has_every_phase_and_together_they_are_no_longer_than_the_round(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        seconds = {name: row[f"seconds/{name}"] for name in (*ONE_AFTER_ANOTHER, *PARTS)}
        assert min(seconds.values()) >= 0
        assert sum(seconds[name] for name in ONE_AFTER_ANOTHER) <= row["wall_time_s"]
        assert seconds["put"] <= seconds["submit"]
        assert seconds["fold"] <= seconds["train"]


def test_a_row_says_what_it_took_to_write_the_round_before(rows: list[dict[str, Any]]) -> None:
    first, *later = [row["seconds/write"] for row in rows]
    assert first == 0
    assert min(later) >= WRITE_S


def test_it_is_a_cost_which_equal_runs_need_not_share() -> None:
    assert cost_columns.tells_cost("seconds/write")
