"""A run without a worker says what it waits for, and ends when it has waited long enough."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from ray.exceptions import GetTimeoutError

from raysim.engine.on_ray.cluster.cluster import place
from raysim.engine.on_ray.cluster.wait import SAID_S, Room, Wait
from raysim.engine.on_ray.driver import session
from raysim.errors import ResourceError
from raysim.experiment.experiment import EngineSection

EACH = {"CPU": 0.5}


@pytest.mark.parametrize(
    ("free", "said"), [(3.5, "starting"), (0.5, "starting"), (0.4, "Other jobs"), (0.0, "Other jobs")]
)
def test_room_is_free_or_others_hold_it(free: float, said: str) -> None:
    assert said in Room({"CPU": free}, EACH).why


def test_a_card_that_others_hold_is_no_room_though_cpus_are_free() -> None:
    room = Room({"CPU": 4.0}, {"CPU": 1.0, "GPU": 0.25})
    assert room.why.startswith("each needs 1 CPU and 0.25 GPU, and Ray has 4 CPU and 0 GPU free. Other jobs")


def test_sums_of_shares_are_not_exact() -> None:
    assert Room({"CPU": 0.7999999999}, {"CPU": 0.8}).fits


def test_a_run_that_waits_says_so_once_and_again_when_it_waits_again(caplog: pytest.LogCaptureFixture) -> None:
    wait = Wait(100.0, lambda: Room({"CPU": 0.0}, EACH))
    with caplog.at_level(logging.WARNING, "raysim"):
        for waited_s in (SAID_S - 1, SAID_S + 1, 99.0):
            wait.check(waited_s, had_some=False)
        assert [record.message.split(":")[0] for record in caplog.records] == ["For 16 s no worker has started"]
        assert caplog.messages[0].endswith("The run waits for up to 100 s (engine.wait_s)")
        wait.check(0.5, had_some=True)
        wait.check(SAID_S + 2, had_some=True)
    assert caplog.messages[1].startswith("All workers were lost, and for 17 s no other started: each needs 0.5 CPU")
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(("had_some", "said"), [(False, r"how long to wait\.$"), (True, "resumed from its last")])
def test_a_run_that_has_waited_long_enough_ends(had_some: bool, said: str) -> None:
    for wait_s in (2.0, 1000.0):
        wait = Wait(wait_s, lambda: Room({"CPU": 0.0}, EACH))
        wait.check(wait_s, had_some)
        with pytest.raises(ResourceError, match=said):
            wait.check(wait_s + 0.1, had_some)


def test_a_placement_waits_as_long_as_the_experiment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    assert place(EngineSection(workers=1, wait_s=7.0)).wait_s == 7.0


def test_a_driver_whose_process_never_starts_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def get(*_: object, **__: object) -> None:
        raise GetTimeoutError

    killed: list[object] = []
    # Whatever Ray there is.
    monkeypatch.setattr(session, "Connection", lambda: SimpleNamespace(lives=True, check=lambda folder: None))
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr("raysim.engine.on_ray.cluster.handles.kill", killed.append)
    driver = SimpleNamespace(__ray_ready__=SimpleNamespace(remote=lambda: None))
    with pytest.raises(ResourceError, match=r"has not started in 0.01 s \(engine.wait_s\)"):
        session._wait_for_process(driver, 0.01, None)
    assert killed == [driver]
