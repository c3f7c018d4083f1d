"""The picture's content, read off its artists: lines, labels and axes, not pixels."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import pyplot
from matplotlib.figure import Figure

from raysim.report import curve
from raysim.run_folder.rows import table

ROWS = [
    {"round": 0, "loss": 2.0, "accuracy": 0.25},
    {"round": 1, "loss": 1.5, "accuracy": 0.5, "eval/test/accuracy": 0.4, "eval/validation/accuracy": 0.45},
    {"round": 2, "loss": 1.0, "accuracy": 0.625},
    {"round": 3, "loss": 0.5, "accuracy": 0.75, "eval/test/accuracy": 0.7, "eval/validation/accuracy": 0.65},
]


def drawn(rows: list[dict[str, float]]) -> Figure:
    picture = curve.figure(table(rows), "quickstart")
    assert picture is not None
    return picture


def test_every_line_shows_its_values_after_so_many_finished_rounds() -> None:
    axes = drawn(ROWS).axes[0]
    assert {line.get_label(): np.asarray(line.get_xydata()).tolist() for line in axes.get_lines()} == {
        "training": [[1, 0.25], [2, 0.5], [3, 0.625], [4, 0.75]],
        "test": [[2, 0.4], [4, 0.7]],
        "validation": [[2, 0.45], [4, 0.65]],
    }


def test_lines_are_named_at_their_end_with_their_last_value() -> None:
    texts = {text.get_text() for text in drawn(ROWS).axes[0].texts}
    assert texts == {"75.0 %  training", "70.0 %  test", "65.0 %  validation"}


def test_labels_lie_inside_the_picture() -> None:
    rows = [{**ROWS[-1], "accuracy": 1.0, "eval/test/accuracy": 1.0, "eval/validation/accuracy": 1.0}]
    picture = drawn(rows)
    picture.canvas.draw()
    for text in picture.axes[0].texts:
        box = text.get_window_extent()
        assert box.x1 <= picture.bbox.x1, text.get_text()
        assert box.y1 <= picture.bbox.y1, text.get_text()


def test_axes_and_title_say_what_is_shown() -> None:
    picture = drawn(ROWS)
    axes = picture.axes[0]
    picture.canvas.draw()
    assert axes.get_title(loc="left") == "quickstart"
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("finished rounds", "accuracy")
    assert all(tick.get_text().endswith(" %") for tick in axes.get_yticklabels())
    assert all(tick.is_integer() for tick in axes.get_xticks())


def test_evaluations_have_colours_of_their_own_and_never_that_of_training() -> None:
    colours = [line.get_color() for line in drawn(ROWS).axes[0].get_lines()]
    assert colours == ["#ABABAB", "#0072B2", "#D55E00"]


def test_losses_are_drawn_where_nothing_is_counted() -> None:
    axes = drawn(
        [{"round": 0, "loss": 4.0, "eval/test/loss": 5.0}, {"round": 1, "loss": 2.0, "eval/test/loss": 3.0}]
    ).axes[0]
    assert {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()} == {
        "training": [4.0, 2.0],
        "test": [5.0, 3.0],
    }
    assert axes.get_ylabel() == "loss"


def test_a_round_without_a_figure_is_left_out() -> None:
    line = drawn([{"round": 0, "accuracy": 0.5}, {"round": 1}, {"round": 2, "accuracy": 0.75}]).axes[0].get_lines()[0]
    assert np.asarray(line.get_xydata()).tolist() == [[1, 0.5], [3, 0.75]]


def test_a_single_round_is_a_visible_point() -> None:
    axes = drawn([{"round": 0, "accuracy": 0.5, "eval/test/accuracy": 0.5}]).axes[0]
    assert all(line.get_marker() not in ("", "None") for line in axes.get_lines())
    low, high = axes.get_ylim()
    assert high - low == pytest.approx(0.1), "ten points high, however little the values differ"


def test_draw_writes_a_png_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "curve.png"
    curve.draw(table(ROWS), tmp_path / "curve", "quickstart")
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(content[16:20]), int.from_bytes(content[20:24])) == (1440, 810)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("rows", [[], [{"round": 0, "clients": 0}]])
def test_nothing_to_draw_is_no_file(rows: list[dict[str, float]], tmp_path: Path) -> None:
    curve.draw(table(rows), tmp_path / "curve", "quickstart")
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    curve.draw(table(ROWS), tmp_path / "missing" / "curve", "quickstart")
    assert "curve.png could not be written" in caplog.text


def test_pyplot_is_left_alone(tmp_path: Path) -> None:
    settings = dict(pyplot.rcParams)
    curve.draw(table(ROWS), tmp_path / "curve", "quickstart")
    assert dict(pyplot.rcParams) == settings
    assert pyplot.get_fignums() == []


def test_labels_that_do_not_touch_stay_and_those_that_do_make_room() -> None:
    assert curve.spread([0.9, 0.1], gap=0.1) == [0.9, 0.1]
    # Two at one height move apart by half a gap each.
    assert curve.spread([0.5, 0.5], gap=0.1) == pytest.approx([0.45, 0.55])
    # Three in a row are centred on the mean of where they want to be.
    assert curve.spread([0.52, 0.5, 0.54], gap=0.1) == pytest.approx([0.52, 0.42, 0.62])


@given(st.lists(st.floats(0, 1), max_size=8))
def test_labels_never_overlap_and_keep_their_order(heights: list[float]) -> None:
    placed = curve.spread(heights, gap=0.1)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    for below, above in pairwise(order):
        assert placed[above] - placed[below] >= 0.1 - 1e-9
    assert sum(placed) == pytest.approx(sum(heights)), "labels move about their common centre"
