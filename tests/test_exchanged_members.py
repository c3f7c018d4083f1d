"""Folders of a series that were exchanged, or copied over one another, are not read as runs of their new places."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import raysim
from raysim.errors import RunFolderError
from raysim.report import runs
from tests.support.run_folders import accuracies, experiment, write

Change = Callable[[Path, Path], None]

OF_SWEEPS: list[dict[str, list[Any]]] = [
    {"cohort.size": [2, 3]},
    {"rounds": [1, 2]},
    {"stop.budget.rounds": [1, 2]},
    {"client.correction": [{"name": "prox", "mu": 0.1}, {"name": "prox", "mu": 0.2}]},
]


def exchange(one: Path, other: Path) -> None:
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def copy_over(one: Path, other: Path) -> None:
    shutil.rmtree(other)
    shutil.copytree(one, other)


both = pytest.mark.parametrize("change", [exchange, copy_over])


@both
@pytest.mark.parametrize("values", OF_SWEEPS, ids=lambda values: next(iter(values)))
def test_points_of_a_sweep(change: Change, values: dict[str, list[Any]], tmp_path: Path) -> None:
    made = raysim.run_sweep(experiment(engine={"workers": 0}), values, path=tmp_path / "all", progress=False)
    assert len(raysim.read(tmp_path / "all").points) == 2  # type: ignore[union-attr]
    change(*(point.path for point in made.points))
    calls: list[Callable[[], object]] = [
        lambda: raysim.read(tmp_path / "all"),
        lambda: raysim.run_sweep(experiment(engine={"workers": 0}), values, path=tmp_path / "all", resume=True),
    ]
    for call in calls:
        with pytest.raises(
            RunFolderError, match=r"holds another run than .* has as .*Folders were exchanged"
        ) as refused:
            call()
        assert next(iter(values)) in str(refused.value)


@both
def test_trials(change: Change, tmp_path: Path) -> None:
    made = raysim.run_trials(experiment(engine={"workers": 0}, trials=2), path=tmp_path / "all", progress=False)
    assert len(raysim.read(tmp_path / "all").trials) == 2  # type: ignore[union-attr]
    change(*(trial.path for trial in made.trials))
    with pytest.raises(RunFolderError, match=r"has as 'trial-\d': .*seed was"):
        raysim.read(tmp_path / "all")


def test_points_of_trials(tmp_path: Path) -> None:
    several = experiment(engine={"workers": 0}, trials=2, rounds=1)
    made = raysim.run_sweep(several, {"cohort.size": [2, 3]}, path=tmp_path / "all", progress=False)
    exchange(*(point.path for point in made.points))
    with pytest.raises(RunFolderError, match=r"cohort\.size was 2, and is 3"):
        raysim.read(tmp_path / "all")
    with pytest.raises(RunFolderError, match="No run can be read"):
        runs.read_all([tmp_path / "all"])


def test_a_report_leaves_out_what_is_not_in_its_place(tmp_path: Path) -> None:
    several = experiment(engine={"workers": 0}, rounds=1)
    made = raysim.run_sweep(several, {"cohort.size": [2, 3, 4]}, path=tmp_path / "all", progress=False)
    exchange(made.points[0].path, made.points[1].path)
    found, notes = runs.read_all([tmp_path / "all"])
    assert [run.experiment.cohort.size for run in found] == [4]
    assert sum("is left out" in note and "exchanged" in note for note in notes) == 2


def test_runs_that_are_in_no_series_are_read(tmp_path: Path) -> None:
    write(tmp_path / "trial-0", accuracies(0.5))
    write(tmp_path / "cohort.size=7", accuracies(0.5), cohort={"size": 7})
    assert len(runs.read_all([tmp_path])[0]) == 2


def by_examples(facts: raysim.ClientFacts) -> float:
    return facts.examples


def test_what_a_script_passes_is_no_exchange(tmp_path: Path) -> None:
    how: Any = {"path": tmp_path / "all", "progress": False, "weighting": by_examples}
    swept = {"client.optimizer.lr": [0.1, 0.2]}
    made = raysim.run_sweep(experiment(engine={"workers": 0}), swept, **how)
    read = raysim.read(tmp_path / "all")
    assert read.rounds == made.rounds
    assert raysim.run_sweep(experiment(engine={"workers": 0}), swept, resume=True, **how).rounds == made.rounds


def test_constants_of_a_script_s_part_tell_places(tmp_path: Path) -> None:
    own = experiment(engine={"workers": 0}, server={"weighting": {"name": "own", "constants": {"a": 1.0}}})
    swept = {"server.weighting.constants.a": [1.0, 2.0]}
    made = raysim.run_sweep(own, swept, path=tmp_path / "all", progress=False, weighting=by_examples)
    raysim.read(tmp_path / "all")
    exchange(*(point.path for point in made.points))
    with pytest.raises(RunFolderError, match=r"constants\.a was 1\.0, and is 2\.0"):
        raysim.read(tmp_path / "all")


def test_what_a_series_lacks_is_noted(tmp_path: Path) -> None:
    """Means, deviations and pictures are of the rest."""
    exp = experiment(engine={"workers": 0}, trials=6)
    raysim.run_trials(exp, path=tmp_path / "trials", progress=False)
    assert not any("lacks" in note for note in runs.read_all([tmp_path / "trials"])[1])
    for lost in (1, 2, 4, 5):
        shutil.rmtree(tmp_path / "trials" / f"trial-{lost}")
    found, notes = runs.read_all([tmp_path / "trials"])
    assert len(found) == 2
    said = f"{tmp_path / 'trials'} lacks trial-1, trial-2, trial-4, 1 more folder: not begun yet, or lost."
    assert [note for note in notes if "lacks" in note] == [said]
    # Who asks for one of them does not ask for the others.
    assert not any("lacks" in note for note in runs.read_all([tmp_path / "trials" / "trial-0"])[1])


def test_what_a_sweep_lacks_is_noted(tmp_path: Path) -> None:
    swept = raysim.run_sweep(
        experiment(engine={"workers": 0}, trials=2), {"cohort.size": [2, 3]}, path=tmp_path / "all", progress=False
    )
    first, second = (point.path for point in swept.points)
    shutil.rmtree(first)
    shutil.rmtree(second / "trial-1")
    lacking = [note for note in runs.read_all([tmp_path])[1] if "lacks" in note]
    assert sorted(lacking) == [
        f"{tmp_path / 'all'} lacks {first.name}: not begun yet, or lost.",
        f"{second} lacks trial-1: not begun yet, or lost.",
    ]
