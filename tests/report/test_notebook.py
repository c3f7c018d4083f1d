"""Results in a notebook: what IPython asks an object for."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import raysim
from raysim.report import notebook
from raysim.run_folder.rows import table

Make = Callable[..., raysim.Experiment]


def test_a_result_is_the_closing_table_and_the_curve(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    shown = result._repr_html_()
    assert shown is not None
    assert re.search(r"<th [^>]*>rounds</th><td [^>]*>4</td>", shown)
    assert shown.count('src="data:image/png;base64,') == 1
    assert repr(result) == f"Result(path={result.path!r}, stopped=None)"


class Terminal:
    """As IPython's printer."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def test_on_a_terminal_of_ipython_a_result_is_as_it_is_printed(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result, other = (
        raysim.run(experiment(cohort={"size": size}), dataset=dataset, path=tmp_path / f"{size}") for size in (2, 3)
    )
    for each in (result, raysim.compare(result.path, other.path)):
        terminal = Terminal()
        each._repr_pretty_(terminal, False)
        assert terminal.shown == str(each)


def test_trials_show_mean_and_deviation(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    result = raysim.run_trials(experiment(trials=2), dataset=dataset, path=tmp_path / "all")
    shown = result._repr_html_()
    assert shown is not None
    assert re.search(r"<th [^>]*>test</th><td [^>]*>accuracy \d+\.\d % \+- \d+\.\d % \(after round 4\)", shown)
    assert re.search(r"^test +accuracy \d+\.\d % \+- \d+\.\d % \(after round 4\)$", str(result), re.MULTILINE)
    assert repr(result) == f"TrialsResult(path={result.path!r})"
    shutil.rmtree(result.path)
    assert result._repr_html_() is None
    assert str(result) == f"folder  {result.path}"


def test_a_sweep_shows_its_points_and_its_picture(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result = raysim.run_sweep(experiment(), {"seed": [1, 2]}, dataset=dataset, path=tmp_path / "all", executor="local")
    shown = result._repr_html_()
    assert shown is not None
    assert len(re.findall(r"; test accuracy \d", shown)) == 2
    assert shown.count('src="data:image/png;base64,') == len(list(result.path.glob("*.png"))) > 0
    assert repr(result) == f"SweepResult(path={result.path!r})"
    assert len(re.findall(r"^seed=[12] .*; test accuracy \d", str(result), re.MULTILINE)) == 2
    shutil.rmtree(result.path)
    assert result._repr_html_() is None
    assert str(result) == f"folder  {result.path}"


def test_without_its_folder_a_result_has_its_plain_form(
    experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    shutil.rmtree(result.path)
    assert result._repr_html_() is None


def test_what_is_named_from_outside_is_text_and_no_picture_is_drawn_of_nothing() -> None:
    shown = notebook.html([("folder", "a<b>")], table([]), "title")
    assert "a&lt;b&gt;" in shown
    assert "<img" not in shown


def test_tables_open_in_pandas_and_polars(experiment: Make, dataset: raysim.FederatedDataset, tmp_path: Path) -> None:
    import pytest

    result = raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert isinstance(result.rounds.to_pandas(), pandas.DataFrame)
    polars = pytest.importorskip("polars", reason="polars is not installed")
    assert polars.from_arrow(result.rounds)["loss"].to_list() == result.rounds["loss"].to_pylist()


def test_a_printed_round_is_a_line_with_its_figures(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    first, second, *_ = raysim.rounds(experiment(evaluation={"every": 2}), dataset=dataset, executor="local")
    assert re.fullmatch(r"Round\(index=0, loss \d\.\d+, accuracy \d+\.\d %\)", repr(first))
    assert re.fullmatch(r"Round\(index=1, loss \d\.\d+, accuracy \d+\.\d %, test \d+\.\d %\)", str(second))
    spoilt = replace(second, metrics={"loss": None, "accuracy": None}, rejected=("a", "b"))
    assert repr(spoilt) == "Round(index=1, no update accepted, 2 updates rejected)"


def test_a_printed_result_is_the_closing_table_and_an_experiment_its_keys(tmp_path: Path) -> None:
    exp = raysim.Experiment.model_validate(
        {
            "name": "printed",
            "rounds": 1,
            "data": {"name": "digits", "clients": 10},
            "model": {"name": "linear"},
            "cohort": {"size": 2},
        }
    )
    *_, model, cohort = repr(exp).splitlines()
    assert (model, cohort) == ('model = {name = "linear"}', "cohort = {size = 2}")
    result = raysim.run(exp, path=tmp_path / "run", executor="local")
    printed = dict(line.split(maxsplit=1) for line in str(result).splitlines())
    assert printed["experiment"] == "printed"
    assert printed["folder"] == str(tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    assert str(result) == f"folder  {tmp_path / 'run'}"
