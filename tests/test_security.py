"""What others could reach, run or read: nothing beyond this machine, no code in data, no secret in records."""

from __future__ import annotations

import ast
import ipaddress
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open

import raysim

ROOT = Path(__file__).parent.parent
CODE = sorted([*(ROOT / "raysim").rglob("*.py"), *(ROOT / "tuning").rglob("*.py")])

Make = Callable[..., raysim.Experiment]

OWN_CLUSTER = """
import json
import psutil
import raysim
data = {"name": "digits", "clients": 4}
exp = raysim.Experiment.model_validate({
    "data": data, "model": {"name": "linear"}, "cohort": {"size": 2}, "engine": {"workers": 1, "cpus_per_worker": 0.5},
})
steps = raysim.rounds(exp)
next(steps)
me = psutil.Process()
processes = [me, *me.children(recursive=True)]
listening = [
    (process.name(), connection.laddr.ip)
    for process in processes
    for connection in process.net_connections("inet")
    if connection.status == psutil.CONN_LISTEN
]
commands = [" ".join(process.cmdline()) for process in processes]
steps.close()
print(json.dumps([listening, commands]))
"""


@pytest.fixture(scope="module")
def own_cluster() -> tuple[list[tuple[str, str]], str]:
    """Of a cluster of a script's own: who listens where, and the commands of all its processes."""
    done = subprocess.run([sys.executable, "-c", OWN_CLUSTER], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    listening, commands = json.loads(done.stdout.splitlines()[-1])
    return listening, "\n".join(commands)


@pytest.mark.ray
def test_a_cluster_of_a_scripts_own_listens_on_loopback_only(own_cluster: tuple[list[tuple[str, str]], str]) -> None:
    listening, _ = own_cluster
    assert {"gcs_server", "raylet"} <= {name for name, _ in listening}
    beyond = [(name, ip) for name, ip in listening if not is_loopback(ip)]
    assert not beyond


@pytest.mark.ray
def test_it_starts_neither_a_dashboard_nor_an_autoscaler(own_cluster: tuple[list[tuple[str, str]], str]) -> None:
    _, commands = own_cluster
    assert "log_monitor.py" in commands
    assert "dashboard/dashboard.py" not in commands
    assert "autoscaler/_private/monitor.py" not in commands


def is_loopback(ip: str) -> bool:
    address = ipaddress.ip_address(ip)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


# Data are not code


@pytest.fixture
def recorded(tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make) -> Path:
    """The folder of a run that leaves all that a run can leave."""
    exp = experiment(client={"batch_size": 4, "correction": {"name": "scaffold"}}, checkpoint={"every": 1})
    return raysim.run(exp, dataset=dataset, path=tmp_path / "run", profile=True).path


@pytest.mark.pictures
def test_what_a_run_leaves_is_data(recorded: Path) -> None:
    """Each file is what its name says, and none of these formats can hold code."""

    def tensors(file: Path) -> None:
        with safe_open(file, "pt") as opened:
            assert opened.keys()

    readers: dict[str, Callable[[Path], Any]] = {
        # The timeline may lack its last bracket, as its format allows.
        ".json": lambda file: (
            json.loads(file.read_text().rstrip().removesuffix(",").removesuffix("]") + "]")
            if file.name == "timeline.json"
            else json.loads(file.read_text())
        ),
        ".parquet": pq.read_table,
        ".safetensors": tensors,
        ".npy": np.load,
        ".png": lambda file: file.read_bytes().index(b"\x89PNG"),
        ".lock": lambda file: json.loads(file.read_text() or "null"),
    }
    kinds = {file: file.suffix or file.name for file in recorded.rglob("*") if file.is_file()}
    assert set(kinds.values()) == set(readers)
    for file, kind in kinds.items():
        readers[kind](file)


RUNS_CODE = {"pickle", "shelve", "marshal", "eval", "exec", "__import__", "import_module", "torch.load", "joblib.load"}
"""Modules and functions by which data become code."""


def used(file: Path) -> set[str]:
    """Every name that the file imports or calls, with its module where that is written."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
        elif isinstance(node, ast.Call):
            found.add(ast.unparse(node.func))
    return found


def test_nothing_is_unpickled_evaluated_or_imported_by_name() -> None:
    """Published files that are pickles are parsed, by `raysim/data/sources/array_pickle.py`."""
    found = {str(file.relative_to(ROOT)): used(file) & RUNS_CODE for file in CODE}
    assert {file: names for file, names in found.items() if names} == {
        "raysim/__init__.py": {"import_module"},  # of raysim's own names
        "raysim/models/copies.py": {"pickle"},  # of a module that this process pickled
        "raysim/client/trainers/recording/replay.py": {"exec"},  # of lines made from the operators that were recorded
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("model.name", "os.system"),
        ("model.name", "tests.test_security.Model"),
        ("data.name", "__import__('os').system('true')"),
        ("server.optimizer.name", "builtins.eval"),
        ("client.correction.name", "raysim.cli.main"),
    ],
)
def test_a_name_in_a_config_is_one_of_ours_and_nothing_else(key: str, value: str) -> None:
    with pytest.raises(raysim.ExperimentError, match=re.escape(value)):
        raysim.load(ROOT / "configs" / "quickstart.toml", [f'{key}="{value}"'])


# Secrets


def test_no_secret_reaches_the_records(
    tmp_path: Path, dataset: raysim.FederatedDataset, experiment: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "c0ffee-and-no-more"
    for name in ("RAY_AUTH_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD"):
        monkeypatch.setenv(name, secret)
    study = {"storage": f"postgresql://me:{secret}@host/studies", "space": {"client.optimizer.lr": {"grid": [0.1]}}}
    folder = raysim.run(experiment(tuning=study), dataset=dataset, path=tmp_path / "run").path
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert folder / "experiment.json" in files
    for file in files:
        assert secret.encode() not in file.read_bytes(), f"{file} holds it"
