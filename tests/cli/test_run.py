"""`raysim run` and `raysim resume`: what they print, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.support.command import Raysim


@pytest.mark.pictures
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


@pytest.mark.parametrize("more", [(), ("--set", "trials=2"), ("--sweep", "cohort.size=2,5")])
def test_a_run_in_this_process_has_no_cluster_and_no_card_that_is_not_there(
    raysim: Raysim, more: tuple[str, ...]
) -> None:
    assert raysim("run", "tiny.toml", *more, "--local", "--address", "auto") == 2
    assert "--local" in raysim.err
    assert "choose one" in raysim.err
    assert raysim("run", "tiny.toml", *more, "--local", "--set", "engine.gpus_per_worker=0.5", "--overwrite") == 2
    assert raysim.err.startswith("error: engine.gpus_per_worker = 0.5 asks for a card")


def test_local_keeps_ray_away(raysim: Raysim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "raysim.engine.on_ray.driver", None)
    # Two workers would be Ray's.
    two = ("--set", "engine.workers=2")
    assert raysim("run", "tiny.toml", *two, "--local") == 0
    assert raysim("resume", "runs/tiny", "--rounds", "3", "--local") == 0
    assert raysim.rounds() == 3


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


def test_a_sweep_over_rounds_does_not_go_on_by_another_number(raysim: Raysim) -> None:
    """It changed nothing, said nothing, and named twice as many rounds as what to do next."""
    sweep = ("--no-progress", "--sweep")
    assert raysim("run", "tiny.toml", *sweep, "rounds=1,2") == 0
    assert "next " not in raysim.out
    assert raysim("resume", "runs/tiny", "--rounds", "3") == 2
    assert "a sweep over rounds, so --rounds 3 would change none of its points" in " ".join(raysim.err.split())
    assert "--sweep rounds=1,2,3 --resume" in " ".join(raysim.err.split())
    assert raysim("run", "tiny.toml", *sweep, "rounds=1,2,3", "--resume") == 0
    assert pq.read_table("runs/tiny/sweep.parquet")["rounds"].to_pylist() == [1, 2, 2, 3, 3, 3]


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
    assert raysim("run", "tiny.toml", *sweep, "--set", "cohort.size=3", "--overwrite") == 2
    assert "cohort.size is in --set and in --sweep, which would replace it: choose one." in " ".join(raysim.err.split())
    assert raysim("run", "tiny.toml", "--set", 'cohort."size"=3', "--sweep", "cohort.size=3,5") == 2
    assert "cohort.size is in --set and in --sweep" in " ".join(raysim.err.split())
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
    assert engine["trainer"] in ("one_by_one", "fused", "stacked", "vmap", "compiled")
    assert engine["chunk_size"] in ("auto", 1, 2, 3, 4, 5)
    assert raysim("check", "tiny.toml", "--out", "measured.toml") == 2


def test_calibration_rewrites_a_file_with_a_byte_order_mark(raysim: Raysim) -> None:
    text = "# mine\n" + Path("tiny.toml").read_text()
    Path("tiny.toml").write_text(text, encoding="utf-8-sig")
    assert raysim("check", "tiny.toml", "--calibrate", "--out", "measured.toml") == 0
    assert Path("measured.toml").read_text(encoding="utf-8").startswith("# mine\n")
    assert raysim("check", "measured.toml") == 0


def test_calibration_prints_what_to_write_into_the_file(raysim: Raysim) -> None:
    assert raysim("check", "tiny.toml", "--calibrate") == 0
    printed = tomllib.loads(raysim.out[raysim.out.index("[engine]") :])
    assert printed["engine"].keys() == {"trainer", "chunk_size"}


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
    assert raysim.err == "error: nowhere is not a run's folder: there is no such folder.\n"


def test_resume_says_what_else_lies_there_and_which_command_goes_on(raysim: Raysim) -> None:
    assert raysim("run", "tiny.toml", "--set", "rounds=1", "--path", "runs/base") == 0
    study = Path("runs/tiny-tuning")
    study.mkdir()
    (study / "study.json").write_text('{"name": "tiny", "storage": "study.db"}')
    (study / "best.toml").touch()
    Path("copied").mkdir()
    for given, said in {
        "base": "there is no such folder; did you mean runs/base?",
        "runs/bse": "there is no such folder; did you mean runs/base?",
        "runs": "it has no experiment.json; did you mean runs/base?",
        "runs/base/checkpoints": "it belongs to the run of runs/base.",
        "tiny.toml": "it is a file: raysim run tiny.toml runs its experiment.",
        "copied": "it has no experiment.json.",
        "runs/tiny-tuning": "it is that of the study 'tiny': tuning.read('runs/tiny-tuning') reads its result, "
        "raysim tune FILE continues it, raysim run runs/tiny-tuning/best.toml trains its best configuration.",
    }.items():
        assert raysim("resume", given) == 2
        assert raysim.err == f"error: {given} is not a run's folder: {said}\n"
    study.rename("other")
    assert raysim("resume", "other") == 2
    assert "raysim tune FILE --path other continues it" in raysim.err
    assert raysim("report", "base") == 2
    assert raysim.err == "error: There is no folder base; did you mean runs/base?\n"


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
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert out == ""
    done = raysim.rounds()
    assert err.splitlines()[-1] == f"stopped after round {done:,}; go on with: raysim resume runs/tiny"
    assert "Traceback" not in err
    assert raysim("resume", "runs/tiny", "--rounds", str(done + 1)) == 0
    assert raysim.rounds() == done + 1
