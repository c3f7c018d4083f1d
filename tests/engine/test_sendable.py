"""What a script passes and workers cannot have is named before anything starts, with the object inside."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.engine.on_ray.cluster import sendable
from raysim.engine.plan.resolve import resolve
from tests.support.executors import EXECUTORS
from tests.support.packages import with_packages

Make = Callable[..., raysim.Experiment]


class Counter:
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return 2 * nn.functional.cross_entropy(outputs, targets, reduction="none")


def with_lock() -> dict[str, Any]:
    lock, generator = threading.Lock(), (each for each in "ab")

    def make(section: Any) -> raysim.Correction:
        with lock:
            return raysim.Correction()

    def score(scale: Any, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0]

    def module(unused: Any = lock) -> nn.Module:
        return nn.Linear(5, 3)

    return {
        "correction": make,
        "metrics": {"mine": partial(score, {"deep": [generator]})},
        "loss": Counter(),
        "model": module,
    }


@pytest.mark.parametrize(
    ("keyword", "says"),
    [
        (
            "correction",
            "the variable 'lock' of the function with_lock.<locals>.make, a _thread.lock, cannot be pickled",
        ),
        ("metrics", "element 0, a builtins.generator, cannot be pickled"),
        ("loss", "the attribute 'lock' of a tests.engine.test_sendable.Counter, a _thread.lock, cannot be pickled"),
        ("model", "a default of the function with_lock.<locals>.module, a _thread.lock, cannot be pickled"),
    ],
)
def test_the_object_that_cannot_be_pickled_is_named_before_anything_starts(
    keyword: str,
    says: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unwanted(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("Ray is started")

    monkeypatch.setattr("ray.init", unwanted)
    parts: Any = {"dataset": dataset, keyword: with_lock()[keyword]}
    said = f"{keyword}= cannot be sent to workers: {says}"
    exp = experiment(engine=EXECUTORS["2 workers"])
    calls: list[Callable[[], Any]] = [
        lambda: list(raysim.rounds(exp, **parts)),
        lambda: raysim.run(exp, path=tmp_path / "run", **parts),
    ]
    for call in calls:
        with pytest.raises(raysim.ExperimentError, match=re.escape(said)):
            call()
    assert not (tmp_path / "run").exists()


def test_in_this_process_nothing_is_pickled(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    assert len(list(raysim.rounds(experiment(rounds=1), dataset=dataset, loss=Counter()))) == 1


def test_what_can_be_sent_is_not_refused(experiment: Make, dataset: raysim.FederatedDataset) -> None:
    generator = torch.Generator().manual_seed(1)
    weights = torch.rand(3, generator=generator)
    loss = partial(nn.functional.cross_entropy, weight=weights, reduction="none")
    plan = resolve(experiment(), dataset=dataset, loss=loss, correction=lambda section: raysim.Correction())
    sendable.check(plan)


SCRIPT = """
import pathlib, sys
sys.path.insert(0, str(pathlib.Path("elsewhere").absolute()))
import raysim, sibling
e = raysim.load("tiny.toml")
calls = {
    "rounds": lambda: list(raysim.rounds(e, correction=sibling.make)),
    "run": lambda: raysim.run(e, correction=sibling.make, path="run", progress=False),
    "sweep": lambda: raysim.run_sweep(e, {"seed": [1, 2]}, correction=sibling.make, path="sweep", progress=False),
}
for name, call in calls.items():
    try:
        call()
    except raysim.ExperimentError as error:
        print(f"{name}: {error}")
"""


@pytest.mark.ray
def test_a_module_that_workers_cannot_import_is_named(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "sibling.py").write_text(
        "import raysim\ndef make(section):\n    return raysim.Correction(client=raysim.ClientHalf(pull=0.1))\n"
    )
    (tmp_path / "tiny.toml").write_text(
        'rounds = 1\ndata = { name = "digits", clients = 20 }\nmodel = { name = "linear" }\ncohort = { size = 3 }\n'
        "engine = { workers = 2, cpus_per_worker = 0.5 }\n"
    )
    done = with_packages("-c", SCRIPT, site=tmp_path / "none", cwd=tmp_path)
    said = [line for line in done.stdout.splitlines() if "Workers cannot import" in line]
    assert [line.partition(":")[0] for line in said] == ["rounds", "run", "sweep"], done.stderr[-3000:]
    assert all("the module 'sibling', from which" in line for line in said)
    assert not (tmp_path / "run").exists()
