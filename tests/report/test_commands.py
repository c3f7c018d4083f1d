"""`raysim report` and `raysim compare`, as a user meets them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from raysim.cli import app
from raysim.cli.output import FAILED, MISUSED
from tests.support.run_folders import accuracies, write


class Called:
    """The command line's answer."""

    def __init__(self, *arguments: str) -> None:
        result = CliRunner().invoke(app, arguments)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.out, self.err = result.exit_code, result.stdout, result.stderr


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two methods with two seeds each, one run of which is still going."""
    for size in (5, 10):
        for seed in range(2):
            values = accuracies(0.5, 0.01 * size + 0.5 + 0.1 * seed)
            write(tmp_path / "runs" / f"{size}-{seed}", values, cohort={"size": size}, seed=seed)
    write(tmp_path / "runs" / "20-0", accuracies(0.5, 0.6), cohort={"size": 20}, rounds=9)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("runs")
def test_report_says_where_the_page_is_and_what_to_know_of_it() -> None:
    called = Called("report", "runs")
    assert called.code == 0
    assert called.out.startswith("runs/report/index.html, ")
    assert Path("runs/report/index.html").is_file()
    assert called.err == (
        "note: runs/20-0 has finished 2 of 9 rounds: it is still going, or was stopped, and is shown as far as it is.\n"
    )


@pytest.mark.usefixtures("runs")
def test_a_report_of_several_folders_goes_where_it_is_told() -> None:
    called = Called("report", "runs/5-0", "runs/10-0", "--out", "elsewhere", "--target", "0.52")
    assert called.code == 0
    text = Path("elsewhere/index.html").read_text()
    assert "The target is 52.0 % (given)." in text


@pytest.mark.usefixtures("runs")
def test_compare_prints_a_table_for_every_figure() -> None:
    called = Called("compare", "runs/5-0", "runs/5-1", "runs/10-0", "runs/10-1")
    assert called.code == 0
    head, *rows = called.out.splitlines()
    assert head == "eval/test/accuracy, after round 2"
    assert rows[2].startswith("cohort.size = 10       2  65.0 %  7.1 %")
    assert rows[2].split()[-3:-1] == ["points", "2"]
    assert Called("compare", "runs", "--format", "markdown", "--test", "wilcoxon").out.count("| --- |") == 1


@pytest.mark.usefixtures("runs")
def test_what_cannot_be_done_is_a_message_and_a_code() -> None:
    for arguments, said in {
        ("report", "nowhere"): "There is no folder nowhere.",
        ("compare", "runs/5-0", "runs/5-1"): "two methods must have the figure 'eval/test/accuracy', but got 1",
        ("compare", "runs", "--metric", "eval/test/los"): "got 0 with it",
    }.items():
        called = Called(*arguments)
        assert called.code == MISUSED != FAILED
        assert called.err.splitlines()[-1].startswith("error: ")
        assert said in called.err
