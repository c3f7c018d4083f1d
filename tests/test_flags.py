"""What is no truth value is refused in the place of one: any text counts as true."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

import raysim
import tuning
from raysim.config.flag import check_flag
from raysim.errors import ExperimentError


def doors() -> Iterator[tuple[str, Callable[..., Any], str]]:
    """Each public function with each of its arguments that is a truth value."""
    for package in (raysim, tuning):
        for name in package.__all__:
            function = getattr(package, name)
            if inspect.isfunction(function):
                for flag, kind in get_type_hints(inspect.unwrap(function)).items():
                    if kind in (bool, bool | None) and flag != "return":
                        yield name, function, flag


DOORS = [*doors()]


def test_there_are_such_doors() -> None:
    assert {("run", "overwrite"), ("export", "best"), ("tune", "retry_failed")} <= {(n, flag) for n, _, flag in DOORS}


@pytest.mark.parametrize(("name", "function", "flag"), DOORS, ids=[f"{name}-{flag}" for name, _, flag in DOORS])
def test_text_is_no_truth_value(
    name: str, function: Callable[..., Any], flag: str, tmp_path: Path, experiment: Callable[..., raysim.Experiment]
) -> None:
    by_place = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD and each.default is inspect.Parameter.empty
    ]
    others: dict[str, Any] = {"space": {"client.optimizer.lr": [0.1]}} if name == "tune" else {}
    given = [experiment() if each.name == "experiment" else tmp_path / each.name for each in by_place]
    with pytest.raises(ExperimentError, match=f"{flag} must be True or False, but got 'no'"):
        function(*given, **others, **{flag: "no"})
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("flag", ["resume", "overwrite", "profile"])
def test_text_is_no_truth_value_for_runs_that_share_workers(
    flag: str, tmp_path: Path, experiment: Callable[..., raysim.Experiment]
) -> None:
    small = experiment()
    given: dict[str, Any] = {flag: "no"}
    with raysim.Runs(small) as runs, pytest.raises(ExperimentError, match=f"{flag} must be True or False"):
        runs.start([(small, tmp_path / "run")], **given)
    with pytest.raises(ExperimentError, match="together must be True or False, but got 'no'"):
        raysim.Runs(small, together="no")  # type: ignore[arg-type]


def test_truth_values_of_numpy_are_taken() -> None:
    check_flag("overwrite", np.bool_(True))
    others: list[object] = [1, 0.0, "", [], np.int64(1)]
    for other in others:
        with pytest.raises(ExperimentError, match="overwrite must be True or False"):
            check_flag("overwrite", other)
