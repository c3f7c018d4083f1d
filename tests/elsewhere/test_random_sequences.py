"""Random sequences of what happens to a folder and its copies: no row of a round vanishes without a word.

Two machines write, one after another or at once; uploads are cut, readers look, copies and indices are lost, and the
URI goes back to a backup.
"""

from __future__ import annotations

import logging
import random
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from raysim.errors import RaysimError, RemoteError
from raysim.storage import atomic
from raysim.storage.remote import folder, removed
from raysim.storage.remote.folder import local_copy, read_only_copy
from raysim.storage.remote.mirror import Mirror
from raysim.storage.remote.remote import Remote

MACHINES = ("one", "two")

STEPS = 25


def rows(where: Path) -> list[str]:
    return (where / "rows").read_text().split() if (where / "rows").exists() else []


class World:
    """A URI, its backups, and machines, of which some are writing."""

    def __init__(self, root: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.there, self._root, self._monkeypatch = root / "there", root, monkeypatch
        self._draw, self._rounds, self._backups = random.Random(seed), 0, 0
        self._writing: dict[str, tuple[ExitStack, Path]] = {}
        # What raysim does, and what happens to it.
        self.raysims: tuple[Callable[[str], None], ...] = (
            *(self.begin, self.write, self.write, self.cut, self.end, self.read, self.read),
        )
        self.others: tuple[Callable[[str], None], ...] = (self.backup, self.restore, self.lose_copy, self.lose_index)

    def on(self, machine: str) -> Mirror:
        self._monkeypatch.setenv("RAYSIM_CACHE", str(self._root / machine))
        return Mirror.of(self.there.as_uri())

    def step(self) -> tuple[Callable[[str], None], str]:
        does = self._draw.choice(self.raysims if self._draw.random() < 0.75 else self.others)
        return does, self._draw.choice(MACHINES)

    def begin(self, machine: str) -> None:
        if machine not in self._writing:
            block = ExitStack()
            self._writing[machine] = block, block.enter_context(local_copy(self.on(machine).uri))

    def write(self, machine: str) -> None:
        self.begin(machine)
        self.next_round(self._writing[machine][1], machine)
        if self._draw.random() < 0.7:
            self.on(machine).push()

    def next_round(self, where: Path, machine: str) -> None:
        """Write a row, then the checkpoint that has all rows behind it, and delete the older one."""
        self._rounds += 1
        now = " ".join([*rows(where), f"{machine}-{self._rounds}"])
        (where / "checkpoints").mkdir(parents=True, exist_ok=True)
        atomic.write_text(where / "experiment.json", "{}")
        atomic.write_text(where / "rows", now)
        for older in (where / "checkpoints").iterdir():
            removed.unlink(older)
        atomic.write_text(where / "checkpoints" / str(self._rounds), now)

    def cut(self, machine: str) -> None:
        """Nothing answers after so many files of an upload."""
        self.begin(machine)
        self.next_round(self._writing[machine][1], machine)
        left, put = iter(range(self._draw.randrange(5))), Remote.put

        def put_some(remote: Remote, file: Path, name: str) -> None:
            if next(left, None) is None:
                raise RemoteError("nothing answers")
            put(remote, file, name)

        with self._monkeypatch.context() as patched:
            patched.setattr(Remote, "put", put_some)
            block, _ = self._writing.pop(machine)
            block.close()

    def end(self, machine: str) -> None:
        if machine in self._writing:
            self.on(machine)
            self._writing.pop(machine)[0].close()

    def read(self, machine: str) -> None:
        with read_only_copy(self.on(machine).uri) as where:
            rows(where)

    def backup(self, machine: str) -> None:
        if self.there.exists():
            shutil.copytree(self.there, self._root / f"backup-{self._backups}")
            self._backups += 1

    def restore(self, machine: str) -> None:
        if self._backups:
            shutil.rmtree(self.there, ignore_errors=True)
            shutil.copytree(self._root / f"backup-{self._draw.randrange(self._backups)}", self.there)

    def lose_copy(self, machine: str) -> None:
        if machine not in self._writing:
            shutil.rmtree(self.on(machine).path, ignore_errors=True)

    def lose_index(self, machine: str) -> None:
        if self._draw.random() < 0.3:
            (self.there / "mirror.json").unlink(missing_ok=True)

    def close(self) -> None:
        for machine in list(self._writing):
            try:
                self.end(machine)
            except RaysimError:
                continue

    def seen(self) -> dict[str, list[str]]:
        """Return the rows that each machine has, and the URI."""
        return {"there": rows(self.there), **{machine: rows(self.on(machine).path) for machine in MACHINES}}


@pytest.mark.parametrize("seed", range(12))
def test_no_row_vanishes_without_a_word(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(folder, "PAUSES_S", ())
    world, told = World(tmp_path, seed, monkeypatch), []
    for _ in range(STEPS):
        does, machine = world.step()
        told.append(f"{does.__name__} on {machine}")
        before, is_told = world.seen(), False
        caplog.clear()
        try:
            does(machine)
        except RaysimError:
            is_told = True
        is_told = is_told or any(record.levelno >= logging.WARNING for record in caplog.records)
        after = world.seen()
        if does in world.raysims and not is_told:
            for place, known in before.items():
                assert after[place][: len(known)] == known, f"at {place}, after: {', '.join(told)}"
        # A machine that has nothing yet finds what is there, with the rows of each checkpoint, or is refused.
        if (world.there / "mirror.json").exists():
            shutil.rmtree(tmp_path / "fresh", ignore_errors=True)
            with read_only_copy(world.on("fresh").uri) as where:
                assert rows(where) == after["there"], ", ".join(told)
                for checkpoint in (where / "checkpoints").glob("*"):
                    behind = checkpoint.read_text().split()
                    assert rows(where)[: len(behind)] == behind, ", ".join(told)
    world.close()
