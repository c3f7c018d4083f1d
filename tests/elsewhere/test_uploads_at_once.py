"""Two machines upload to one URI at the same moment: whatever the order of their requests, one of them is told."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raysim.errors import RaysimError, RemoteError
from raysim.storage import atomic
from raysim.storage.remote.mirror import Mirror, OvertakenError
from raysim.storage.remote.remote import Remote

REQUESTS = ("find", "put", "mark", "delete", "beginning_with")

Told = dict[str, RaysimError]


class Turns:
    """Lets one thread at a time run, from one request of `Remote` to its next one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may: dict[str, threading.Semaphore] = {}
        self._waits = threading.Semaphore(0)
        for name in REQUESTS:
            monkeypatch.setattr(Remote, name, self._in_turn(getattr(Remote, name)))

    def _in_turn(self, request: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*given: Any) -> Any:
            if (may := self._may.get(threading.current_thread().name)) is not None:
                self._waits.release()
                may.acquire()
            return request(*given)

        return wait

    def run(self, tasks: dict[str, Callable[[], object]], choose: Callable[[list[str]], str]) -> Told:
        """Run the tasks, each in a thread of its name; return the errors."""
        told: Told = {}
        self._may = {name: threading.Semaphore(0) for name in tasks}

        def task(name: str) -> None:
            try:
                tasks[name]()
            except RaysimError as error:
                told[name] = error
            finally:
                ended.add(name)
                self._waits.release()

        ended: set[str] = set()
        for name in tasks:
            threading.Thread(target=task, args=(name,), name=name, daemon=True).start()
            # It runs to its first request.
            self._waits.acquire()
        while left := sorted(set(tasks) - ended):
            self._may[choose(left)].release()
            self._waits.acquire()
        return told


def machine(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mirror:
    monkeypatch.setenv("RAYSIM_CACHE", str(tmp_path / name))
    mirror = Mirror.of((tmp_path / "there").as_uri())
    mirror.pull()
    return mirror


def write(mirror: Mirror, text: str, more: str | None = None) -> None:
    """Write a round: its row, and perhaps another file."""
    mirror.path.mkdir(exist_ok=True)
    atomic.write_text(mirror.path / "experiment.json", "{}")
    atomic.write_text(mirror.path / "rows", text)
    if more is not None:
        (mirror.path / "clients").mkdir(exist_ok=True)
        atomic.write_text(mirror.path / "clients" / more, text)


def contents(folder: Path) -> dict[str, str]:
    files = (file for file in folder.rglob("*") if file.is_file() and file.name != "mirror.json")
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}


def check(seed: int, has_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(seed)
    if has_begun:
        first = machine("first", tmp_path, monkeypatch)
        write(first, "0", "0")
        first.push()
    one, two = machine("one", tmp_path, monkeypatch), machine("two", tmp_path, monkeypatch)
    write(one, "one", draw.choice([None, "one", "same"]))
    write(two, "two", draw.choice([None, "two", "same"]))
    turns = Turns(monkeypatch)
    # How long one of them waits for an answer: for one request of the other, or for its whole upload.
    patience, now = draw.choice([0.5, 0.9, 0.97]), "one"

    def choose(left: list[str]) -> str:
        nonlocal now
        if now not in left or draw.random() > patience:
            now = draw.choice(left)
        return now

    told = turns.run({"one": one.push, "two": two.push}, choose)
    assert told
    assert all(isinstance(error, OvertakenError) for error in told.values())
    # Who goes on, or reads, has what one machine wrote, or an error.
    for mirror, text in ((one, "one, on"), (two, "two, on")):
        write(mirror, text)
    again = turns.run({"one": one.push, "two": two.push}, lambda left: left[0])
    assert len(again) == 1
    assert not [file for file in (tmp_path / "there").iterdir() if file.name.startswith(".")]
    # A file that both replaced may be the other's: a reader takes nothing then.
    with suppress(RemoteError):
        reader = machine("reader", tmp_path, monkeypatch)
        assert contents(reader.path) == contents((two if "one" in again else one).path)


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("seed", [*range(8), 160, 179, 192, 232, 242, 287])
def test_in_any_order(seed: int, has_begun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check(seed, has_begun, tmp_path, monkeypatch)
