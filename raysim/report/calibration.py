"""What a calibration found, as text, and as the two keys of an experiment file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tomlkit

from raysim.engine.calibrate import Timing


def text(timings: Sequence[Timing], chosen: Timing) -> str:
    """A line per way, fastest first, with the median of a round and its spread over the repeats."""
    lines = []
    for timing in timings:
        low, high = min(timing.round_s), max(timing.round_s)
        mark = "  <- chosen" if timing is chosen else ""
        spread = f"{1000 * timing.median_s:10.1f} ms a round ({1000 * low:.1f} to {1000 * high:.1f})"
        lines.append(f"{timing.form:<10}  {timing.chunk_size:>4} clients a chunk {spread}{mark}")
    return "\n".join(lines)


def write(source: Path, chosen: Timing, target: Path) -> None:
    """Copy an experiment file, comments included, with `engine.form` and `engine.chunk_size` set."""
    document = tomlkit.parse(source.read_text(encoding="utf-8"))
    engine = document.setdefault("engine", tomlkit.table())
    engine["form"] = chosen.form
    engine["chunk_size"] = chosen.chunk_size
    target.write_text(tomlkit.dumps(document), encoding="utf-8")
