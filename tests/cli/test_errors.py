"""What goes wrong is one message and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Raysim


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.toml",), "There is no experiment file missing.toml; `raysim configs` has those of the papers."),
        (("tiny.toml", "--set", "cohrot.size=3"), "did you mean 'cohort'?"),
        (("tiny.toml", "--set", "client.optimizer.mu=3"), "unknown key 'client.optimizer.mu'"),
        (("tiny.toml", "--set", "cohort.size=21"), "size = 21 and 20 training clients"),
        (("tiny.toml", "--set", "evaluation.split=dev"), "evaluation.split: no split 'dev'"),
        (("tiny.toml", "--unset", "data"), "[data]"),
    ],
)
@pytest.mark.parametrize("command", ["run", "check"])
def test_a_mistake_is_one_message_and_exit_code_2(
    raysim: Raysim, command: str, arguments: tuple[str, ...], message: str
) -> None:
    assert raysim(command, *arguments) == 2
    assert raysim.out == ""
    assert raysim.err.startswith("error: ")
    assert raysim.err.count("\n") == 1
    assert message in raysim.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ("run", "tiny.toml", "--path", "file://host/x"),
        ("run", "tiny.toml", "--path=file://host/x"),
        ("resume", "file://host/x"),
        ("report", "runs", "file://host/x"),
        ("evaluate", "runs/a", "--data", "file://host/x"),
        ("data", "inspect", "file://host/x"),
    ],
)
def test_a_uri_with_a_machine_s_name_is_refused_before_a_path_is_made_of_it(
    raysim: Raysim, arguments: tuple[str, ...]
) -> None:
    assert raysim(*arguments) == 1
    assert raysim.err.startswith("error: file://host/x names the machine 'host', and file:// opens folders of this")
    assert raysim.err.endswith("Write file:///host/x with three slashes, or the path itself.\n")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("report", "runs/a", "--out", ""), "--out"),
        (("report", "runs/a", "--out="), "--out"),
        (("best", "runs/a", "--by", "loss", "--out", ""), "--out"),
        (("interpolate", "runs/a", "runs/a", "--out", ""), "--out"),
        (("tuners", "tiny.toml", "--table", "t.parquet", "--tuner", "tpe", "--out", ""), "--out"),
        (("data", "inspect", "tiny.toml", "--picture", ""), "--picture"),
        (("run", "tiny.toml", "--path", "", "--local"), "--path"),
        (("report", ""), "An argument"),
        (("data", "inspect", ""), "An argument"),
    ],
)
def test_an_empty_text_does_not_name_the_working_folder(raysim: Raysim, arguments: tuple[str, ...], named: str) -> None:
    assert raysim("run", "tiny.toml", "--path", "runs/a") == 0
    before = sorted(raysim.folder.rglob("*"))
    assert raysim(*arguments) == 2
    assert f"{named} is an empty text, which names nothing: is a variable of the shell unset?" in raysim.err
    assert sorted(raysim.folder.rglob("*")) == before


def test_a_client_s_name_may_be_empty_and_a_value_that_is_set(raysim: Raysim) -> None:
    assert raysim("check", "tiny.toml", "--set=name=") == 2
    assert "is an empty text" not in raysim.err
    assert raysim("run", "tiny.toml", "--path", "runs/a") == 0
    assert raysim("replay", "runs/a", "--round", "0", "--client", "") == 2
    assert "empty" not in raysim.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "tiny.toml", "--rounds", "5"), "--rounds (a key of the experiment is set by --set rounds=VALUE)"),
        (
            ("check", "tiny.toml", "--lr=0.1"),
            "--lr (a key of the experiment is set by --set client.optimizer.lr=VALUE)",
        ),
        (("tune", "tiny.toml", "--learning-rate", "1"), "is set by --set client.optimizer.lr=VALUE)"),
        (("run", "tiny.toml", "--batch-size", "8"), "is set by --set client.batch_size=VALUE)"),
        (("run", "tiny.toml", "--server.optimizer.lr", "8"), "is set by --set server.optimizer.lr=VALUE)"),
        (("run", "tiny.toml", "--reume"), "No such option: --reume (Possible options: --resume)"),
        (("resume", "runs/tiny", "--set", "rounds=9"), "`raysim run FILE --set KEY=VALUE --resume` changes those that"),
        (("resume", "runs/tiny", "--lr=1"), "No such option: --lr (Possible options: --help, --logger)\n"),
    ],
)
def test_an_option_that_there_is_none_of_is_told_as_the_key_that_it_is(
    raysim: Raysim, arguments: tuple[str, ...], message: str
) -> None:
    assert raysim(*arguments) == 2
    assert message in raysim.err
    assert raysim.err.count("Error: No such option") == 1


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("quickstart", "quickstart"),
        ("configs/fedavg/mnist_2nn.toml", "fedavg/mnist_2nn"),
        ("mnist_2nn.toml", "fedavg/mnist_2nn"),
    ],
)
def test_a_published_experiment_that_is_not_here_is_told_with_the_command_that_copies_it(
    raysim: Raysim, file: str, name: str
) -> None:
    assert raysim("run", file) == 2
    copied = f"`raysim configs {name}` copies it here, as {name.rpartition('/')[2]}.toml."
    assert raysim.err == f"error: There is no experiment file {file}: {copied}\n"


def test_what_breaks_on_the_way_is_exit_code_1(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim.api import run as api
    from raysim.errors import ClientError

    def fail(*arguments: object, **keywords: object) -> None:
        raise ClientError("Training client 'c3' failed in round 7\nthe worker's own traceback")

    monkeypatch.setattr(api, "run", fail)
    assert raysim("run", "tiny.toml") == 1
    assert raysim.err == "error: Training client 'c3' failed in round 7\nthe worker's own traceback\n"


def test_what_the_machine_refuses_is_a_message_too(raysim: Raysim) -> None:
    Path("runs").write_text("a file where a folder must be")
    assert raysim("run", "tiny.toml") == 2
    assert raysim.err.startswith("error: ")
    assert "runs" in raysim.err
    assert "Give the run another folder" in raysim.err


def test_a_fault_of_raysims_keeps_its_traceback(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim.api import run as api

    nothing: dict[str, object] = {}
    monkeypatch.setattr(api, "run", lambda *_, **__: nothing["missing"])
    with pytest.raises(KeyError, match="missing"):
        raysim("run", "tiny.toml")


def test_a_reader_that_leaves_is_no_error(raysim: Raysim) -> None:
    command = f"{sys.executable} -c 'from raysim.cli import main; main()' data inspect tiny.toml | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=240)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_folder_in_place_of_a_file_is_answered_by_the_command_that_takes_it(raysim: Raysim) -> None:
    (raysim.folder / "done").mkdir()
    (raysim.folder / "done" / "experiment.json").write_text("{}")
    (raysim.folder / "searched").mkdir()
    (raysim.folder / "searched" / "study.json").write_text('{"name": "rates"}')
    for command in ("run", "check"):
        assert raysim(command, "done") == 2
        assert "it is the folder of a run, trials or a sweep, which raysim resume done continues." in raysim.err
        assert raysim(command, "searched") == 2
        assert (
            "'rates': tuning.read('searched') reads its result, raysim tune FILE --path searched continues it."
            in raysim.err
        )


def test_a_key_to_remove_is_answered_by_the_nearest(raysim: Raysim) -> None:
    assert raysim("check", "tiny.toml", "--unset", "cohort.sise") == 2
    assert "There is no key 'cohort.sise' to remove (did you mean 'cohort.size'?)." in raysim.err
