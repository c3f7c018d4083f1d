"""What a study says while it goes on."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tuning.objective import Objective
from tuning.progress import StudyProgress


def said(objective: Objective, *ended: tuple[int, str, float | None, dict[str, Any]]) -> list[str]:
    out = io.StringIO()
    with StudyProgress(objective, Console(file=out, soft_wrap=True), has_bar=False) as progress:
        progress.expects(10)
        for each in ended:
            progress.ended(*each)
            progress.finished(5)
    return out.getvalue().splitlines()


def test_a_line_for_every_trial_says_whether_it_is_the_best() -> None:
    lines = said(
        Objective(),
        (0, "finished", 0.5, {"client.optimizer.lr": 0.1}),
        (1, "diverged", None, {"client.optimizer.lr": 1000.0}),
        (2, "finished", 0.25, {"client.optimizer.lr": 0.01}),
        (3, "finished", 0.75, {"client.optimizer.lr": 0.3}),
    )
    assert [line.split() for line in lines] == [
        ["trial", "0", "50.0", "%", "client.optimizer.lr", "=", "0.1", "(best", "so", "far)"],
        ["trial", "1", "diverged", "client.optimizer.lr", "=", "1000"],
        ["trial", "2", "25.0", "%", "client.optimizer.lr", "=", "0.01"],
        ["trial", "3", "75.0", "%", "client.optimizer.lr", "=", "0.3", "(best", "so", "far)"],
    ]


def test_of_losses_the_smallest_is_the_best() -> None:
    lines = said(Objective(name="loss"), (0, "finished", 2.5, {}), (1, "finished", 3.5, {}), (2, "finished", 0.5, {}))
    assert ["best" in line for line in lines] == [True, False, True]


def test_it_is_silent_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    # Under a test standard error is not a terminal.
    for wanted, lines in ((False, 0), (None, 0), (True, 1)):
        with StudyProgress.where_wanted(wanted, Objective()) as progress:
            progress.expects(5)
            progress.ended(0, "diverged", None, {})
            progress.finished(5)
        assert len(capsys.readouterr().err.splitlines()) == lines
