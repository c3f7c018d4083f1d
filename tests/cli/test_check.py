"""`raysim check`."""

from __future__ import annotations

from pathlib import Path

from tests.support.command import Raysim, python


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
