"""The command line, as a user meets it: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from raysim.cli import app
from raysim.data import downloads
from raysim.data.sources.published import Published

EXPERIMENT = """
name = "tiny"
rounds = 2
[data]
name = "digits"
clients = 20
[model]
name = "linear"
[cohort]
size = 5
[evaluation]
every = 1
[engine]
workers = 0
"""


class Raysim:
    """The command in a working folder that holds tiny.toml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """Call the command and return its exit code."""
        result = CliRunner().invoke(app, arguments)
        self.out, self.err = result.stdout, result.stderr
        # What is no error of raysim's must not hide behind exit code 1.
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code

    def rounds(self, run: str = "tiny") -> int:
        return pq.read_table(self.folder / "runs" / run / "rounds.parquet").num_rows


@pytest.fixture
def raysim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Raysim:
    (tmp_path / "tiny.toml").write_text(EXPERIMENT)
    monkeypatch.chdir(tmp_path)
    return Raysim(tmp_path)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=120)


# Start-up


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from raysim.cli import main\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    print([m for m in ('torch', 'ray', 'matplotlib', 'numpy', 'pyarrow', 'pydantic') if m in sys.modules])\n"
    )
    done = python("-c", code, "--help")
    assert done.stdout.splitlines()[0] == "Usage: raysim [OPTIONS] COMMAND [ARGS]..."
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_every_command(raysim: Raysim) -> None:
    assert raysim("--help") == 0
    assert all(f"  {command} " in raysim.out for command in ("run", "resume", "check", "data"))


def test_version(raysim: Raysim) -> None:
    assert raysim("--version") == 0
    assert raysim.out.startswith("raysim ")


# run


