"""`raysim.make_report`, `compare` and `best` make what the commands make, and a notebook shows it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import raysim
from tests.support.command import Raysim

SMALL, LARGE = "cohort.size=4,lr=0.1", "cohort.size=16,lr=0.1"


@pytest.fixture
def command(tmp_path: Path) -> Raysim:
    return Raysim(tmp_path)


def test_a_report_lies_in_the_folder_and_is_a_link(sweep: Path, tmp_path: Path) -> None:
    made = raysim.make_report(
        sweep / SMALL, sweep / LARGE, out=tmp_path, labels=[f"{sweep / SMALL}=few"], monotone=True
    )
    text = made.page.read_text()
    assert made.page == tmp_path / "index.html"
    assert "few" in text
    assert made.figures == len(list((tmp_path / "figures").glob("*.svg"))) > 10
    assert f'<a href="{made.page}">' in made._repr_html_()


def test_a_comparison_is_the_command_s_table(sweep: Path, command: Raysim) -> None:
    folders = [str(sweep / SMALL), str(sweep / LARGE)]
    compared = raysim.compare(*folders, metrics=["loss"], test="wilcoxon")
    assert command("compare", *folders, "--metric", "loss", "--test", "wilcoxon") == 0
    assert command.out.strip() == compared.written()
    assert str(compared).endswith(compared.written())
    (table,) = compared.tables
    assert [method.trials for method in table.methods] == [2, 2]
    assert table.methods[1].difference is not None
    assert f"| {table.methods[1].label} | 2 |" in compared._repr_markdown_()


def test_best_methods_are_the_command_s_and_a_notebook_shows_their_pictures(
    sweep: Path, command: Raysim, tmp_path: Path
) -> None:
    chosen = raysim.best(sweep, by="accuracy", after=[6, 12], out=tmp_path / "a")
    again = ("best", str(sweep), "--by", "accuracy", "--after", "6", "--after", "12", "--out", str(tmp_path / "a"))
    assert command(*again) == 0
    assert command.out.splitlines() == list(chosen.lines)
    assert len(chosen.pictures) == 2
    html = chosen._repr_html_()
    assert len(re.findall("<img ", html)) == 2
    assert "second best" in html


def test_calls_without_folders_or_scores_say_what_to_pass(sweep: Path) -> None:
    with pytest.raises(TypeError, match=r"No folder is given: .* such as 'runs/a', 'runs/b'"):
        raysim.compare()
    with pytest.raises(TypeError, match=r"best\(\) missing .*'by': .*by='eval/validation/accuracy'"):
        raysim.best(sweep)  # type: ignore[call-arg]
