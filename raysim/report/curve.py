"""Draws the learning curve: evaluation and training accuracy, or loss, against rounds."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from raysim.errors import DiskError, ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.experiment.pictures import PictureFormat, ReportSection
from raysim.report import number_formats
from raysim.report.column_names import headlines
from raysim.report.drawing import blank, drawing, encoded
from raysim.report.looks import GREY, INK, QUIET, CurveStyle, nth, plain
from raysim.report.series import LARGEST
from raysim.run_folder import files, round_table
from raysim.storage import atomic

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger("raysim")

WIDTH_IN, HEIGHT_IN = 8.0, 4.5
TRAINING = "training"
MARKED_POINTS = 40
"""With more points markers would merge."""
THICK_POINTS = 300
"""With more rounds the training line is drawn thin, because it would hide the others."""
LABEL_EM = 1.3
"""Least distance of two labels, in sizes of a letter."""


@dataclass(frozen=True)
class Curve:
    """One line: `values[i]` after `rounds[i]` finished rounds, with a band of `deviations[i]` around it, if any."""

    name: str
    rounds: tuple[int, ...]
    values: tuple[float, ...]
    deviations: tuple[float, ...] = ()


def curves(rounds: pa.Table, deviations: pa.Table | None = None) -> tuple[list[Curve], bool]:
    """Return the lines in the records, training first, and whether they are accuracies (else losses).

    Args:
        rounds: columns by their fixed names.
        deviations: standard deviations of the same rounds, under the same names; null counts as 0.
    """
    names = rounds.column_names
    found = headlines(names)
    is_accuracy = "accuracy" in names or any(name.endswith("/accuracy") for name in found.values())
    metric = "accuracy" if is_accuracy else "loss"
    columns = {TRAINING: metric} | {split: name for split, name in found.items() if name.endswith(f"/{metric}")}
    # A row's index counts from 0; its values are known after one round more.
    after = [index + 1 for index in rounds["round"].to_pylist()] if "round" in names else []
    lines = []
    for label, name in columns.items():
        values = rounds[name].to_pylist() if name in names else []
        around = deviations[name].to_pylist() if deviations is not None else [None] * len(values)
        points = [
            (x, _drawable(y), _drawable(d or 0.0))
            for x, y, d in zip(after, values, around, strict=False)
            if y is not None
        ]
        if points:
            xs, ys, ds = zip(*points, strict=True)
            lines.append(Curve(label, xs, ys, ds if deviations is not None else ()))
    return lines, is_accuracy


def _drawable(value: float) -> float:
    """Return a number that an axis can hold; matplotlib leaves a gap for those that are not finite."""
    return value if abs(value) <= LARGEST else math.nan


def figure(
    rounds: pa.Table, title: str, deviations: pa.Table | None = None, report: ReportSection | None = None
) -> Figure | None:
    """Return the picture, 1,440 x 810 pixels; None if there is nothing to draw. Bands are one standard deviation wide.

    It is a separate Figure: pyplot, its windows and its open figures do not change.

    Raises:
        ExperimentError: see `drawing`.
    """
    lines, is_accuracy = curves(rounds, deviations)
    if not lines:
        return None
    report = report or ReportSection()
    with drawing(report):
        picture = blank(report, WIDTH_IN, HEIGHT_IN)
        _draw(picture.add_subplot(), lines, is_accuracy, title, deviations is not None)
    return picture


def _draw(axes: Axes, lines: Sequence[Curve], is_accuracy: bool, title: str, has_deviations: bool) -> None:
    # matplotlib is slow to import, and only pictures need it.
    from matplotlib.ticker import MaxNLocator

    evaluated = [line.name for line in lines if line.name != TRAINING]
    for line in lines:
        count = len(line.rounds)
        if line.name == TRAINING:
            look = CurveStyle(GREY, is_named=count <= THICK_POINTS, marker="o")
            drawn = {**look.line(count), "marker": "o" if count == 1 else "", "label": line.name}
        else:
            look = nth(evaluated.index(line.name))
            drawn = look.points(line.name) if count <= MARKED_POINTS else look.line(count, line.name)
        axes.plot(line.rounds, line.values, **drawn)
        band(axes, line, look.colour)
    frame(axes, lines)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))
    if is_accuracy:
        axes.yaxis.set_major_formatter(lambda fraction, _: number_formats.tick(fraction))
        axes.set_ylim(*accuracy_limits(lines))
    axes.set_title(title, loc="left", fontsize="large", fontweight="bold", color=INK)
    what = "accuracy" if is_accuracy else "loss"
    axes.set_ylabel(f"{what},\nmean and one deviation" if has_deviations else what, color=INK)
    axes.set_xlabel("finished rounds", color=INK)
    _label_ends(axes, lines, is_accuracy)


def draw(
    rounds: pa.Table,
    path: Path,
    title: str,
    deviations: pa.Table | None = None,
    report: ReportSection | None = None,
) -> None:
    """Write the learning curve, see `save`; no file if no round has a figure to draw."""
    try:
        picture = figure(rounds, title, deviations, report)
    except ExperimentError as error:
        log.warning("There is no picture %s: %s", path, error)
        return
    if picture is not None:
        save(picture, path, report)


def of_run(path: Path, experiment: Experiment) -> None:
    """Write the picture of a run's folder, from its records."""
    draw(round_table.read_rounds(path), path / "curve", experiment.name, report=experiment.report)


