"""Keys that a table in place of training cannot follow are refused, or said to have no part."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
import tuning

STOP = {"stop": {"budget": {"rounds": 1}}}


@pytest.fixture(scope="module")
def exp() -> raysim.Experiment:
    return raysim.Experiment(
        name="tiny",
        rounds=2,
        data={"name": "digits", "clients": 10},
        model={"name": "linear"},
        cohort={"size": 5},
        engine={"workers": 0},
        tuning={"space": {"client.optimizer.lr": {"grid": [0.01, 0.1]}}, "budget": {"rounds": 4}},
    )


@pytest.fixture(scope="module")
def table(exp: raysim.Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuning.PublishedTable:
    """The table of two configurations; its file is read once."""
    folder = tmp_path_factory.mktemp("grid")
    return tuning.make_table(exp, folder / "t.parquet", folder=folder / "grid", storage=f"journal:{folder / 'log'}")


def played(exp: raysim.Experiment, table: tuning.PublishedTable, path: Path) -> None:
    tuning.tune_on(exp, table, path=path)


def compared(exp: raysim.Experiment, table: tuning.PublishedTable, path: Path) -> None:
    tuning.compare(exp, table, ["random"], studies=1)


Read = Callable[[raysim.Experiment, tuning.PublishedTable, Path], None]
BOTH = pytest.mark.parametrize(("read", "command"), [(played, "raysim tune --table"), (compared, "raysim tuners")])


@BOTH
@pytest.mark.parametrize(
    ("keys", "why"),
    [
        (STOP, r"A table has every round of every run, but \[stop\] would end some before: remove it"),
        ({"tuning.holdout": 0.5}, "it has data.holdout = 0.2, and the study has tuning.holdout = 0.5"),
        ({"data.holdout": 0.4}, "it has data.holdout = 0.2, and the study has data.holdout = 0.4"),
    ],
)
def test_what_the_runs_of_the_table_do_not_have_is_refused(
    exp: raysim.Experiment,
    table: tuning.PublishedTable,
    keys: dict[str, Any],
    why: str,
    read: Read,
    command: str,
    tmp_path: Path,
) -> None:
    with pytest.raises(raysim.ExperimentError, match=why):
        read(exp.changed(keys), table, tmp_path / "study")
    assert not (tmp_path / "study").exists()


@BOTH
@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({}, None),
        ({"tuning.final": 0, "tuning.concurrent": 1, "data.holdout": 0.2, "evaluation.every": 1}, None),
        ({"tuning.final": 2, "tuning.storage": "journal:log"}, "does not use tuning.storage, tuning.final: nothing is"),
        ({"tuning.concurrent": 8, "tuning.record_test": True}, "tuning.concurrent, tuning.record_test: nothing is"),
        ({"evaluation.every": 2}, "evaluation.every = 2 has no part in {command}: a table is evaluated after every"),
        ({"evaluation.examples": 9}, "evaluation.examples = 9 has no part in {command}"),
        ({"trials": 3}, "trials = 3 has no part in {command}: the table has the runs of its own seeds"),
    ],
)
def test_what_has_no_part_in_it_is_said(
    exp: raysim.Experiment,
    table: tuning.PublishedTable,
    keys: dict[str, Any],
    said: str | None,
    read: Read,
    command: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING, "raysim"):
        read(exp.changed(keys), table, tmp_path / "study")
    assert len(caplog.messages) == (said is not None)
    if said is not None:
        assert said.format(command=command) in caplog.messages[0]
        assert command in caplog.messages[0]


def test_a_sampler_of_the_file_is_none_of_the_tuners(
    exp: raysim.Experiment, table: tuning.PublishedTable, caplog: pytest.LogCaptureFixture
) -> None:
    own = exp.changed({"tuning.sampler": {"name": "tpe", "startup": 1}, "tuning.pruner": {"name": "none"}})
    with caplog.at_level(logging.WARNING, "raysim"):
        tuning.compare(own, table, ["tpe"], studies=1)
    assert caplog.messages == [
        "raysim tuners does not use tuning.sampler, tuning.pruner: tuners are those of --tuner, with their default keys"
    ]


def test_a_table_is_of_the_whole_grid_whatever_else_is_asked(
    exp: raysim.Experiment, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = exp.changed({"tuning.trials": 1, "tuning.sampler": {"name": "grid"}, "tuning.pruner": {"name": "none"}})
    with caplog.at_level(logging.WARNING, "raysim"):
        made = tuning.make_table(
            asked, tmp_path / "t.parquet", folder=tmp_path / "grid", storage=f"journal:{tmp_path / 'log'}"
        )
    assert len(made.rows) == 2
    assert caplog.messages == [
        "raysim table does not use tuning.budget, tuning.trials: a table has all 2 configurations of the grid, each to "
        "the last round"
    ]


def test_a_study_on_other_data_says_what_it_does_not_search_by(
    exp: raysim.Experiment, table: tuning.PublishedTable, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tuning.tune_on(exp, table, path=tmp_path / "study")
    with caplog.at_level(logging.WARNING, "raysim"):
        tuning.proxy(tmp_path / "study", exp, path=tmp_path / "here", table=table)
    assert caplog.messages == [
        f"raysim proxy does not use tuning.budget: it tries the configurations of {tmp_path / 'study'}, each to the "
        f"last round"
    ]


def test_keys_of_a_call_are_those_of_the_file(exp: raysim.Experiment, tmp_path: Path) -> None:
    how: dict[str, Any] = {"folder": tmp_path / "grid", "storage": f"journal:{tmp_path / 'log'}"}
    keys: dict[str, Any] = {"seeds": 2, "holdout": 0.4, "trials": 1, "final": 2, "sampler": {"name": "random"}}
    made = tuning.make_table(exp, tmp_path / "t.parquet", **keys, **how)
    assert (len(made.rows), made.seeds) == (2, (0, 1))
    assert made.experiment.data is not None
    assert made.experiment.data.model_dump()["holdout"] == 0.4
    assert not (tmp_path / "grid" / "final").exists()
    tuning.tune_on(exp, made, path=tmp_path / "study", seeds=2, holdout=0.4, budget={"rounds": 8})
    found = tuning.proxy(tmp_path / "study", exp, path=tmp_path / "here", table=made, seeds=2, holdout=0.4, trials=1)
    assert len(found.here) == len(found.tried) == 2


def test_a_table_lies_where_it_was_asked_for_when_a_part_changes_the_working_folder(
    exp: raysim.Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    def linear() -> torch.nn.Module:
        os.chdir(elsewhere)
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    own = exp.changed({"model": None, "tuning.storage": "journal:log"})
    tuning.make_table(own, Path("t.parquet"), folder=Path("grid"), model=linear)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["elsewhere", "grid", "log", "t.md", "t.parquet"]
    assert not [*elsewhere.iterdir()]
