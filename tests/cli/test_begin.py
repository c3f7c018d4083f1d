"""`raysim init` and `raysim configs` write files that run."""

from __future__ import annotations

import runpy
import tomllib
from pathlib import Path

import pytest

import raysim as library
from raysim.cli import begin
from raysim.errors import ExperimentError
from tests.support.command import Raysim

ROOT = Path(__file__).resolve().parents[2]


def said(raysim: Raysim, *arguments: str) -> str:
    assert raysim(*arguments) == 0
    return raysim.out


def test_the_files_to_begin_with_run(raysim: Raysim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert said(raysim, "init", "mine").splitlines()[:2] == ["wrote mine.toml", "wrote mine.py"]
    (tmp_path / "mine.toml").write_text((tmp_path / "mine.toml").read_text().replace("rounds = 60", "rounds = 5"))
    assert library.run(library.load("mine.toml"), executor="local").rounds.num_rows == 5
    monkeypatch.setattr(library, "run", lambda *args, run=library.run, **how: run(*args, executor="local", **how))
    for _ in range(2):
        runpy.run_path("mine.py", run_name="__main__")
        assert raysim.rounds("mine-own") == 5


def test_nothing_is_written_where_a_link_leads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("first.toml").symlink_to(tmp_path / "there.toml")
    with pytest.raises(ExperimentError, match=r"first.toml is there already"):
        begin.init("first")
    begin.init("first", overwrite=True)
    assert not Path("first.toml").is_symlink()
    assert [each.name for each in tmp_path.iterdir()] == ["here"]


def test_a_file_that_is_there_is_not_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "first.py").write_text("mine")
    with pytest.raises(ExperimentError, match=r"first.py is there already: .*--overwrite"):
        begin.init("first")
    assert (tmp_path / "first.py").read_text() == "mine"
    assert not (tmp_path / "first.toml").exists()
    begin.init("first", overwrite=True)
    assert (tmp_path / "first.py").read_text() != "mine"


@pytest.mark.parametrize("name", ["../mine", "a b", "", "1st", "x" * 64, "a/b"])
def test_a_name_that_leads_elsewhere_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ExperimentError, match="NAME must be letters"):
        begin.init(name)
    assert not list(tmp_path.iterdir())


def test_the_experiments_of_the_papers_are_listed_and_copied(
    raysim: Raysim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    listed = said(raysim, "configs").splitlines()
    assert {line.split()[0] for line in listed} == {
        path.relative_to(ROOT / "configs").as_posix().removesuffix(".toml")
        for path in (ROOT / "configs").rglob("*.toml")
    }
    assert all(len(line.split()) > 3 for line in listed), "each says what it is"
    said(raysim, "configs", "fedavg/mnist_2nn")
    assert (tmp_path / "mnist_2nn.toml").read_text() == (ROOT / "configs/fedavg/mnist_2nn.toml").read_text()
    with pytest.raises(ExperimentError, match=r"did you mean fedavg/mnist_2nn"):
        begin.configs("fedavg/mnist_2n")
    with pytest.raises(ExperimentError) as raised:
        begin.configs("mnist")
    with_it = [line.split()[0] for line in listed if "mnist" in line.split()[0]]
    assert f"'mnist'; names with it are {', '.join(with_it)}; `raysim configs` lists" in str(raised.value)
    assert {"fedavg/mnist_2nn", "large_cohort/emnist"} < set(with_it)
    with pytest.raises(ExperimentError, match=r"no experiment 'nothing'; `raysim configs` lists them"):
        begin.configs("nothing")
    with pytest.raises(ExperimentError, match=r"'fedavg' is a folder of experiments: fedavg/cifar10, .*word_lstm\.$"):
        begin.configs("fedavg")


def test_the_wheel_has_every_folder_of_experiments() -> None:
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["data-files"]
    wanted = {path.parent.relative_to(ROOT).as_posix() for path in (ROOT / "configs").rglob("*.toml")}
    assert folders == {f"share/raysim/{folder}": [f"{folder}/*.toml"] for folder in wanted}
