"""The benchmarks still run: what they measure is for people to read, on a quiet machine."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from raysim.data import DatasetWriter, Field

SCRIPTS = Path(__file__).parent.parent / "scripts"
IN_PYTHON = [
    file for file in sorted(SCRIPTS.iterdir()) if file.is_file() and "python" in file.read_text().partition("\n")[0]
]


@pytest.mark.parametrize(
    "name",
    [
        "bench",
        "bench-card",
        "bench-changes",
        "bench-cluster",
        "bench-data",
        "bench-driver",
        "bench-engine",
        "bench-frozen",
        "bench-modules",
        "bench-report",
        "bench-scaling",
        "bench-server",
        "bench-trainers",
        "bench-tuners",
        "bench-tuning",
    ],
)
def test_a_benchmark_says_how_it_is_called(name: str) -> None:
    done = subprocess.run([sys.executable, SCRIPTS / name, "--help"], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: ")


def test_without_raysim_the_benchmark_says_what_to_activate(tmp_path: Path) -> None:
    # Without site-packages, as an interpreter that is not the environment's.
    command = [sys.executable, "-I", "-S", str(SCRIPTS / "bench"), "--peer-scripts", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert "has no raysim" in done.stderr
    assert "source scripts/environment" in done.stderr


def test_the_servers_benchmark_steps_every_optimizer() -> None:
    command = [sys.executable, str(SCRIPTS / "bench-server"), "--params", "1000", "--repeats", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2 + 8


def test_changes_of_an_experiment_are_timed_beside_it() -> None:
    command = [sys.executable, str(SCRIPTS / "bench-changes"), str(SCRIPTS.parent / "configs" / "quickstart.toml")]
    command += [
        "--set",
        "cohort.size=2",
        "--change",
        "server.clip.fixed=1",
        "--change",
        "client.epochs=2 cohort.size=3",
    ]
    done = subprocess.run([*command, "--rounds", "3"], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line.split("`")[1] for line in done.stdout.splitlines()[2:]] == [
        "server.clip.fixed=1",
        "client.epochs=2 cohort.size=3",
    ]


def test_the_benchmark_of_data_reads_what_was_prepared(tmp_path: Path) -> None:
    with DatasetWriter(tmp_path / "data", Field((2,), "float32"), Field((), "int64"), 3) as writer:
        for k in range(5):
            writer.write("train", f"c{k}", np.full((3, 2), k, dtype=np.float32), np.zeros(3, dtype=np.int64))
    command = [sys.executable, str(SCRIPTS / "bench-data"), str(tmp_path / "data"), "--passes", "2", "--counts", "2,3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 2 + 2


COMMON = """
import numpy as np
W = {name: dict(M=3, B=2, E=1, lr=0.1, pool=6) for name in ("own", "broken")}
def sizes(name): return [5] * W[name]["pool"]
def cohort(name, r): return list(range(W[name]["M"]))
def all_data(name):
    draw = np.random.default_rng(0)
    return [(draw.standard_normal((n, 4)), draw.integers(0, 3, n)) for n in sizes(name)]
"""
MODELS = """
from torch import nn
def make(name):
    assert name == "own", "it is broken"
    return nn.Sequential(nn.Linear(4, 5), nn.GELU(), nn.Linear(5, 3))
"""


def test_the_benchmark_of_cards_writes_a_page_without_one(tmp_path: Path) -> None:
    scripts, peer = tmp_path / "scripts", tmp_path / "peers" / "pfl" / "bin" / "python"
    scripts.mkdir()
    peer.parent.mkdir(parents=True)
    peer.symlink_to(sys.executable)
    (scripts / "common.py").write_text(COMMON)
    (scripts / "models_torch.py").write_text(MODELS)
    (scripts / "pfl_bench.py").write_text("import sys\nprint('{\"s_per_round\": 0.25}' if 'own' in sys.argv else '')")
    out = tmp_path / "page.md"
    command = [str(SCRIPTS / "bench-card"), "--peer-scripts", str(scripts), "--peers", str(tmp_path / "peers")]
    command += ["--device", "cpu", "--workloads", "own,broken", "--bits-of", "own", "--pools", "0", "--rounds", "1"]
    command += ["--clients", "2", "--examples", "4", "--out", str(out)]
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    page = out.read_text()
    assert page == done.stdout
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line.startswith("|")]
    # One trainer can have it; the CPU is as far from itself as it should be.
    assert ["own", "recorded", "all", "the same bits", ""] in rows
    assert [row[-1] for row in rows if row[:3] == ["own", "recorded", "in this process"]] == ["0"]
    assert {(row[1], row[2]) for row in rows if row[0] == "own" and len(row) == 6} == {
        ("auto", "float32"),
        ("pfl", "float32"),
        *((trainer, precision) for trainer in ("recorded", "one_by_one", "vmap") for precision in ("float32", "bf16")),
    }
    missing = page.partition("## Not run")[2]
    assert "own stacked float32: engine.trainer = 'stacked' cannot be used" in missing
    assert "broken recorded float32: model= could not make a module: AssertionError('it is broken')" in missing
    assert "broken pfl: " in missing
    assert "Anything on a card" in missing


def test_the_benchmark_says_what_a_chunk_costs_beside_training(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text(COMMON.replace('("own", "broken")', '("W4",)'))
    command = [sys.executable, str(SCRIPTS / "bench"), "--overhead", "--workloads", "W4", "--rounds", "2"]
    done = subprocess.run(
        [*command, "--peer-scripts", str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    *_, row = done.stdout.splitlines()
    workload, trained, local_ms, rest_ms, share = (cell.strip() for cell in row.split("|")[1:-1])
    assert (workload, trained.rpartition(", ")[2]) == ("W4", "3")
    assert float(share.rstrip("%")) / 100 == pytest.approx(
        float(rest_ms) / (float(local_ms) + float(rest_ms)), abs=0.02
    )


@pytest.mark.parametrize("script", IN_PYTHON, ids=lambda script: script.name)
def test_a_script_imports_names_that_there_are(script: Path) -> None:
    """Imports inside functions would fail only when they are called."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("raysim", "tuning"):
            module = importlib.import_module(node.module)
            for name in node.names:
                assert hasattr(module, name.name) or importlib.import_module(f"{node.module}.{name.name}")
