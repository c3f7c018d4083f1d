"""Draws a sweep: on the left a curve for each point, on the right its final value against the swept value."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from raysim.config.printable import in_one_line
from raysim.errors import ExperimentError
from raysim.experiment.pictures import ReportSection
from raysim.report import curve, number_formats
from raysim.report.curve import Curve
from raysim.report.drawing import blank, drawing
from raysim.report.looks import INK, NAMED, CurveStyle, nth, plain
from raysim.run_folder.tables import DEVIATION, MEAN, by_trial, deviation, mean, part, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

log = logging.getLogger("raysim")

WIDTH_IN, HEIGHT_IN, NARROW_IN = 12.0, 4.5, 7.0
BESIDE: Mapping[str, Any] = MappingProxyType({"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)})
WIDE = 8.0
"""Values whose ratio of largest to smallest is at least this go on a logarithmic axis."""

Tagged = tuple[Mapping[str, Any], pa.Table]
"""A point's swept values, and its rounds; rounds of several trials have a column `trial`."""


class _SweptPoint(NamedTuple):
    """`ends`: the last value of each trial, which may have ended after different rounds."""

    values: Mapping[str, Any]
    line: Curve
    ends: tuple[float, ...]


def draw(points: Sequence[Tagged], path: Path, title: str, report: ReportSection) -> None:
    """Write the picture, see `curve.save`; no file if no round has a figure to draw."""
    try:
        picture = figure(points, title, report)
    except ExperimentError as error:
        log.warning("There is no picture %s: %s", path, error)
        return
    if picture is not None:
        curve.save(picture, path, report)


def figure(points: Sequence[Tagged], title: str, report: ReportSection) -> Figure | None:
    """Return the picture, 2,160 x 810 pixels, or panels one below the other where it is narrow; None without figures.

    A point's line shows the first evaluated split, or training if nothing is evaluated. Several trials are shown by
    their mean, with bands and bars of one standard deviation.

    Raises:
        ExperimentError: see `drawing`.
    """
    found = [(values, rounds, *_line(rounds)) for values, rounds in points]
    drawn = [
        _SweptPoint(values, line, _last(rounds, line.name)) for values, rounds, line, _ in found if line is not None
    ]
    if not drawn:
        return None
    with drawing(report):
        picture = blank(report, WIDTH_IN, HEIGHT_IN)
        if picture.get_figwidth() > NARROW_IN:
            left, right = picture.subplots(1, 2, width_ratios=(4, 3))
        else:
            picture.set_figheight(2 * picture.get_figwidth() * HEIGHT_IN / NARROW_IN)
            left, right = picture.subplots(2, 1)
        _panels(left, right, drawn, found[0][3], title)
    return picture


