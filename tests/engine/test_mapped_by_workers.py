"""Workers of the Ray that a script starts map the script's rows, also those that start later; the bits are the same."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, signal, time
import numpy as np, psutil
import raysim

draw = np.random.default_rng(0)
clients = {f"c{i}": (draw.standard_normal((100 + i, 400), np.float32), draw.integers(0, 3, 100 + i)) for i in range(40)}
dataset = raysim.FederatedDataset.from_clients(clients, {"t": clients["c0"]})
experiment = raysim.Experiment.model_validate({
    "rounds": 6, "model": {"name": "linear"}, "cohort": {"size": 8}, "evaluation": {"every": 2},
    "client": {"batch_size": 20, "optimizer": {"lr": 0.01}}, "engine": {"workers": 2, "cpus_per_worker": 0.5},
})

def mapping():
    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            maps = open(f"/proc/{process.pid}/maps").read()
            if "memfd:raysim-rows" in maps:
                found[process.pid] = " ".join(process.cmdline())
        except OSError:
            pass
    return found

there = here = None
killed = []
for done in raysim.rounds(experiment, dataset=dataset, executor="ray"):
    there = done.params
    if not killed:
        # The first round may begin before the second worker is there.
        while len(pools := [pid for pid, name in mapping().items() if "ClientPool" in name]) < 2:
            time.sleep(0.1)
        print(len(pools), "pools,", sum("Driver" in name for name in mapping().values()), "driver")
        killed.append(min(pools))
        os.kill(killed[0], signal.SIGKILL)
for done in raysim.rounds(experiment, dataset=dataset, executor="local"):
    here = done.params
print(all((there[name] == here[name]).all() for name in here), there.keys() == here.keys())
"""


@pytest.mark.ray
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere rows are copied")
def test_driver_and_workers_map_the_script_s_rows(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, cwd=tmp_path)
    assert done.stdout.splitlines(), done.stderr
    # Ray tells of the worker between the two.
    first, *_, last = done.stdout.splitlines()
    assert (first, last) == ("2 pools, 1 driver", "True True"), done.stderr
