"""When a run moves to workers: the estimate, and the same bits wherever the move comes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import raysim
from raysim.api import executors
from raysim.api import run as api
from raysim.engine import outlook
from raysim.engine.on_ray.driver import session
from raysim.engine.outlook import Outlook
from raysim.engine.plan.plan import Plan
from raysim.engine.rounds.finished_round import Finished
from raysim.engine.rounds.opening import Opening
from raysim.experiment.experiment import EngineSection

Make = Callable[..., raysim.Experiment]

CLIENT: dict[str, Any] = {"optimizer": {"lr": 0.3}, "batch_size": 4, "correction": {"name": "scaffold"}}
ROUNDS = 5


def after(rounds: int, round_s: float, workers: int = 2, of: int = 1000) -> Outlook:
    made = Outlook(of, workers)
    for _ in range(rounds):
        made.work(round_s, 1.0)
        made.round()
    return made


def test_a_run_that_is_over_before_workers_have_started_stays() -> None:
    assert not after(60, 0.01).moves
    assert after(60, 0.1).moves


def test_what_is_left_counts_and_not_what_is_done() -> None:
    assert after(100, 0.1).moves
    assert not after(900, 0.1).moves


def test_one_worker_ends_nothing_sooner() -> None:
    assert not after(100, 10.0, workers=1).moves


def test_the_first_steps_alone_do_not_decide() -> None:
    assert not after(1, outlook.SURE_S / 2).moves
    assert after(1, 2 * outlook.SURE_S).moves


def test_rounds_that_cost_more_on_ray_than_training_stay() -> None:
    assert not after(10_000, 0.006, of=100_000).moves
    assert after(10_000, 0.02, of=100_000).moves


def test_whether_it_may_move_is_asked_once_and_only_if_it_would() -> None:
    asked: list[bool] = []

    def may_move() -> bool:
        asked.append(True)
        return False

    made = Outlook(1000, 2, may_move)
    assert not made.moves
    assert not asked
    made.work(1.0, 0.01)
    assert made.is_long
    assert not made.moves
    assert not made.breaks_off
    assert asked == [True]


def test_a_round_is_broken_off_only_if_it_would_take_long() -> None:
    begun = after(0, 0.0)
    begun.work(1.0, 0.5)
    assert begun.moves
    assert not begun.breaks_off
    begun = after(0, 0.0)
    begun.work(1.0, 0.01)
    assert begun.breaks_off
    # An evaluation says nothing about how far the training is.
    begun = after(1, 1.0)
    begun.work(60.0, 0.0)
    assert not begun.breaks_off


@pytest.fixture
def unconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process seems not connected to Ray, whichever tests ran in it before."""
    if "ray" in sys.modules:
        monkeypatch.setattr(sys.modules["ray"], "is_initialized", lambda: False)


@pytest.mark.usefixtures("unconnected")
@pytest.mark.parametrize(
    ("engine", "executor", "address", "begins"),
    [
        ({}, None, None, "here at first"),
        ({"workers": 0}, None, None, "here"),
        ({"workers": 2}, None, None, "on Ray"),
        ({}, "ray", None, "on Ray"),
        ({"gpus_per_worker": 1}, None, None, "on Ray"),
        ({"gpus_per_worker": 0}, None, None, "here at first"),
        ({}, None, "auto", "on Ray"),
    ],
)
def test_only_auto_without_an_address_begins_here_and_may_move(
    engine: dict[str, Any], executor: Any, address: str | None, begins: str
) -> None:
    assert executors.begins(EngineSection.model_validate(engine), executor, address) == begins


class Moves(Outlook):
    """Moves after two rounds, or in the middle of the third."""

    mid_round = False

    @property
    def is_long(self) -> bool:
        return self._done == 2 and (self._share > 0 if self.mid_round else self._share == 0)

    @property
    def breaks_off(self) -> bool:
        return self.mid_round and self.moves


