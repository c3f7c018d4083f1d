"""Every file under configs/ is valid, and runs on small data in the format of the published ones."""

from __future__ import annotations

import argparse
import math
import shlex
from pathlib import Path

import pytest

import raysim
from raysim.experiment import sweep
from tests.support import small_round

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "configs").rglob("*.toml"))

PAGES = ("papers.md", "reproduction.md")
COMMANDS = sorted(
    {
        line.strip()
        for page in PAGES
        for line in (ROOT / "docs" / page).read_text(encoding="utf-8").splitlines()
        if line.strip().startswith("raysim run configs/")
    }
)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "configs")))
def test_a_round_of_the_file(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = small_round.run(raysim.load(file), tmp_path, monkeypatch)
    (row,) = result.rounds.to_pylist()
    assert row["clients"] + row["rejected"] == small_round.COHORT
    assert math.isfinite(row["loss"])
    assert 0 <= row.get("eval/test/accuracy", row.get("excess_loss")) <= 1


def test_every_file_says_where_it_comes_from_and_has_a_folder_of_its_own() -> None:
    for file in FILES:
        assert file.read_text(encoding="utf-8").startswith("# "), f"{file} does not say what it is"
    names = [raysim.load(file).name for file in FILES]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_pages_is_one_that_the_file_takes(command: str) -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("file", type=Path)
    for option in ("--set", "--unset", "--sweep", "--path"):
        parser.add_argument(option, action="append", default=[])
    parser.add_argument("--centralized", action="store_true")
    asked = parser.parse_args(shlex.split(command)[2:])
    exp = raysim.load(ROOT / asked.file, asked.set, asked.unset)
    if asked.sweep:
        assert len(sweep.points(exp, sweep.parse(asked.sweep))) > 1


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT / "configs")))
def test_a_dumped_experiment_is_the_experiment(file: Path) -> None:
    exp = raysim.load(file)
    assert raysim.Experiment.model_validate({**exp.model_dump()}) == exp
    assert raysim.Experiment.model_validate_json(exp.model_dump_json()) == exp