def _panels(left: Axes, right: Axes, drawn: Sequence[_SweptPoint], is_accuracy: bool, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    _curves(left, [replace(point.line, name=_words(point.values)) for point in drawn], is_accuracy)
    _ends(right, drawn)
    for axes in (left, right):
        if is_accuracy:
            axes.yaxis.set_major_formatter(lambda fraction, _: number_formats.tick(fraction))
    keys = list(drawn[0].values)
    left.set_title(title, loc="left", fontsize="large", fontweight="bold", color=INK)
    what = f"{drawn[0].line.name} {'accuracy' if is_accuracy else 'loss'}"
    left.set_ylabel(f"{what},\nby {', '.join(keys)}", color=INK)
    right.set_ylabel(f"{what}\nafter the last round", color=INK)
    left.set_xlabel("finished rounds", color=INK)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.set_xlabel(keys[0], color=INK)


def _line(rounds: pa.Table) -> tuple[Curve | None, bool]:
    """Return the main line of a point, and whether it is an accuracy."""
    trials = by_trial(rounds)
    table = summarise(trials)
    lines, is_accuracy = curve.curves(part(table, MEAN), part(table, DEVIATION) if len(trials) > 1 else None)
    evaluated = [line for line in lines if line.name != curve.TRAINING]
    return next(iter(evaluated or lines), None), is_accuracy


def _last(rounds: pa.Table, name: str) -> tuple[float, ...]:
    """Return the last value of the line of this name, of each trial that has it."""
    lines = (line for trial in by_trial(rounds) for line in curve.curves(trial)[0])
    return tuple(line.values[-1] for line in lines if line.name == name)


def _curves(axes: Axes, lines: Sequence[Curve], is_accuracy: bool) -> None:
    import matplotlib

    drawn = _looks(len(lines))
    for line, look in zip(lines, drawn, strict=True):
        axes.plot(line.rounds, line.values, **look.line(len(line.rounds)))
        curve.band(axes, line, look.colour)
    curve.frame(axes, lines)
    if is_accuracy:
        axes.set_ylim(*curve.accuracy_limits(lines))
    bottom, top = axes.get_ylim()
    usual = curve.label_gap(axes)
    gap = min(usual, 1 / len(lines))
    heights = curve.spread([(line.values[-1] - bottom) / (top - bottom) for line in lines], gap)
    # Labels of many points with high final values are moved apart below the picture's top.
    above = max(0.0, max(heights) - 1 + gap / 2)
    for line, look, height in zip(lines, drawn, heights, strict=True):
        value = number_formats.share(line.values[-1]) if is_accuracy else number_formats.loss(line.values[-1])
        axes.text(
            1.02,
            height - above,
            f"{value}  {line.name}",
            transform=axes.transAxes,
            va="center",
            fontsize=float(matplotlib.rcParams["font.size"]) * gap / usual,
            color=look.colour,
        )


def _ends(axes: Axes, drawn: Sequence[_SweptPoint]) -> None:
    """Draw final values against the first key's value; a line for each combination of the other keys."""
    first, *others = drawn[0].values
    at = [point.values[first] for point in drawn]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in at)
    words = list(dict.fromkeys(_word(value) for value in at))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for point in drawn:
        x = float(point.values[first]) if numeric else words.index(_word(point.values[first]))
        end = (x, mean(point.ends), deviation(point.ends) if len(point.ends) > 1 else 0.0)
        groups.setdefault(_words({key: point.values[key] for key in others}), []).append(end)
    drawn_as = [CurveStyle(INK, marker="o")] if len(groups) == 1 else _looks(len(groups))
    for place, (name, ends) in enumerate(groups.items()):
        xs, ys, around = zip(*sorted(ends) if numeric else ends, strict=True)
        axes.errorbar(
            xs,
            ys,
            yerr=around if any(around) else None,
            capsize=2.5,
            elinewidth=0.8,
            **{**drawn_as[place].points(name), **({} if numeric else {"linestyle": ""})},
        )
    plain(axes)
    axes.margins(x=0.08, y=0.15)
    if not numeric:
        axes.set_xticks(range(len(words)), words)
    else:
        low, high = min(at), max(at)
        if low > 0 and high / low >= WIDE:
            axes.set_xscale("log")
        axes.set_xticks(sorted(set(at)), [number_formats.setting_number(value) for value in sorted(set(at))])
        axes.minorticks_off()
    if len(groups) > 1:
        axes.legend(title=", ".join(others), fontsize="small", title_fontsize="small", **BESIDE)


def _looks(count: int) -> list[CurveStyle]:
    """Return distinct looks; for many, colours on a scale from dark to light."""
    if count <= NAMED:
        return [nth(place) for place in range(count)]
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    scale = colormaps["viridis"]
    return [nth(place)._replace(colour=to_hex(scale(0.85 * place / (count - 1)))) for place in range(count)]


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(_word(value) for value in values.values())


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return in_one_line(str(value.get("name") or json.dumps(value)))
    if isinstance(value, float) and math.isfinite(value):
        return number_formats.setting_number(value)
    return in_one_line(value) if isinstance(value, str) else json.dumps(value)
