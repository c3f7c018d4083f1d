"""The command in a working folder, in this process or in one by itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
from typer.testing import CliRunner

from raysim.cli import app


class Raysim:
    """The command in a working folder that holds tiny.toml."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = self.err = ""

    def __call__(self, *arguments: str) -> int:
        """Call the command and return its exit code."""
        result = CliRunner().invoke(app, arguments)
        self.out, self.err = result.stdout, result.stderr
        # What is not an error of raysim's must not hide behind exit code 1.
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result.exit_code

    def rounds(self, run: str = "tiny") -> int:
        return pq.read_table(self.folder / "runs" / run / "rounds.parquet").num_rows


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=240)


def killed(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run what ends by a signal and writes little, and wait for what it began, which holds its streams open.

    The process is reaped first: wandb 0.17's service ends once its number is free.
    """
    with subprocess.Popen(
        [sys.executable, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        process.wait(240)
        out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
