"""What the command costs before it does anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import Raysim, python

CONFIGS = Path(__file__).parents[2] / "configs"


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
    _, listed = raysim.out.split("Commands:\n")
    commands, codes = listed.split("\n\n", 1)
    assert re.search("Exit codes: 0: .* 1: .* 2: .* 130: ", codes, re.DOTALL)
    named = [line.split()[0] for line in commands.splitlines() if re.match("  [a-z]", line)]
    wanted = ["attach", "best", "check", "compare", "configs", "data"]
    wanted += ["evaluate", "evolve", "export", "init", "interpolate", "keys", "parts", "proxy"]
    assert sorted(named) == [*wanted, "replay", "report", "resume", "run", "stop", "table", "tune", "tuners"]


def test_a_file_tuning_of_the_user_hides_nothing(tmp_path: Path) -> None:
    (tmp_path / "tuning.py").write_text("raise SystemExit('the user')")
    command = [sys.executable, "-m", "raysim", "check", str(CONFIGS / "tuning" / "digits_table.toml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "trials" in done.stdout


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_is_closed_at_the_start_ends_no_run(closed: str, tmp_path: Path) -> None:
    command = f"{sys.executable} -m raysim run {CONFIGS / 'quickstart.toml'} --local --set rounds=1 {closed}"
    assert subprocess.run(["sh", "-c", command], timeout=240, cwd=tmp_path, check=False).returncode == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "rounds.parquet").stat().st_size > 0


def test_version(raysim: Raysim) -> None:
    assert raysim("--version") == 0
    assert raysim.out.startswith("raysim ")
