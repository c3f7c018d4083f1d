"""`raysim tune` and what `raysim check` says of [tuning], as a user meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import raysim
import tuning
from raysim.cli import app
from tests.support.tiny_study import EXPERIMENT


@pytest.fixture(autouse=True)
def _workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_tune_closes_with_a_table_and_a_file_that_runs() -> None:
    code, out, err = call("tune", "tiny.toml")
    assert code == 0, err
    said = [line.split(maxsplit=2) for line in err.splitlines() if line.startswith("trial ")]
    assert sorted(number for _, number, _ in said) == ["0", "1"]
    table = dict(line.split("  ", 1) for line in out.splitlines())
    assert table["trials"].strip() == "2: 2 finished"
    assert "client.optimizer.lr = 0.1: validation accuracy" in table["best"]
    assert "is the largest that was tried" in table["edge"]
    assert table["next"].strip() == "raysim run runs/tiny-tuning/best.toml"
    assert "lr = 0.1 } # untuned" in Path("runs/tiny-tuning/best.toml").read_text()
    assert call("run", "runs/tiny-tuning/best.toml", "--no-progress")[0] == 0
    assert Path("runs/tiny-best/rounds.parquet").exists()


def test_the_command_that_comes_next_quotes_the_folder() -> None:
    _, out, err = call("tune", "tiny.toml", "--path", "runs/my study", "--set", "tuning.final=0")
    assert "raysim run 'runs/my study/best.toml'" in out, err


def test_a_file_with_a_byte_order_mark_is_tuned_and_its_words_are_kept() -> None:
    Path("tiny.toml").write_text(EXPERIMENT, encoding="utf-8-sig")
    code, _, err = call("tune", "tiny.toml", "--set", "tuning.final=0", "--no-progress")
    assert code == 0, err
    assert "lr = 0.1 } # untuned" in Path("runs/tiny-tuning/best.toml").read_text()
    assert raysim.load("runs/tiny-tuning/best.toml").client.optimizer.lr == 0.1


def test_options_stand_in_for_keys() -> None:
    code, out, _ = call(
        "tune", "tiny.toml", "--trials", "1", "--concurrent", "1", "--storage", "sqlite:///own.db", "--path", "here",
        "--set", "tuning.final=0", "--no-progress",
    )  # fmt: skip
    assert code == 0
    assert "1: 1 finished" in out
    assert Path("own.db").exists()
    assert not Path("here/study.db").exists()


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("tune", ["tune"]), ("make_table", ["table"]), ("proxy", ["proxy", "study"]), ("evolve", ["evolve"])],
)
@pytest.mark.parametrize(("options", "executor"), [(["--local"], "local"), ([], None)])
def test_local_trains_in_this_process(
    function: str, arguments: list[str], options: list[str], executor: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = []

    def called(*given: Any, **how: Any) -> None:
        got.append(how["executor"])
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, function, called)
    assert call(*arguments, "tiny.toml", *options)[0] == 130
    assert got == [executor]


def test_nothing_is_trained_by_a_table() -> None:
    code, _, err = call("tune", "tiny.toml", "--table", "a.parquet", "--local", "--address", "auto")
    assert code == 2
    assert "leave out --local and --address" in err


def test_check_says_what_a_study_would_do() -> None:
    code, out, _ = call("check", "tiny.toml", "--set", "tuning.seeds=3")
    assert code == 0
    lines = out.partition("\n\n")[2].splitlines()
    assert lines[0].split(maxsplit=1) == ["tuning", "2 trials of 3 seeds by grid"]
    assert lines[1].split(maxsplit=1) == ["client.optimizer.lr", "0.01, 0.1"]
    code, _, err = call("check", "tiny.toml", "--set", "tuning.objective={name='percentile', percentile=200}")
    assert code == 2
    assert "tuning.objective.percentile must be less than or equal to 100" in err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--unset", "tuning"], 2, r"no [tuning] section"),
        (["--set", "tuning.space.client.rate={grid=[1]}"], 2, "unknown key 'client.rate'"),
        (["--storage", "postgres"], 1, "A storage is journal:PATH"),
        (["--set", "data.clients=2", "--set", "cohort.size=1"], 2, "holdout must leave at least one"),
    ],
)
def test_what_cannot_be_tuned(arguments: list[str], code: int, said: str) -> None:
    got, _, err = call("tune", "tiny.toml", *arguments)
    assert (got, said in err) == (code, True), err
    assert not Path("runs").exists()


def test_ctrl_c_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object, **named: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tuning, "tune", interrupted)
    code, _, err = call("tune", "tiny.toml")
    assert code == 130
    assert err == "stopped; the same command goes on with the study in runs/tiny-tuning\n"


def test_every_public_name_is_documented() -> None:
    assert list(tuning.__all__) == sorted(tuning.__all__)
    assert all(getattr(tuning, name).__doc__ for name in tuning.__all__)
