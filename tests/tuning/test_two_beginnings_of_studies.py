"""Two studies, or evolutions, that begin in one folder at the same time: one has it, and the other is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
import tuning

Make = Callable[..., raysim.Experiment]


def before_the_next(monkeypatch: pytest.MonkeyPatch, name: str, other: Callable[[], object]) -> None:
    """Have another one come before the next call of this function."""
    module, _, own = name.rpartition(".")
    target = __import__(module, fromlist=[own])
    function = getattr(target, own)

    def after_other(*given: Any) -> Any:
        monkeypatch.setattr(name, function)
        other()
        return function(*given)

    monkeypatch.setattr(name, after_other)


def test_studies_of_two_names(
    tuned: Make, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tune(name: str) -> tuning.Study:
        return tuning.tune(tuned(final=0).changed({"name": name, "rounds": 1}), dataset=small, path=tmp_path / "study")

    before_the_next(monkeypatch, "tuning.opening.open_storage", lambda: tune("other"))
    with pytest.raises(tuning.StudyError, match="is the folder of the study 'other'"):
        tune("own")
    assert tuning.read(tmp_path / "study").name == "other"
    # It has left nothing in the other's storage.
    assert tune("other").name == "other"


def test_evolutions(
    tuned: Make, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = tuned(evolution={"members": 2}, space={"client.optimizer.lr": {"log": [1e-3, 3.0]}})
    keys = keys.changed({"rounds": 2, "evaluation.every": 1})

    def evolve(seed: int) -> tuning.Evolution:
        return tuning.evolve(keys.changed({"seed": seed}), dataset=small, path=tmp_path / "own")

    found = []
    before_the_next(monkeypatch, "tuning.evolution.locked", lambda: found.append(evolve(1)))
    with pytest.raises(tuning.StudyError, match=r"has members with other settings: .*seed was 1, and is 2"):
        evolve(2)
    assert evolve(1).table == found[0].table


def test_a_foreign_folder_gets_nothing(tuned: Make, small: raysim.FederatedDataset, tmp_path: Path) -> None:
    keys = tuned(evolution={"members": 2}, space={"client.optimizer.lr": {"log": [1e-3, 3.0]}})
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(tuning.StudyError, match="holds something else"):
        tuning.evolve(keys.changed({"rounds": 2, "evaluation.every": 1}), dataset=small, path=tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_a_study_on_a_table_is_none_of_a_run(
    tuned: Make, small: raysim.FederatedDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tuning.make_table(tuned().changed({"rounds": 1}), tmp_path / "table.parquet", dataset=small)
    run = raysim.run(tuned().changed({"rounds": 1, "tuning": None}), dataset=small, path=tmp_path / "run")
    with pytest.raises(tuning.StudyError, match="is a run's folder"):
        tuning.tune_on(tuned().changed({"rounds": 1}), tuning.read_table(tmp_path / "table.parquet"), path=run.path)
