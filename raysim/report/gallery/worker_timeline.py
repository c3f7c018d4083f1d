"""Draws the timeline of driver and workers in the last rounds of a profiled run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group
from raysim.report.looks import SERIES
from raysim.run_folder.timeline import Span

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_SPANS = 400
SHOWN_ROUNDS = 3
SHOWN_TRACKS = 17
"""Driver and sixteen workers."""


def make(groups: Sequence[Group]) -> Iterator[Figure]:
    """Yield one figure, of the first run that has a timeline."""
    for run in (run for group in groups for run in group.runs):
        spans = _last_rounds(run.spans())
        if not spans:
            continue
        start_s = min(span.start_s for span in spans)
        data = pa.table(
            {
                "group": [str(run.path)] * len(spans),
                "who": [span.who for span in spans],
                "what": [span.what for span in spans],
                "start_s": [span.start_s - start_s for span in spans],
                "end_s": [span.end_s - start_s for span in spans],
            }
        )
        tracks = sorted(dict.fromkeys(span.who for span in spans), key=lambda who: (who != "driver", who))[
            :SHOWN_TRACKS
        ]
        yield Figure(
            "worker-timeline",
            f"What driver and workers did: {run.path}",
            f"The last {SHOWN_ROUNDS} rounds; gaps are idle time. The whole timeline is in the run's timeline.json, "
            f"for ui.perfetto.dev.",
            data,
            partial(_draw, spans, tracks, start_s),
            height_in=1.3 + 0.28 * len(tracks),
        )
        return


def _last_rounds(spans: Sequence[Span]) -> list[Span]:
    """Return the spans of the last SHOWN_ROUNDS rounds, at most MAX_SPANS."""
    steps = sorted(span.end_s for span in spans if span.who == "driver" and span.what == "step")
    if not steps:
        return []
    since_s = steps[-SHOWN_ROUNDS - 1] if len(steps) > SHOWN_ROUNDS else 0.0
    return sorted((span for span in spans if span.start_s >= since_s), key=lambda span: span.start_s)[:MAX_SPANS]


def _draw(spans: Sequence[Span], tracks: Sequence[str], start_s: float, axes: Axes) -> None:
    # "train 7" is unit 7 of training: units of one kind share a colour.
    kinds = list(dict.fromkeys(span.what.split()[0] for span in spans))
    for place, who in enumerate(reversed(tracks)):
        for number, kind in enumerate(kinds):
            bars = [
                ((span.start_s - start_s) * 1e3, (span.end_s - span.start_s) * 1e3)
                for span in spans
                if span.who == who and span.what.split()[0] == kind
            ]
            colour, hatch = SERIES[number % len(SERIES)], "" if number < len(SERIES) else "////"
            if bars:
                axes.broken_barh(bars, (place - 0.35, 0.7), facecolors=colour, linewidth=0, hatch=hatch)
    for number, kind in enumerate(kinds):
        hatch = "" if number < len(SERIES) else "////"
        axes.broken_barh([], (0, 0), facecolors=SERIES[number % len(SERIES)], label=kind, hatch=hatch)
    axes.set_yticks(range(len(tracks)), list(reversed(tracks)))
    axes.set_xlabel("milliseconds")
    axes.grid(axis="x")
