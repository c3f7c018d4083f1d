"""A "$" in a name is a letter: matplotlib would take what follows for a formula, and fail where it is none."""

from __future__ import annotations

import html
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from raysim.experiment.pictures import ReportSection
from raysim.report import curve, sweep_picture
from raysim.report.build import build
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import render
from raysim.run_folder.rows import table
from tests.support.run_folders import accuracies, write

NAMES = (r"$\nonsense{$", "a$b$c_{", "$5", "_x$y^2$")
SVG = ReportSection.model_validate({"formats": ["svg"]})


def test_methods_of_a_report(tmp_path: Path) -> None:
    for size in range(1, 5):
        write(tmp_path / f"m{size}", accuracies(0.1, 0.1 * size), clients={"$a{$": 0.5}, cohort={"size": size})
    names = [f"cohort.size={size}={name}" for size, name in zip(range(1, 5), NAMES, strict=True)]
    built = build([tmp_path], tmp_path / "out", changes=["report.formats=['svg']"], names=names)
    text = html.unescape(built.page.read_text())
    assert built.figures
    for name in NAMES:
        assert f">{name}</text>" in text.replace("\n", "")


@pytest.mark.parametrize("name", NAMES)
def test_pictures_of_a_run_and_of_a_sweep(name: str, tmp_path: Path) -> None:
    rows = table([{"round": index, "loss": 0.1, "eval/test/accuracy": 0.1 * index} for index in range(3)])
    curve.draw(rows, tmp_path / "curve", name, None, SVG)
    points = [({name: value, f"{name}2": value}, rows) for value in (1, 2)]
    sweep_picture.draw(points, tmp_path / "sweep", name, SVG)
    for file in ("curve.svg", "sweep.svg"):
        assert name in html.unescape((tmp_path / file).read_text())


def test_ticks_of_a_logarithmic_axis_stay_powers() -> None:
    def draw(axes: object) -> None:
        axes.plot([1, 2], [1e-7, 1e3])  # type: ignore[attr-defined]
        axes.set_yscale("log")  # type: ignore[attr-defined]

    drawn = render(Figure("name", "title", "caption", table([{"x": 1}]), draw), SVG).svg
    shown = re.sub("<!--.*?-->", "", drawn)
    assert "$" not in shown
    assert 'y="-0.6"' in shown


@pytest.mark.parametrize("letters", ["red\x1b[31m", "a\x00b", "one\x08"])
def test_control_characters_of_a_text_leave_pictures_files_of_xml(letters: str, tmp_path: Path) -> None:
    shown = ascii(letters)[1:-1]
    for size in (1, 2):
        label = {"name": "own", "label": f"{letters}{size}".replace("\x00", "\x01")}
        write(tmp_path / "runs" / f"m{size}", accuracies(0.1, 0.1 * size), server={"weighting": label})
    built = build([tmp_path / "runs"], tmp_path / "out", changes=["report.formats=['svg']"])
    pictures = sorted((tmp_path / "out").rglob("*.svg"))
    assert pictures
    rows = table([{"round": index, "loss": 0.1, "eval/test/accuracy": 0.1 * index} for index in range(3)])
    sweep_picture.draw([({"label": f"{letters}{value}"}, rows) for value in (1, 2)], tmp_path / "sweep", "name", SVG)
    for file in (*pictures, tmp_path / "sweep.svg"):
        ElementTree.parse(file)
    assert shown in html.unescape((tmp_path / "sweep.svg").read_text())
    assert shown.replace("x00", "x01") in html.unescape(built.page.read_text())
