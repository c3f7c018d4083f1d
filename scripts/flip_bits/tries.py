"""Flips one bit of a recorded run, or of its data, and tells what resuming the run makes of it."""

from __future__ import annotations

import logging
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import numpy as np
import torch

import raysim
from raysim.data import DatasetWriter, Field
from raysim.run_folder import cost_columns

Outcome = Literal["refused", "identical", "SILENT", "crashed"]

OUTCOMES: tuple[Outcome, ...] = ("refused", "identical", "SILENT", "crashed")
"""An error of raysim's; the numbers of the undisturbed run; other numbers; an error that is not raysim's."""

BEFORE, AFTER = 3, 5
"""Rounds of the run whose bits are flipped, and of the resumed one."""

SETTINGS: Mapping[str, Any] = {
    "name": "flips",
    "rounds": BEFORE,
    "model": {"name": "linear"},
    "client": {"optimizer": {"lr": 0.1}, "batch_size": 8, "correction": {"name": "scaffold"}},
    "cohort": {"size": 4},
    "evaluation": {"every": 1, "split": ["test", "train"]},
    "checkpoint": {"every": 1, "keep": 2},
    "engine": {"workers": 0, "trainer": "one_by_one", "chunk_size": 2},
}
"""Of a run with client states and with rows of clients. Half of its clients take part before the flip and after it."""


@dataclass(frozen=True)
class Scene:
    """A recorded run.

    place: holds all its files. resume: goes on with it, in a copy of `place`. hidden: parts of `place` that are not
    copied, such as another machine's cache.
    """

    name: str
    place: Path
    resume: Callable[[Path], raysim.Result]
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Try:
    """What one flipped bit led to."""

    scene: str
    file: str
    bit: int
    outcome: Outcome
    said: str

    @property
    def kind(self) -> str:
        """The file's kind: its scene, and its name without numbers and digests."""
        name = re.sub(r"[0-9a-f]{32}", "*", self.file)
        return f"{self.scene}: {re.sub(r'[0-9]+', '*', name)}"


def scenes(folder: Path) -> list[Scene]:
    """Carry out the runs: with data from the cache; with data of several record batches; in a folder at a URI."""
    made = []
    for name, prepare in (("cached", _cached), ("batches", _in_batches), ("published", _published)):
        place = folder / name
        place.mkdir(parents=True)
        made.append(prepare(name, place))
    return made


def _cached(name: str, place: Path) -> Scene:
    experiment = raysim.Experiment.model_validate({**SETTINGS, "data": {"name": "digits", "clients": 8}})
    with _cache(place / "cache"):
        raysim.run(experiment, path=place / "run", progress=False)
    return Scene(name, place, lambda at: raysim.resume(at / "run", rounds=AFTER, progress=False))


def _in_batches(name: str, place: Path) -> Scene:
    draws = np.random.default_rng(0)
    with DatasetWriter(place / "data", Field((6,), "float32"), Field((), "int64"), 3, batch_bytes=640) as writer:
        for split in ("train", "test"):
            for client in range(8):
                rows = 10 + 3 * client
                labels = draws.integers(0, 3, rows)
                writer.write(split, f"c{client}", draws.normal(size=(rows, 6)).astype(np.float32), labels)

    def data(at: Path) -> raysim.FederatedDataset:
        return raysim.FederatedDataset.open(at / "data")

    with _cache(place / "cache"):
        experiment = raysim.Experiment.model_validate(SETTINGS)
        raysim.run(experiment, dataset=data(place), path=place / "run", progress=False)
    return Scene(name, place, lambda at: raysim.resume(at / "run", dataset=data(at), rounds=AFTER, progress=False))


def _published(name: str, place: Path) -> Scene:
    settings = {**SETTINGS, "data": {"name": "synthetic", "clients": 8}}
    with _cache(place / "cache"):
        experiment = raysim.Experiment.model_validate(settings)
        raysim.run(experiment, path=(place / "there").as_uri(), progress=False)
    return Scene(
        name,
        place,
        lambda at: raysim.resume((at / "there").as_uri(), rounds=AFTER, progress=False),
        hidden=("cache",),
    )


def tries(scenes: list[Scene], scratch: Path, count: int, seed: int) -> Iterator[Try]:
    """Flip `count` bits, one at a time: every scene in turn, every kind of its files in turn."""
    draws = random.Random(seed)
    undisturbed = {scene.name: _resumed(scene, _copied(scene, scratch)) for scene in scenes}
    turns = {scene.name: _in_turn(scene, draws) for scene in scenes}
    for number in range(count):
        scene = scenes[number % len(scenes)]
        name = next(turns[scene.name])
        at = _copied(scene, scratch)
        bit = draws.randrange(8 * (at / name).stat().st_size)
        flip(at / name, bit)
        try:
            found = _resumed(scene, at)
        except raysim.RaysimError as error:
            outcome: tuple[Outcome, str] = ("refused", f"{type(error).__name__}: {error}")
        except Exception as error:
            outcome = ("crashed", f"{type(error).__name__}: {error}")
        else:
            what = difference(undisturbed[scene.name], found)
            outcome = ("identical", "") if what is None else ("SILENT", what)
        yield Try(scene.name, name, bit, *outcome)


def flip(file: Path, bit: int) -> None:
    """Flip one bit of a file."""
    content = bytearray(file.read_bytes())
    content[bit // 8] ^= 1 << bit % 8
    file.write_bytes(content)


def difference(expected: raysim.Result, found: raysim.Result) -> str | None:
    """Return what differs between two results, costs aside; None if nothing does."""
    if expected.params.keys() != found.params.keys():
        return "the model's names"
    for name, value in expected.params.items():
        if not torch.equal(value, found.params[name]):
            return f"the model's {name}"
    for table, left, right in (
        ("rounds", expected.rounds, found.rounds),
        ("clients", expected.clients, found.clients),
    ):
        names = [[name for name in each.column_names if not cost_columns.tells_cost(name)] for each in (left, right)]
        if names[0] != names[1]:
            return f"the columns of {table}"
        for name in names[0]:
            if not left[name].equals(right[name]):
                return f"{name} of {table}"
    return None


def _in_turn(scene: Scene, draws: random.Random) -> Iterator[str]:
    """Yield files: kinds in turn, in any order, and by chance within a kind; files without content have no bits."""
    by_kind: dict[str, list[str]] = {}
    for path in sorted(scene.place.rglob("*")):
        name = path.relative_to(scene.place).as_posix()
        if path.is_file() and path.stat().st_size and not name.startswith(tuple(f"{each}/" for each in scene.hidden)):
            by_kind.setdefault(Try(scene.name, name, 0, "identical", "").kind, []).append(name)
    kinds = list(by_kind.values())
    while True:
        draws.shuffle(kinds)
        for files in kinds:
            yield draws.choice(files)


def _copied(scene: Scene, scratch: Path) -> Path:
    at = scratch / scene.name
    shutil.rmtree(at, ignore_errors=True)
    shutil.copytree(scene.place, at, ignore=lambda folder, _: scene.hidden if Path(folder) == scene.place else ())
    return at


def _resumed(scene: Scene, at: Path) -> raysim.Result:
    with _cache(at / "cache"):
        return scene.resume(at)


@contextmanager
def _cache(folder: Path) -> Iterator[None]:
    """Use this cache in the block, draw no learning curve, and do not log: warnings of damage are expected."""
    log = logging.getLogger("raysim")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with mock.patch.dict(os.environ, {"RAYSIM_CACHE": str(folder)}), mock.patch("raysim.report.curve.of_run"):
            yield
    finally:
        log.setLevel(level)
