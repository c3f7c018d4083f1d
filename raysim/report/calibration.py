"""What a calibration found, as text."""

from __future__ import annotations

from collections.abc import Sequence

from raysim.engine.calibrate import Timing


def text(timings: Sequence[Timing], chosen: Timing) -> str:
    """A line per way, fastest first, with the median of a round and its spread over the repeats."""
    lines = []
    for timing in timings:
        low, high = min(timing.round_s), max(timing.round_s)
        mark = "  <- chosen" if timing is chosen else ""
        spread = f"{1000 * timing.median_s:10.1f} ms a round ({1000 * low:.1f} to {1000 * high:.1f})"
        lines.append(f"{timing.form:<10}  chunk_size {timing.chunk_size:>4} {spread}{mark}")
    return "\n".join(lines)
