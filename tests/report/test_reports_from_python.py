"""`raysim.make_report`, `compare` and `best` make what the commands make, and a notebook shows it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"targets": [50.0]}, r"targets must be accuracies from 0 to 1, such as \[0\.9\], but got \[50\.0\]"),
        ({"targets": [float("nan")]}, "targets must be accuracies from 0 to 1"),
        ({"targets": 0.5}, "targets must be accuracies from 0 to 1"),
        ({"targets": "0.5"}, "targets must be accuracies from 0 to 1"),
        ({"test": "z"}, "test must be 't' or 'wilcoxon', but got 'z'"),
        ({"last": 1.5}, r"last must be an integer, but got 1\.5"),
        ({"last": True}, "last must be an integer, but got True"),
        ({"by": "accuracy", "after": [0]}, "after must be numbers of rounds"),
        ({"by": "accuracy", "after": [2.5]}, "after must be numbers of rounds"),
        ({"by": "accuracy", "after": 2}, "after must be numbers of rounds"),
    ],
)
def test_values_that_the_commands_refuse_are_refused(
    arguments: dict[str, Any], said: str, sweep: Path, tmp_path: Path
) -> None:
    call: Any = raysim.best if "by" in arguments else raysim.make_report if "targets" in arguments else raysim.compare
    where = {} if call is raysim.compare else {"out": tmp_path / "out"}
    with pytest.raises(raysim.ExperimentError, match=said):
        call(sweep / SMALL, sweep / LARGE, **arguments, **where)
    assert not list(tmp_path.iterdir())


def test_one_text_is_not_taken_for_its_letters(sweep: Path) -> None:
    few: Any = f"{sweep / SMALL}=few"
    one: Any = "loss"
    (table,) = raysim.compare(sweep / SMALL, sweep / LARGE, metrics=one, labels=few).tables
    assert (table.metric, table.methods[0].label) == ("loss", "few")
    folders: Any = [sweep / SMALL, sweep / LARGE]
    with pytest.raises(TypeError, match=r"A folder must be a path or URI, but got \[.*such as 'runs/a', 'runs/b'"):
        raysim.compare(folders)
