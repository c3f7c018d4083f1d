"""best.toml means the best configuration, and is the user's file where there was one."""

from __future__ import annotations

from pathlib import Path

import pytest
from tomlkit.items import Array

import raysim
from tuning import best_file

SOURCE = """# mine
name = "x"
rounds = 5
[client]
optimizer = { name = "sgd", lr = 0.1 } # where I began
[cohort]
size = 3
[server]
optimizer = { name = "adam", lr = 0.01, beta2 = 0.9 }
[tuning]
seeds = 2
[tuning.space]
client.optimizer.lr = { grid = [0.1, 1] }
"""


def loaded(text: str, folder: Path) -> raysim.Experiment:
    (folder / "best.toml").write_text(text)
    return raysim.load(folder / "best.toml")


def best(values: dict[str, object], folder: Path) -> raysim.Experiment:
    (folder / "source.toml").write_text(SOURCE)
    return raysim.load(folder / "source.toml", unset=["tuning"]).changed(values)


def test_the_file_keeps_what_people_wrote(tmp_path: Path) -> None:
    wanted = best({"client.optimizer.lr": 1.0, "name": "x-best", "rounds": 7}, tmp_path)
    text = best_file.text(wanted, SOURCE, "one\ntwo")
    assert loaded(text, tmp_path) == wanted
    assert text.startswith('# one\n# two\n# mine\nname = "x-best"\nrounds = 7\n')
    assert 'optimizer = { name = "sgd", lr = 1.0 } # where I began' in text
    assert "tuning" not in text


def test_another_choice_takes_its_keys_along(tmp_path: Path) -> None:
    wanted = best({"server.optimizer": {"name": "momentum", "lr": 0.5}}, tmp_path)
    assert loaded(best_file.text(wanted, SOURCE, ""), tmp_path) == wanted


def test_without_a_file_the_record_is_complete(tmp_path: Path) -> None:
    wanted = best({"client.optimizer.lr": 0.25}, tmp_path)
    assert loaded(best_file.text(wanted, None, "found"), tmp_path) == wanted


def test_tables_in_a_list_are_written_without_what_they_leave_open(tmp_path: Path) -> None:
    wanted = best({"client.schedule": [{"round": 2, "epochs": 2}, {"round": 4, "batch_size": 7}]}, tmp_path)
    assert loaded(best_file.text(wanted, None, "found"), tmp_path) == wanted


@pytest.mark.parametrize("source", [None, "file"])
def test_long_lists_are_not_looked_through_once_for_each_entry(
    source: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    through = Array._reindex

    def counted(self: Array) -> None:
        looks.append(len(self._value))
        through(self)

    monkeypatch.setattr(Array, "_reindex", counted)
    names = [f"{place}" for place in range(1_000)]
    wanted = best({"cohort": {"sampler": {"name": "replay", "cohorts": [names]}}}, tmp_path)
    text = best_file.text(wanted, SOURCE if source else None, "found")
    assert loaded(text, tmp_path) == wanted
    assert sum(looks) < 10 * len(names)


@pytest.mark.parametrize(
    "source",
    [
        "no toml",
        "seed = ",
        "\ufeffseed = 1",
        f"seed = {'9' * 5000}",
        f"a = {'[' * 3000}",
        "name = 3",
        "rounds = nan",
        "",
    ],
    ids=["words", "no value", "mark", "digits", "nested", "type", "nan", "empty"],
)
def test_a_script_may_pass_any_text(source: str, tmp_path: Path) -> None:
    """Behind a study of hours its best values are still written."""
    wanted = best({"client.optimizer.lr": 0.25}, tmp_path)
    assert loaded(best_file.text(wanted, source, "found"), tmp_path) == wanted
