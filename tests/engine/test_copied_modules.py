"""Modules with a large frozen base are copies of one: a worker has no memory of its own for the base, nor as it starts.

Where a copy would not be like the factory's modules, every process calls the factory.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from ray import cloudpickle
from torch import Tensor, nn

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.models import memory
from raysim.models.copies import Copies

Make = Callable[..., raysim.Experiment]

WIDTH, DEPTH = 1024, 16
BASE_BYTES = DEPTH * 4 * WIDTH * WIDTH


class Net(nn.Module):
    """A frozen base below a head; `given` is what some modules hold beside."""

    def __init__(self, given: object = None) -> None:
        super().__init__()
        self.base, self.norm = nn.Linear(5, 4).requires_grad_(False), nn.BatchNorm1d(4)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(4, 3)
        # Drawn behind the base, and no parameters: where the base is not drawn, they must not be drawn anew.
        self.scale = torch.rand(4)
        self.register_buffer("mask", torch.rand(4) > 0.2)
        self.given = given

    def forward(self, x: Tensor) -> Tensor:
        inner = self.drop(torch.relu(self.norm(self.base(x))))
        made: Tensor = self.head(inner * self.scale * self.mask)
        return made


class Tied(Net):
    """A module whose parameter has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.again = nn.Linear(5, 4)
        self.again.weight = self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.again(x))
        return made


class Forgets(Net):
    """A module whose pickle is not like it."""

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "scale": torch.ones(4)}


class Surrounded(Net):
    """A module with a function that has the module itself around it."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[Tensor], Tensor] = lambda x: self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.after(self.base(x))
        return made


class Defaults(Net):
    """A module with a function that has a part of the module as a default."""

    def __init__(self) -> None:
        super().__init__()
        self.after: Callable[[Tensor], Tensor] = lambda x, head=self.head: head(x)  # type: ignore[misc]

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.after(self.base(x))
        return made


class Attribute(Net):
    """A module with a parameter that has another one as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        vars(self.head.weight)["beside"] = self.head.bias

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.base(x) @ self.head.weight.T + vars(self.head.weight)["beside"]
        return made


class Hooked(Net):
    """A module that doubles a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight.register_hook(lambda gradient: 2 * gradient)


def locked() -> nn.Module:
    return Net(threading.Lock())


class Deep(nn.Module):
    """A base that cannot be overlooked."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(5, WIDTH), nn.Linear(WIDTH, 3)
        self.base = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, device="meta") for _ in range(DEPTH)))
        self.base.to_empty(device="cpu").requires_grad_(False)
        for parameter in self.base.parameters():
            nn.init.eye_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.head(self.base(self.first(x)))
        return made


@pytest.fixture
def here(experiment: Make) -> raysim.Experiment:
    return experiment(model=None, rounds=2, engine={"workers": 0}, client={"batch_size": "full"})


@pytest.mark.parametrize(
    ("make", "copies"),
    [
        (Net, True),
        (Tied, True),
        (Forgets, False),
        (Surrounded, False),
        (Defaults, False),
        (Attribute, False),
        (Hooked, False),
        (locked, False),
    ],
)
def test_copies_have_the_bits_of_the_factorys_modules_or_are_not_made(
    make: Callable[[], nn.Module],
    copies: bool,
    here: raysim.Experiment,
    dataset: raysim.FederatedDataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> list[Any]:
        return [finished.params for finished in raysim.rounds(here, dataset=dataset, model=make)]

    expected = run()
    monkeypatch.setattr(memory, "SMALLEST_BYTES", 0)
    assert isinstance(resolve(here, dataset=dataset, model=make).model.factory, Copies) is copies
    for one, other in zip(expected, run(), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_copy_has_parameters_of_its_own_and_tied_ones_stay_tied() -> None:
    copies = Copies.of(Tied())
    one, other = copies(), copies()
    assert one.again.weight is one.base.weight  # type: ignore[union-attr]
    assert not {id(each) for each in one.parameters()} & {id(each) for each in other.parameters()}


STARTS = """
import mmap, pickle, resource, sys
import torch
from pathlib import Path
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.pool import Pool
import tests.engine.test_copied_modules

def private():
    line = next(each for each in Path("/proc/self/status").read_text().splitlines() if each.startswith("VmData"))
    return 1024 * int(line.split()[1])

# Whoever asks for more has an error.
resource.setrlimit(resource.RLIMIT_DATA, (private() + int(sys.argv[4]),) * 2)
with open(sys.argv[1], "rb") as sent, open(sys.argv[2], "rb") as base:
    mapped = memoryview(mmap.mmap(base.fileno(), 0, access=mmap.ACCESS_READ))
    plan = pickle.load(sent, buffers=[mapped[i:j] for i, j in eval(sys.argv[3])])
Pool(plan, torch.device("cpu"), "worker", ExampleMemory())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_a_worker_starts_with_less_than_a_quarter_of_the_base_for_itself(
    here: raysim.Experiment, dataset: raysim.FederatedDataset, tmp_path: Path
) -> None:
    plan = resolve(here, dataset=dataset, model=Deep)
    assert plan.model.constants.num_bytes == BASE_BYTES
    buffers: list[pickle.PickleBuffer] = []
    (tmp_path / "plan").write_bytes(cloudpickle.dumps(plan, protocol=5, buffer_callback=buffers.append))
    places, end = [], 0
    with (tmp_path / "base").open("wb") as file:
        for buffer in buffers:
            # As Ray's store does, at multiples of 64 bytes.
            file.write(bytes(-end % 64))
            start = end + -end % 64
            end = start + file.write(buffer.raw())
            places.append((start, end))
    assert end >= BASE_BYTES
    given = [str(tmp_path / "plan"), str(tmp_path / "base"), repr(places), str(BASE_BYTES // 4)]
    ended = subprocess.run([sys.executable, "-c", STARTS, *given], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