@pytest.fixture(params=["between rounds", "in mid-round"])
def moving(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, unconnected: None) -> None:
    monkeypatch.setattr(Moves, "mid_round", request.param == "in mid-round")
    monkeypatch.setattr(executors, "Outlook", Moves)


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The round from which a stand-in for Ray's session goes on, in this process."""
    begun: list[int] = []

    def run(plan: Plan, opening: Opening, address: Any, watcher: Any, at_end: Any, name: str) -> Any:
        begun.append(opening.done or 0)
        return executors.run(plan, opening, "here", None, watcher, at_end)

    def rounds(plan: Plan, opening: Opening | None, address: Any, start: Any = None) -> Iterator[Finished]:
        state: Any = None if start is None else start[0]
        begun.append(state.round if opening is None else opening.done or 0)
        return (
            executors._here(plan, None, state, "here")
            if opening is None
            else executors.steps(plan, opening, "here", None)
        )

    monkeypatch.setattr(session, "run", run)
    monkeypatch.setattr(session, "rounds", rounds)
    return begun


def made(experiment: Make, workers: int | str = "auto") -> raysim.Experiment:
    return experiment(client=CLIENT, rounds=ROUNDS, engine={"workers": workers, "chunk_size": 2})


@pytest.mark.usefixtures("moving")
def test_a_run_that_moves_has_the_bits_of_one_that_stays(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, moved: list[int]
) -> None:
    staying = raysim.run(made(experiment, 0), dataset=dataset, path=tmp_path / "stays")
    assert not moved
    moving = raysim.run(made(experiment), dataset=dataset, path=tmp_path / "moves")
    assert moved == [2]
    for name, value in staying.params.items():
        assert torch.equal(moving.params[name], value)
    assert moving.rounds["round"].to_pylist() == list(range(ROUNDS))
    assert moving.rounds["loss"].equals(staying.rounds["loss"])


@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize("has_folder", [False, True])
def test_rounds_that_are_pulled_move_too(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, moved: list[int], has_folder: bool
) -> None:
    path = tmp_path / "moves" if has_folder else None
    staying = list(raysim.rounds(made(experiment, 0), dataset=dataset))
    moving = list(raysim.rounds(made(experiment), dataset=dataset, path=path))
    assert moved == [2]
    assert [one.index for one in moving] == list(range(ROUNDS))
    for one, other in zip(moving, staying, strict=True):
        assert torch.equal(one.weights.params, other.weights.params)


@pytest.mark.usefixtures("moving")
@pytest.mark.parametrize("pulled", [False, True], ids=["run", "rounds"])
def test_what_cannot_be_sent_to_workers_stays_and_says_so(
    tmp_path: Path,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    moved: list[int],
    pulled: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    lock = threading.Lock()

    def model() -> torch.nn.Module:
        with lock:
            return torch.nn.Linear(5, 3)

    sections = {"client": CLIENT, "rounds": ROUNDS, "model": None}
    asked = [experiment(**sections, engine={"workers": workers, "chunk_size": 2}) for workers in (0, "auto")]
    with caplog.at_level("WARNING", "raysim"):
        if pulled:
            last = [list(raysim.rounds(one, dataset=dataset, model=model))[-1].params for one in asked]
        else:
            paths = tmp_path / "stays", tmp_path / "may-move"
            last = [
                raysim.run(one, dataset=dataset, model=model, path=path).params
                for one, path in zip(asked, paths, strict=True)
            ]
    assert not moved
    assert "stays in this process: model= cannot be sent to workers" in caplog.text
    assert all(torch.equal(value, last[1][name]) for name, value in last[0].items())


@pytest.mark.usefixtures("ray_cluster")
def test_a_run_moves_to_workers_of_ray(
    tmp_path: Path, experiment: Make, dataset: raysim.FederatedDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Moves, "mid_round", True)
    monkeypatch.setattr(executors, "Outlook", Moves)
    staying = raysim.run(made(experiment, 0), dataset=dataset, path=tmp_path / "stays")
    # The script is connected already, so it would begin on Ray.
    monkeypatch.setattr(api, "begins", lambda *_: "here at first")
    moving = raysim.run(made(experiment), dataset=dataset, path=tmp_path / "moves")
    assert [count > 0 for count in moving.rounds["ray_bytes_up"].to_pylist()[:3]] == [False, False, True]
    for name, value in staying.params.items():
        assert torch.equal(moving.params[name], value)
