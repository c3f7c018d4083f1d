"""A timeline is read back as it was written, and as far as it was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysim.run_folder.timeline import Span, Timeline, read

SPANS = [Span("driver", "step", 1.0, 1.5), Span("worker 0", "train 3", 1.25, 2.0), Span("driver", "plan", 2.0, 2.125)]


def test_spans_are_read_back(tmp_path: Path) -> None:
    file = tmp_path / "timeline.json"
    timeline = Timeline(file)
    timeline.add(SPANS[:2])
    timeline.add(SPANS[2:])
    assert read(file) == SPANS


def test_a_timeline_that_has_another_name_elsewhere_stays_as_it_was_there(tmp_path: Path) -> None:
    kept, file = tmp_path / "kept", tmp_path / "timeline.json"
    Timeline(kept).add(SPANS)
    file.hardlink_to(kept)
    Timeline(file).add(SPANS[:1])
    assert read(kept) == SPANS
    assert read(file) == SPANS[:1]


@pytest.mark.parametrize("lost", [1, 5, 40])
def test_a_line_that_is_cut_off_is_left_out(tmp_path: Path, lost: int) -> None:
    file = tmp_path / "timeline.json"
    Timeline(file).add(SPANS)
    file.write_text(file.read_text()[: -lost - len(",\n")])
    assert read(file) == SPANS[:2]