def test_run_records_and_closes_with_a_table(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml") == 0
    assert raysim.rounds() == 2
    table = dict(line.split(maxsplit=1) for line in raysim.out.splitlines())
    assert table["experiment"] == "tiny"
    assert table["rounds"] == "2"
    assert table["folder"] == "runs/tiny"
    assert table["picture"] == "runs/tiny/curve.png"
    assert Path(table["picture"]).exists()
    assert table["next"] == "raysim resume runs/tiny --rounds 4"


def test_trials_are_run_closed_and_added_to(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--set", "trials=2", "--no-progress") == 0
    assert raysim.err.splitlines() == ["trial-0, seed 0", "trial-1, seed 1"]
    table = dict(line.split(maxsplit=1) for line in raysim.out.splitlines())
    assert table["trials"] == "2, seeds 0 to 1, varying data, model, cohort"
    assert re.fullmatch(r"accuracy \d+\.\d % \+- \d+\.\d % \(after round 2\)", table["test"])
    assert Path(table["picture"]).exists()
    assert raysim("resume", "runs/tiny", "--rounds", "3", "--trials", "3", "--no-progress") == 0
    assert [raysim.rounds(f"tiny/trial-{i}") for i in range(3)] == [3, 3, 3]
    summary = pq.read_table("runs/tiny/summary.parquet")
    assert summary["trials"].to_pylist() == [3, 3, 3]


def test_a_sweep_is_run_closed_and_gone_on_with(raysim: Raysim) -> None:
    sweep = ("--sweep", "cohort.size=2,5", "--no-progress")
    assert raysim("run", "tiny.toml", *sweep) == 0
    assert raysim.err.splitlines() == ["cohort.size=2, seed 0", "cohort.size=5, seed 0"]
    table = dict(line.split(maxsplit=1) for line in raysim.out.splitlines())
    assert table["points"] == "2"
    assert re.match(r"training accuracy \d.* %.*; test accuracy \d.* % \(after round 2\)", table["cohort.size=5"])
    assert Path(table["picture"]).exists()
    assert table["next"] == "raysim resume runs/tiny --rounds 4"
    assert raysim("resume", "runs/tiny", "--rounds", "3", "--no-progress") == 0
    assert [raysim.rounds(f"tiny/cohort.size={size}") for size in (2, 5)] == [3, 3]
    assert pq.read_table("runs/tiny/sweep.parquet")["cohort.size"].to_pylist() == [2] * 3 + [5] * 3
    assert raysim("run", "tiny.toml", "--sweep", "cohort.size", "--overwrite") == 2
    assert raysim.err == "error: A sweep has the form key.key=value,value, but got 'cohort.size'.\n"


def test_centralized_trains_on_what_all_clients_have(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--centralized", "--no-progress") == 0
    rounds = pq.read_table("runs/tiny-centralized/rounds.parquet")
    assert rounds["clients"].to_pylist() == [1, 1]
    assert rounds["examples"].to_pylist() == [1438, 1438]


def test_one_run_has_no_trials_to_add_to(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--no-progress") == 0
    assert raysim("resume", "runs/tiny", "--trials", "3") == 2
    assert raysim.err == "error: runs/tiny holds one run and no trials; run its experiment with --set trials=3.\n"


def test_calibration_writes_an_experiment_that_runs(raysim: Raysim) -> None:
    assert raysim("check", "tiny.toml", "--calibrate", "--out", "measured.toml") == 0
    assert "<- chosen" in raysim.out
    assert raysim("run", "measured.toml", "--no-progress") == 0
    engine = json.loads(Path("runs/tiny/experiment.json").read_text())["experiment"]["engine"]
    assert engine["form"] in ("one_by_one", "fused", "stacked", "vmap")
    assert 1 <= engine["chunk_size"] <= 5
    assert raysim("check", "tiny.toml", "--out", "measured.toml") == 2


def test_progress_in_a_log_file_is_plain_lines_on_stderr(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml") == 0
    placement, first, last = raysim.err.splitlines()
    assert placement == "placement  this process"
    assert first.startswith("round 1/2: loss ")
    assert last.startswith("round 2/2: loss ")
    assert "\x1b" not in raysim.err + raysim.out
    assert "\r" not in raysim.err + raysim.out


def test_progress_can_be_left_out(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--no-progress") == 0
    assert raysim.err == ""


def test_set_and_unset_change_the_experiment(raysim: Raysim) -> None:
    changes = ("--set", "rounds=3", "--set", "server.optimizer.lr=0.5", "--unset", "evaluation.every")
    assert raysim("run", "tiny.toml", *changes) == 0
    stored = json.loads(Path("runs/tiny/experiment.json").read_text())["experiment"]
    assert (stored["rounds"], stored["server"]["optimizer"]["lr"], stored["evaluation"]["every"]) == (3, 0.5, 10)


def test_path_is_where_the_run_goes(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--path", "elsewhere") == 0
    assert Path("elsewhere/experiment.json").exists()
    assert not Path("runs").exists()


def test_an_existing_folder_is_kept_unless_told_otherwise(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--set", "rounds=3") == 0
    assert raysim("run", "tiny.toml") == 2
    assert raysim.err.startswith("error: runs/tiny exists already.")
    assert raysim.rounds() == 3
    assert raysim("run", "tiny.toml", "--overwrite") == 0
    assert raysim.rounds() == 2


# Going on


def test_resume_goes_on_to_a_later_round(raysim: Raysim) -> None:
    raysim("run", "tiny.toml")
    assert raysim("resume", "runs/tiny", "--rounds", "4") == 0
    assert raysim.rounds() == 4
    assert raysim.err.splitlines()[1].startswith("round 3/4: ")


def test_run_with_resume_goes_on_or_starts(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--resume") == 0
    assert raysim("run", "tiny.toml", "--resume", "--set", "rounds=5") == 0
    assert raysim.rounds() == 5
    assert raysim.err.splitlines()[1].startswith("round 3/5: ")


def test_run_with_resume_refuses_other_settings(raysim: Raysim) -> None:
    raysim("run", "tiny.toml")
    assert raysim("run", "tiny.toml", "--resume", "--set", "client.optimizer.lr=0.25") == 2
    assert "client.optimizer.lr was 0.1, and is 0.25" in raysim.err
    assert raysim.rounds() == 2


def test_resume_and_overwrite_are_one_or_the_other(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--resume", "--overwrite") == 2
    assert "choose one" in raysim.err


def test_resume_needs_a_runs_folder(raysim: Raysim) -> None:
    assert raysim("resume", "nowhere") == 2
    assert raysim.err == "error: nowhere is not a run's folder: it has no experiment.json.\n"


@pytest.mark.skipif(os.name == "nt", reason="signals are sent as on POSIX")
def test_ctrl_c_checkpoints_and_says_how_to_go_on(raysim: Raysim) -> None:
    command = [
        sys.executable,
        "-c",
        "from raysim.cli import main; main()",
        "run",
        "tiny.toml",
        "--set",
        "rounds=1000000",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not process.stderr.readline().startswith("round 1/"):
            assert process.poll() is None
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    done = raysim.rounds()
    assert err.splitlines()[-1] == f"stopped after round {done:,}; go on with: raysim resume runs/tiny"
    assert "Traceback" not in err
    assert raysim("resume", "runs/tiny", "--rounds", str(done + 1)) == 0
    assert raysim.rounds() == done + 1


# check


def test_check_says_what_would_run_and_runs_nothing(raysim: Raysim) -> None:
    assert raysim("check", "tiny.toml") == 0
    # 64 x 10 weights and 10 biases.
    assert "linear: 650 parameters in 2 tensors, float32" in raysim.out
    assert "5 of 20 clients, uniform" in raysim.out
    assert not Path("runs").exists()


def test_check_starts_no_ray(raysim: Raysim) -> None:
    code = "import sys\nfrom raysim.cli import app\napp(standalone_mode=False)\nprint('ray' in sys.modules)"
    done = python("-c", code, "check", "tiny.toml", "--set", "engine.workers=2")
    assert "2 workers on Ray" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1] == "False"


# data


def test_inspect_describes_an_experiments_data(raysim: Raysim) -> None:
    assert raysim("data", "inspect", "tiny.toml", "--set", "data.clients=7") == 0
    assert "classification, 10 classes" in raysim.out
    assert "clients   7" in raysim.out


def test_inspect_describes_a_runs_data(raysim: Raysim) -> None:
    raysim("run", "tiny.toml")
    raysim("data", "inspect", "tiny.toml")
    of_the_file = raysim.out
    assert raysim("data", "inspect", "runs/tiny") == 0
    assert raysim.out == of_the_file


def test_inspect_of_a_folder_takes_no_changes(raysim: Raysim) -> None:
    assert raysim("data", "inspect", ".", "--set", "data.clients=7") == 2
    assert "--set changes an experiment" in raysim.err


def test_inspect_names_what_a_folder_lacks(raysim: Raysim) -> None:
    assert raysim("data", "inspect", ".") == 2
    assert raysim.err.startswith("error: ")
    assert "dataset.json is missing" in raysim.err


def test_prepare_fills_the_cache_and_says_where(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSIM_CACHE", str(raysim.folder / "cache"))
    assert raysim("data", "prepare", "tiny.toml") == 0
    assert str(raysim.folder / "cache") in raysim.out
    assert list((raysim.folder / "cache").rglob("dataset.json"))


def test_prepare_of_generated_data_says_that_nothing_is_stored(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "tiny.toml", "--set", "data.name=synthetic", "--set", "data.clients=9") == 0
    assert "nothing is stored" in raysim.out


# Errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.toml",), "There is no experiment file missing.toml."),
        (("tiny.toml", "--set", "cohrot.size=3"), "did you mean 'cohort'?"),
        (("tiny.toml", "--set", "client.optimizer.mu=3"), "unknown key 'client.optimizer.mu'"),
        (("tiny.toml", "--set", "cohort.size=21"), "size = 21 and 20 training clients"),
        (("tiny.toml", "--set", "evaluation.split=dev"), "no split 'dev'"),
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


def test_what_breaks_on_the_way_is_exit_code_1(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim import api
    from raysim.errors import ClientError

    def fail(*arguments: object, **keywords: object) -> None:
        raise ClientError("Training client 'c3' failed in round 7\nthe worker's own traceback")

    monkeypatch.setattr(api, "run", fail)
    assert raysim("run", "tiny.toml") == 1
    assert raysim.err == "error: Training client 'c3' failed in round 7\nthe worker's own traceback\n"


def test_what_the_machine_refuses_is_a_message_too(raysim: Raysim) -> None:
    Path("runs").write_text("a file where a folder must be")
    assert raysim("run", "tiny.toml") == 1
    assert raysim.err.startswith("error: ")
    assert "runs" in raysim.err


def test_a_fault_of_raysims_keeps_its_traceback(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    from raysim import api

    monkeypatch.setattr(api, "run", lambda *_, **__: {}["missing"])
    with pytest.raises(KeyError, match="missing"):
        raysim("run", "tiny.toml")


def test_a_reader_that_leaves_is_no_error(raysim: Raysim) -> None:
    command = f"{sys.executable} -c 'from raysim.cli import main; main()' data inspect tiny.toml | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False, timeout=60)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1


def test_a_source_is_prepared_by_its_name(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "digits", "--set", "data.clients=7") == 0
    assert "ready after" in raysim.out
    assert raysim("data", "prepare", "mnits") == 2
    assert "'mnits' is neither a file nor a source of data: the sources are digits, synthetic, mnist" in raysim.err
    assert raysim("data", "prepare", "ag_news", "--root", "nowhere") == 2
    assert "there is no folder nowhere" in raysim.err


def test_a_download_is_refused_where_nobody_offers_the_files(raysim: Raysim) -> None:
    assert raysim("data", "prepare", "shakespeare", "--download", "--set", "data.form=leaf") == 2
    assert "--download has no address for data.name = 'shakespeare' as it is set here" in raysim.err


def test_what_is_missing_is_fetched_first(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    served = raysim.folder / "served.csv"
    served.write_text('"3","Oil","goes up"\n"1","Talks","go on"\n')
    files = tuple(Published(name, served.as_uri()) for name in ("train.csv", "test.csv"))
    monkeypatch.setattr(downloads, "_offered", lambda section: ("ag_news_csv", files))
    arguments = ("data", "prepare", "ag_news", "--root", str(raysim.folder / "ag"), "--set", "data.clients=2")
    assert raysim(*arguments, "--download") == 0
    assert f"fetched {raysim.folder / 'ag' / 'test.csv'}" in raysim.err
    assert raysim(*arguments, "--download") == 0
    assert "fetched" not in raysim.err


def test_a_picture_of_labels_by_client(raysim: Raysim) -> None:
    assert raysim("data", "inspect", "tiny.toml", "--picture", "labels.png", "--split", "test") == 0
    assert (raysim.folder / "labels.png").read_bytes().startswith(b"\x89PNG")