def is_of_all_rounds(path: Path, experiment: Experiment) -> bool:
    """Whether the picture of a run's folder was drawn behind its last round: a killed process may have drawn none."""
    try:
        written_ns = (path / files.ROUNDS).stat().st_mtime_ns
        drawn_ns = [(path / f"curve.{kind}").stat().st_mtime_ns for kind in experiment.report.formats or ("png",)]
    except OSError:
        return False
    return all(each >= written_ns for each in drawn_ns)


def save(picture: Figure, path: Path, report: ReportSection | None = None) -> None:
    """Write a picture to `path` with the suffix of each of the section's formats, else as PNG; whole or not at all.

    A failure is a warning in the log, because the run itself is not affected.
    """
    report = report or ReportSection()
    picture.set_label(str(path))
    for kind in report.formats or ("png",):
        file = path.with_name(f"{path.name}.{kind}")
        try:
            with drawing(report):
                atomic.write(file, partial(_encode, picture, kind))
        except DiskError as error:
            log.warning("The picture %s", error)
        except OSError as error:
            log.warning("The picture %s could not be written: %s", file, error)


def _encode(picture: Figure, kind: PictureFormat, file: Path) -> None:
    file.write_bytes(encoded(picture, kind))


def band(axes: Axes, line: Curve, colour: str) -> None:
    """Shade one standard deviation around a line, if it has deviations."""
    if line.deviations:
        low, high = zip(*((v - d, v + d) for v, d in zip(line.values, line.deviations, strict=True)), strict=True)
        axes.fill_between(line.rounds, low, high, color=colour, alpha=0.18, linewidth=0)


def label_gap(axes: Axes) -> float:
    """Return the least distance of two labels, as a share of the axes' height."""
    import matplotlib

    height_pt = 72 * axes.get_position().height * axes.figure.bbox.height / axes.figure.dpi
    return float(LABEL_EM * matplotlib.rcParams["font.size"] / height_pt)


def frame(axes: Axes, lines: Sequence[Curve]) -> None:
    """Set up plain axes, with rounds from the first to the last."""
    plain(axes)
    last = max(line.rounds[-1] for line in lines)
    first = min(line.rounds[0] for line in lines)
    pad = max(0.5, 0.02 * (last - first))
    axes.set_xlim(max(0, first - pad), last + pad)
    axes.margins(y=0.08)


def _label_ends(axes: Axes, lines: Sequence[Curve], is_accuracy: bool) -> None:
    """Label every line at its end with its name and last value, instead of a legend."""
    low, high = axes.get_ylim()
    ends = [(line.values[-1] - low) / (high - low) for line in lines]
    for line, artist, height in zip(lines, axes.get_lines(), spread(ends, label_gap(axes)), strict=True):
        value = number_formats.share(line.values[-1]) if is_accuracy else number_formats.loss(line.values[-1])
        colour = QUIET if line.name == TRAINING else artist.get_color()
        weight = "normal" if line.name == TRAINING else "bold"
        label = axes.text(1.02, height, f"{value}  {line.name}", transform=axes.transAxes, va="center")
        label.set(color=colour, weight=weight)


def accuracy_limits(lines: Sequence[Curve]) -> tuple[float, float]:
    """Return an axis around the values, within 0 to 100 %; at least ten points high, so that noise looks small."""
    values = [value for line in lines for value in line.values]
    bands = [(v, d) for line in lines for v, d in zip(line.values, line.deviations, strict=False)]
    values += [v + sign * d for v, d in bands for sign in (-1, 1)]
    middle, half = (min(values) + max(values)) / 2, max(0.05, 0.55 * (max(values) - min(values)))
    # The margin shows the upper half of lines and markers at 100 %.
    return max(0.0, middle - half), min(1.01, middle + half)


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights apart, in their order, until neighbours are at least `gap` apart; the others stay."""
    placed: list[list[int]] = []
    centres: list[float] = []
    for index in sorted(range(len(heights)), key=lambda i: heights[i]):
        placed.append([index])
        centres.append(heights[index])
        # Two groups that touch become one, centred on the mean of its members' heights.
        while len(placed) > 1 and centres[-1] - centres[-2] < gap * (len(placed[-1]) + len(placed[-2])) / 2:
            group = placed.pop()
            centres.pop()
            placed[-1] += group
            centres[-1] = sum(heights[i] for i in placed[-1]) / len(placed[-1])
    result = [0.0] * len(heights)
    for group, centre in zip(placed, centres, strict=True):
        for place, index in enumerate(group):
            result[index] = centre + (place - (len(group) - 1) / 2) * gap
    return result
