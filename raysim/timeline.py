"""Where a round's time went: seconds by phase for the records, and spans for a timeline that Perfetto opens."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PREFIX = "seconds/"
"""Of the records' columns that say how long a phase took."""


@dataclass(frozen=True)
class Span:
    """Something that `who` (a worker, or the driver) did, from `start_s` to `end_s` of the Unix clock."""

    who: str
    what: str
    start_s: float
    end_s: float


class Stopwatch:
    """Adds up the driver's seconds by phase; `take` hands them over, with the wall time, and starts anew."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._spans: list[Span] = []
        self._start_s = time.time()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time what is done inside."""
        start_s = time.time()
        try:
            yield
        finally:
            end_s = time.time()
            self._seconds[name] += end_s - start_s
            self._spans.append(Span("driver", name, start_s, end_s))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Time inside belongs to the reader, not to the round."""
        start_s = time.time()
        try:
            yield
        finally:
            self._start_s += time.time() - start_s

    def take(self) -> tuple[dict[str, float], list[Span]]:
        """Columns `seconds/<phase>`, `seconds/wall` among them, and the driver's spans since the last time."""
        now_s = time.time()
        columns = {f"{PREFIX}{name}": seconds for name, seconds in self._seconds.items()}
        columns[f"{PREFIX}wall"] = now_s - self._start_s
        spans = self._spans
        self._seconds, self._spans, self._start_s = defaultdict(float), [], now_s
        return columns, spans


class Timeline:
    """Writes spans as they come, in the Trace Event Format (a JSON array) that https://ui.perfetto.dev opens.

    A run that breaks off leaves the array without its end, which the format allows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tracks: dict[str, int] = {}
        path.write_text("[\n")

    def add(self, spans: Iterable[Span]) -> None:
        """Append the spans, each on the track of whoever did it."""
        events: list[dict[str, object]] = []
        for span in spans:
            if span.who not in self._tracks:
                self._tracks[span.who] = len(self._tracks)
                name = {"name": "thread_name", "ph": "M", "pid": 0, "tid": self._tracks[span.who]}
                events.append({**name, "args": {"name": span.who}})
            when = {"ts": span.start_s * 1e6, "dur": (span.end_s - span.start_s) * 1e6}
            events.append({"name": span.what, "ph": "X", **when, "pid": 0, "tid": self._tracks[span.who]})
        with self._path.open("a") as file:
            file.writelines(json.dumps(event) + ",\n" for event in events)
