"""A frozen base on Ray: workers map one copy of it, and runs have the same bits with any number of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import raysim
from raysim.models import memory

pytestmark = pytest.mark.usefixtures("ray_cluster")

WIDTH = 200


class Noting(nn.Module):
    """A module whose workers note how its base lies in their memory; one of them dies where the file `trap` is."""

    def __init__(self, notes: Path, script: int) -> None:
        super().__init__()
        self.base, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.inner = nn.Linear(WIDTH, WIDTH)
        self._notes, self._script = notes, script

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if os.getpid() != self._script and torch.is_grad_enabled():
            if (self._notes / "trap").exists():
                (self._notes / "trap").unlink(missing_ok=True)
                os.kill(os.getpid(), signal.SIGKILL)
            # Under an adapter too, it is the base's.
            (self._notes / f"worker-{os.getpid()}").write_text(mapping(self.inner.weight.data_ptr()))
        made: torch.Tensor = self.head(torch.tanh(self.inner(torch.tanh(self.base(x)))))
        return made


class Make:
    """Makes `Noting` modules; a worker can import it."""

    def __init__(self, notes: Path) -> None:
        self._notes, self._script = notes, os.getpid()

    def __call__(self) -> nn.Module:
        (self._notes / f"made-{os.getpid()}").touch()
        return Noting(self._notes, self._script)


def mapping(address: int) -> str:
    """The line about an address in this process's table of memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < stop:
            return line
    raise LookupError(address)


@pytest.mark.parametrize(
    ("model", "workers", "copied", "dies"),
    [
        ({"freeze": ["base.*", "inner.*"]}, 1, True, False),
        ({"freeze": ["base.*", "inner.*"]}, 3, False, False),
        ({"lora": {"r": 2, "targets": ["inner", "head"], "dropout": 0.2}}, 2, True, True),
    ],
    ids=["one worker", "three workers", "a worker that dies"],
)
def test_bits_do_not_depend_on_workers_that_map_one_base(
    model: dict[str, Any],
    workers: int,
    copied: bool,
    dies: bool,
    tmp_path: Path,
    dataset: raysim.FederatedDataset,
    experiment: Callable[..., raysim.Experiment],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(workers: int) -> list[dict[str, Any]]:
        # The module looks at files, so its local step cannot be recorded.
        engine = {"workers": workers, "cpus_per_worker": 0.25, "chunk_size": 2, "trainer": "one_by_one"}
        exp = experiment(model={"name": "own", **model}, rounds=2, engine=engine)
        return [finished.params for finished in raysim.rounds(exp, dataset=dataset, model=Make(tmp_path))]

    expected = run(0)
    if copied:
        monkeypatch.setattr(memory, "SMALLEST_BYTES", 0)
    if dies:
        (tmp_path / "trap").touch()
    for one, other in zip(expected, run(workers), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert not (tmp_path / "trap").exists()
    # Workers that copy the module never call its factory.
    makers = {note.name for note in tmp_path.glob("made-*")}
    assert (makers == {f"made-{os.getpid()}"}) is copied
    notes = [note.read_text().split() for note in tmp_path.glob("worker-*")]
    assert len(notes) >= 1
    # Shared, and a file of Ray's object store, which is one for all workers.
    assert {(permissions[-1], "plasma" in place) for _, permissions, *_, place in (note[:6] for note in notes)} == {
        ("s", True)
    }
