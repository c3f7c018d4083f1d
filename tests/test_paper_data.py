"""Commands of the papers' page that change the data run on small files in the form of the published ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.support import small_round
from tests.support.paper_commands import commands

LINEAR = 'model={name="linear"}'
"""tests/test_configs.py runs the model."""


def rows(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *smaller: str) -> list[dict[str, Any]]:
    """Run a round of the command's last point; returns the rows by client."""
    (command,) = (command for command in commands() if command.label == label)
    result = small_round.run(command.points[-1].changed(list(smaller)), tmp_path, monkeypatch)
    (row,) = result.rounds.to_pylist()
    assert math.isfinite(row["loss"])
    assert 0 <= row["eval/test/accuracy"] <= 1
    found: list[dict[str, Any]] = result.clients.to_pylist()
    return found


@pytest.mark.parametrize(("label", "count"), [("L2", 4), ("L42", 100)])
def test_the_test_clients_of_cifar100_are_others_than_those_that_train(
    label: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tested = rows(label, tmp_path, monkeypatch, LINEAR)
    assert {row["client"] for row in tested} == {f"test-{number}" for number in range(count)}


def test_photographers_give_their_photographs_to_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = (command for command in commands() if command.label == "W29")
    assert [point.data.mix for point in command.points] == [0.0, 0.25, 0.5, 0.75, 1.0]  # type: ignore[union-attr]
    assert rows("W29", tmp_path, monkeypatch, LINEAR)


@pytest.mark.parametrize("label", ["W25", "W26"])
def test_so_many_test_examples_are_scored(label: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ['model={name="lstm_word",embedding=4,hidden=4}', "data.vocabulary=50", "evaluation.examples=5"]
    scored = rows(label, tmp_path, monkeypatch, *small)
    assert sum(row["examples"] for row in scored) == 5


def test_clients_can_be_drawn_without_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows("W30", tmp_path, monkeypatch)
