"""Measures the time of a round: seconds by phase for the records, and spans for a timeline that Perfetto opens."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from raysim.config.columns import SECONDS
from raysim.errors import RunFolderError
from raysim.storage import atomic, disk
from raysim.storage.reading import checked_object, parsing, text

MOST_BYTES = 1 << 30
"""Of a timeline; a long run's has an event for every phase and chunk."""

PREFIX = SECONDS
"""Prefix of the columns with the seconds of a phase."""


@dataclass(frozen=True)
class Span:
    """An activity of `who` (a worker, or the driver), from `start_s` to `end_s` of the Unix clock."""

    who: str
    what: str
    start_s: float
    end_s: float


class Stopwatch:
    """Times the driver's phases of one round.

    >>> watch = Stopwatch()
    >>> watch.spans += [Span("driver", "train", 0.0, 1.5), Span("driver", "train", 2.0, 2.5)]
    >>> watch.seconds()
    {'seconds/train': 2.0}
    """

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Measure the time of the block."""
        # Spans use the clock that processes share. It may be set back, so lengths come from another clock.
        start_s, counter_s = time.time(), time.perf_counter()
        try:
            yield
        finally:
            self.spans.append(Span("driver", name, start_s, start_s + time.perf_counter() - counter_s))

    def seconds(self) -> dict[str, float]:
        """Columns `seconds/<phase>`."""
        columns: dict[str, float] = {}
        for span in self.spans:
            name = f"{PREFIX}{span.what}"
            columns[name] = columns.get(name, 0.0) + span.end_s - span.start_s
        return columns


def read(path: Path) -> list[Span]:
    """Read the spans of a file of `Timeline`, in order; the last line may be cut off.

    Raises:
        RunFolderError: the file is damaged.
    """
    who: dict[int, str] = {}
    spans = []
    _, *lines = text(path, RunFolderError, MOST_BYTES).split("\n")
    for number, line in enumerate(lines, start=2):
        try:
            event = json.loads(line.removesuffix(","))
        except (ValueError, RecursionError):
            if number > len(lines):
                break
            raise RunFolderError(f"{path} is damaged: expected an event in line {number}.") from None
        with parsing(path, f"an event in line {number}", RunFolderError):
            event = checked_object(event)
            if event["ph"] == "M":
                who[event["tid"]] = str(event["args"]["name"])
            else:
                start_s, length_s = float(event["ts"]) / 1e6, float(event["dur"]) / 1e6
                if not (math.isfinite(start_s) and 0 <= length_s < math.inf):
                    raise ValueError(f"it lasts from {start_s} for {length_s} seconds")
                spans.append(Span(who[event["tid"]], str(event["name"]), start_s, start_s + length_s))
    return spans


class Timeline:
    """Writes spans as they come, in the Trace Event Format (a JSON array) that https://ui.perfetto.dev opens.

    A run that is interrupted leaves the array without its end, which the format allows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracks: dict[str, int] = {}
        # A new file: what is there may have another name elsewhere, as a hard link.
        atomic.write_text(path, "[\n")

    def add(self, spans: Iterable[Span]) -> None:
        """Append the spans, each on the track of its worker or of the driver."""
        events: list[dict[str, object]] = []
        for span in spans:
            if span.who not in self._tracks:
                self._tracks[span.who] = len(self._tracks)
                name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": self._tracks[span.who]}
                events.append({**name, "args": {"name": span.who}})
            when = {"ts": span.start_s * 1e6, "dur": (span.end_s - span.start_s) * 1e6}
            events.append({"name": span.what, "ph": "X", **when, "pid": 0, "tid": self._tracks[span.who]})
        with disk.writing(self._path), self._path.open("a") as file:
            file.writelines(json.dumps(event) + ",\n" for event in events)
