"""Draws a sweep: on the left a curve for each point, on the right its final value against the swept value."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from raysim.report import curve, figures
from raysim.report.curve import MARKERS, Curve
from raysim.report.looks import INK, PAPER, QUIET, SERIES, plain
from raysim.run_folder.tables import DEVIATION, MEAN, by_trial, part, summarise

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE = 8.0
"""Values whose ratio of largest to smallest is at least this go on a logarithmic axis."""

Tagged = tuple[Mapping[str, Any], pa.Table]
"""A point's swept values, and its rounds; rounds of several trials have a column `trial`."""


def draw(points: Sequence[Tagged], path: Path, title: str) -> None:
    """Write the picture as a PNG; no file if no round has a figure to draw."""
    picture = figure(points, title)
    if picture is not None:
        curve.save(picture, path)


def figure(points: Sequence[Tagged], title: str) -> Figure | None:
    """Return the picture, 1,920 x 720 pixels; None if there is nothing to draw.

    A point's line shows the first evaluated split, or training if nothing is evaluated. Several trials are shown by
    their mean, with bands and bars of one standard deviation.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    found = [(values, *_line(rounds)) for values, rounds in points]
    drawn = [(values, line) for values, line, _ in found if line is not None]
    if not drawn:
        return None
    is_accuracy = found[0][2]
    lines = [replace(line, name=_words(values)) for values, line in drawn]
    picture = Figure(figsize=(12, 4.5), dpi=160, facecolor=PAPER)
    FigureCanvasAgg(picture)
    left = picture.add_axes((0.055, 0.13, 0.4, 0.73))
    right = picture.add_axes((0.69, 0.13, 0.29, 0.73))
    _curves(left, lines, is_accuracy)
    _ends(right, drawn)
    for axes in (left, right):
        if is_accuracy:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
    keys = list(drawn[0][0])
    left.set_title(title, loc="left", fontsize=13, fontweight="bold", color=INK, pad=22)
    what = f"{drawn[0][1].name} {'accuracy' if is_accuracy else 'loss'}"
    left.text(0, 1.03, f"{what}, by {', '.join(keys)}", transform=left.transAxes, fontsize=10, color=QUIET)
    right.text(0, 1.03, f"{what} after the last round", transform=right.transAxes, fontsize=10, color=QUIET)
    left.set_xlabel("finished rounds", fontsize=10, color=INK)
    right.set_xlabel(keys[0], fontsize=10, color=INK)
    return picture


def _line(rounds: pa.Table) -> tuple[Curve | None, bool]:
    """Return the main line of a point, and whether it is an accuracy."""
    trials = by_trial(rounds)
    table = summarise(trials)
    lines, is_accuracy = curve.curves(part(table, MEAN), part(table, DEVIATION) if len(trials) > 1 else None)
    evaluated = [line for line in lines if line.name != curve.TRAINING]
    return next(iter(evaluated or lines), None), is_accuracy


def _curves(axes: Axes, lines: Sequence[Curve], is_accuracy: bool) -> None:
    colours = _colours(len(lines))
    for line, colour in zip(lines, colours, strict=True):
        marker = "o" if len(line.rounds) == 1 else ""
        axes.plot(line.rounds, line.values, color=colour, linewidth=1.6, marker=marker)
        if line.deviations:
            low = [v - d for v, d in zip(line.values, line.deviations, strict=True)]
            high = [v + d for v, d in zip(line.values, line.deviations, strict=True)]
            axes.fill_between(line.rounds, low, high, color=colour, alpha=0.15, linewidth=0)
    curve.frame(axes, lines)
    if is_accuracy:
        axes.set_ylim(*curve.accuracy_limits(lines))
    bottom, top = axes.get_ylim()
    gap = min(curve.LABEL_GAP, 1 / len(lines))
    heights = curve.spread([(line.values[-1] - bottom) / (top - bottom) for line in lines], gap)
    # Labels of many points with high final values are moved apart below the picture's top.
    above = max(0.0, max(heights) - 1)
    for line, colour, height in zip(lines, colours, heights, strict=True):
        value = figures.share(line.values[-1]) if is_accuracy else figures.loss(line.values[-1])
        axes.text(
            1.02,
            height - above,
            f"{value}  {line.name}",
            transform=axes.transAxes,
            va="center",
            fontsize=min(10.0, 190 * gap),
            color=colour,
        )


def _ends(axes: Axes, drawn: Sequence[tuple[Mapping[str, Any], Curve]]) -> None:
    """Draw final values against the first key's value; a line for each combination of the other keys."""
    first, *others = drawn[0][0]
    at = [values[first] for values, _ in drawn]
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in at)
    words = list(dict.fromkeys(_word(value) for value in at))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for values, line in drawn:
        x = float(values[first]) if numeric else words.index(_word(values[first]))
        end = (x, line.values[-1], line.deviations[-1] if line.deviations else 0.0)
        groups.setdefault(_words({key: values[key] for key in others}), []).append(end)
    colours = [INK] if len(groups) == 1 else _colours(len(groups))
    for place, (name, ends) in enumerate(groups.items()):
        xs, ys, around = zip(*sorted(ends) if numeric else ends, strict=True)
        axes.errorbar(
            xs,
            ys,
            yerr=around if any(around) else None,
            color=colours[place],
            marker=MARKERS[place % len(MARKERS)],
            markersize=5,
            linewidth=1.2 if numeric else 0,
            capsize=3,
            label=name,
        )
    plain(axes)
    axes.margins(x=0.08, y=0.15)
    if not numeric:
        axes.set_xticks(range(len(words)), words)
    else:
        low, high = min(at), max(at)
        if low > 0 and high / low >= WIDE:
            axes.set_xscale("log")
        axes.set_xticks(sorted(set(at)), [f"{value:g}" for value in sorted(set(at))])
        axes.minorticks_off()
    if len(groups) > 1:
        axes.legend(title=", ".join(others), fontsize=8, title_fontsize=8, frameon=False)


def _colours(count: int) -> list[Any]:
    """Return distinct colours; for many, a scale from dark to light."""
    if count <= len(SERIES):
        return list(SERIES[:count])
    from matplotlib import colormaps

    return [colormaps["viridis"](0.85 * place / (count - 1)) for place in range(count)]


def _words(values: Mapping[str, Any]) -> str:
    return ", ".join(_word(value) for value in values.values())


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return str(value.get("name") or json.dumps(value))
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:g}"
    return value if isinstance(value, str) else json.dumps(value)
