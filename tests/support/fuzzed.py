"""Tries one reader on one changed file, in a folder of its own, and says what went wrong."""

from __future__ import annotations

import os
import random
import shutil
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from raysim.errors import RaysimError
from tests.support.mutations import CHANGES, REPLACEMENTS, mutate
from tests.support.resealed import reseal

PATIENCE_S = 120
"""Seconds after which a reader hangs, for instance on a pipe; a report on a busy machine takes tens of them."""

_UNTOUCHED = "nothing may write here"


class Attempt(NamedTuple):
    """The changes of one try: of each file, by its place among the folder's, what is done to it, and its draws.

    resealed: whether checksums are made right again afterwards.
    """

    reader: str
    changes: tuple[tuple[int, str, int], ...]
    resealed: bool = False


GOOD = ("read", "refused")


class Outcome(NamedTuple):
    """What a try shows.

    kind: `read` or `refused`, which are good; a `traceback`, a `hang`, a file `outside`, or an error `without name`.
    text: what was changed, and what came of it.
    """

    kind: str
    text: str


def random_attempt(reader: str, seed: int) -> Attempt:
    """A try with one change, rarely more."""
    chance = random.Random(f"{reader} {seed}")
    kinds = [*CHANGES, *CHANGES, *CHANGES, *kinds_of_replacement(reader)]
    count = chance.choice([1, 1, 1, 2, 4])
    changes = tuple((chance.randrange(1000), chance.choice(kinds), chance.randrange(2**32)) for _ in range(count))
    return Attempt(reader, changes, chance.random() < 0.5)


def kinds_of_replacement(reader: str) -> list[str]:
    """What may lie in a file's place; a config may be a pipe, and whoever names one waits for it."""
    return [kind for kind in REPLACEMENTS if not (reader == "config" and kind == "pipe")]


class Place:
    """Where one reader is tried: a folder with good files, beside a file that nothing may touch.

    Args:
        at: an empty folder of this place's own.
        write: makes the good files; see `Reader`.
    """

    def __init__(self, at: Path, write: Callable[[Path], None]) -> None:
        self.here, self._good = at / "here", at / "good"
        self.folder = self.here / "folder"
        self.folder.mkdir(parents=True)
        (self.here / "untouched").write_text(_UNTOUCHED)
        with self.cache():
            write(self.folder)
        shutil.copytree(self.here, self._good, symlinks=True)

    @contextmanager
    def cache(self) -> Iterator[None]:
        """The cache lies in the place, so that every try begins with the same one."""
        before = os.environ.get("RAYSIM_CACHE")
        os.environ["RAYSIM_CACHE"] = str(self.here / "home" / "cache")
        try:
            yield
        finally:
            if before is None:
                del os.environ["RAYSIM_CACHE"]
            else:
                os.environ["RAYSIM_CACHE"] = before

    def restored(self) -> None:
        """Put the good files back."""
        shutil.rmtree(self.here)
        shutil.copytree(self._good, self.here, symlinks=True)

    def changed(self, changes: Sequence[tuple[int, str, int]]) -> list[str]:
        """Change files; return what was done."""
        done = []
        for number, kind, seed in changes:
            files = sorted(file for file in self._in_reach() if file.is_file() and not file.is_symlink())
            if files:
                file = files[number % len(files)]
                mutate(file, kind, seed)
                done.append(f"{kind} {seed} of {file.relative_to(self.here)}")
        return done

    def resealed(self) -> None:
        """Make the checksums of all files right."""
        for folder in (self.folder, self.here / "home"):
            reseal(folder)

    def outside(self) -> list[str]:
        """What was written outside the folder."""
        found = sorted(os.listdir(self.here))
        odd = [name for name in found if name not in ("folder", "home", "untouched")]
        if (self.here / "untouched").read_text() != _UNTOUCHED:
            odd.append("untouched")
        return odd

    def _in_reach(self) -> list[Path]:
        """The files of the folder, and those of the cache but for locks: their content is nobody's."""
        both = [*self.folder.rglob("*"), *(self.here / "home").rglob("*")]
        return [file for file in both if not (file.name.endswith(".lock") and "home" in file.parts)]


def tried(place: Place, read: Callable[[Path], object], attempt: Attempt) -> Outcome:
    """Change the files, read them, and put them back."""
    try:
        done = place.changed(attempt.changes)
        if attempt.resealed:
            place.resealed()
        said = f"{attempt}\n{'; '.join(done)}"
        kind = "read"
        try:
            with place.cache(), _patience():
                read(place.folder)
        except RaysimError as error:
            kind, text = "refused", str(error)
            names = {change.rpartition("/")[2].partition(" (copy)")[0] for change in done}
            if not (str(place.here) in text or any(name in text for name in names)):
                kind, said = "without name", f"{said}\n{text}"
        except _HangError:
            return Outcome("hang", said)
        except Exception:
            return Outcome("traceback", f"{said}\n{traceback.format_exc()}")
        return Outcome("outside", f"{said}\n{odd}") if (odd := place.outside()) else Outcome(kind, said)
    finally:
        place.restored()


class _HangError(BaseException):
    pass


@contextmanager
def _patience() -> Iterator[None]:
    """Interrupt the block after a while; only in the main thread."""

    def hang(number: int, frame: FrameType | None) -> None:
        raise _HangError

    handler, timer = signal.signal(signal.SIGALRM, hang), signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield
    finally:
        # Others may use the timer too: pytest ends tests by it.
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, *timer)
