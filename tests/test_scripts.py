"""The benchmarks still run: what they measure is for people to read, on a quiet machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parent.parent / "scripts"


@pytest.mark.parametrize(
    "name", ["bench", "bench-cluster", "bench-engine", "bench-report", "bench-scaling", "bench-server", "bench-tuning"]
)
def test_a_benchmark_says_how_it_is_called(name: str) -> None:
    done = subprocess.run([sys.executable, SCRIPTS / name, "--help"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_the_servers_benchmark_steps_every_optimizer() -> None:
    command = [sys.executable, SCRIPTS / "bench-server", "--params", "1000", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2 + 8
