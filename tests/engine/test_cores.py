"""What is tried before the first round takes the cores that other work leaves; what a run goes on with does not."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from torch import Tensor, nn

import raysim
from raysim.engine import cores
from raysim.engine.plan.first_answers import answers
from raysim.engine.plan.resolve import resolve

Make = Callable[..., raysim.Experiment]


@pytest.mark.parametrize(
    ("own", "there", "load", "expected"),
    [(2, 2, 0.1, 2), (2, 2, 0.9, 1), (2, 2, 7.0, 1), (4, 64, 30.0, 4), (4, 64, 62.0, 2), (4, 64, 90.0, 1)],
)
def test_free_cores_are_those_that_other_work_leaves(
    own: int, there: int, load: float, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "own", lambda: own)
    monkeypatch.setattr(os, "cpu_count", lambda: there)
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    assert cores.free() == expected


def test_where_the_load_is_not_known_all_cores_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "getloadavg")
    assert cores.free() == cores.own()


@pytest.fixture
def three_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch has three threads in this process, and two cores are free."""
    before = torch.get_num_threads()
    monkeypatch.setattr(cores, "free", lambda: 2)
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("three_threads")
def test_threads_are_put_back_and_never_more_than_there_were() -> None:
    with cores.on_free_cores():
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        with cores.on_free_cores():
            assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


THREADS: dict[str, set[int]] = {}


class Noting(nn.Module):
    """Notes the number of threads where it is made and where it is called."""

    def __init__(self) -> None:
        super().__init__()
        THREADS.setdefault("made", set()).add(torch.get_num_threads())
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        THREADS.setdefault("called", set()).add(torch.get_num_threads())
        return cast(Tensor, self.b(x + torch.relu(self.a(x))))


@pytest.mark.usefixtures("three_threads")
def test_modules_that_are_compared_are_made_on_all_cores_and_tried_on_free_ones(
    experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    THREADS.clear()
    # What follows the comparison makes modules too, which take the first one's values.
    with monkeypatch.context() as only_here:
        only_here.setattr("raysim.engine.plan.resolve._minimised", _broken)
        with pytest.raises(KeyboardInterrupt):
            resolve(experiment(), dataset=dataset, model=Noting)
    assert THREADS["made"] == {3}
    assert THREADS["called"] == {2}
    plan = resolve(experiment(), dataset=dataset, model=Noting)
    answers(plan)
    assert THREADS["called"] == {2}
    assert torch.get_num_threads() == 3
    assert plan.choice.trainer == "interpreted"


def _broken(*given: object) -> None:
    raise KeyboardInterrupt
