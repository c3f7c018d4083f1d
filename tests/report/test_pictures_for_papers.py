"""`[report]` and `--label`: what of a picture they change, and what they refuse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from matplotlib import pyplot

from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment.pictures import ReportSection
from raysim.report import curve
from raysim.report.build import build
from raysim.report.drawing import drawing
from raysim.report.gallery import axes as ticks
from raysim.report.gallery import client_gain, heat_maps, lanes, train_test
from raysim.report.gallery.figure import Figure
from raysim.report.gallery.render import laid_out, render
from raysim.report.groups import group_runs, with_labels
from raysim.report.looks import FEW_POINTS, NAMED, looks
from raysim.report.runs import read_all
from raysim.run_folder.rows import table
from tests.support.drawn import drawn
from tests.support.run_folders import accuracies, write


def two_sizes(folder: Path) -> Path:
    for size in (5, 10):
        write(folder / f"{size}", accuracies(0.5, 0.6), cohort={"size": size})
    return folder


def figure(labels: tuple[str, ...] = ("one", "two")) -> Figure:
    def draw(axes: object) -> None:
        for look, label in zip(looks([0.0] * len(labels)), labels, strict=True):
            axes.plot([0, 1], [0, 1], **look.line(2, label))  # type: ignore[attr-defined]

    return Figure("f", "f", "f.", pa.table({}), draw)


def letters_pt(svg: str) -> set[float]:
    return {float(size) for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", svg)}


def test_a_picture_is_as_wide_as_it_is_told_and_its_letters_keep_their_size() -> None:
    wide, narrow = (render(figure(), ReportSection(width_cm=cm, font_size=8.0)).svg for cm in (16.0, 8.0))
    widths = [float(found) for svg in (wide, narrow) if (found := re.findall(r'width="([\d.]+)pt"', svg)[0])]
    assert widths == pytest.approx([16 / 2.54 * 72, 8 / 2.54 * 72], abs=0.1)
    assert letters_pt(wide) == letters_pt(narrow) == {8.0}


def test_long_names_are_broken_so_that_a_narrow_legend_holds_them() -> None:
    names = ("server.optimizer.lr = 0.1, client.optimizer.lr = 0.01, cohort.size = 50", "two")
    svg = render(figure(names), ReportSection(width_cm=8.0)).svg
    lines = re.findall(r">([^<>]*(?:lr|size)[^<>]*)<", svg)
    assert len(lines) > 1
    assert " ".join(lines) == names[0]
    assert not [line for line in lines if line.endswith("=")], "a setting stays whole"


def test_files_are_those_that_are_asked_for(tmp_path: Path) -> None:
    made = build([two_sizes(tmp_path / "runs")], tmp_path / "out", changes=["report.formats=pdf"])
    assert {file.suffix for file in (tmp_path / "out" / "figures").iterdir()} == {".pdf", ".csv"}
    text = made.page.read_text()
    assert "<svg role=" in text, "the page has its pictures, whatever the files"
    assert "PDF</a>" in text
    assert "PNG</a>" not in text


def test_a_pdf_holds_fonts_that_publishers_take() -> None:
    pdf = render(figure(), ReportSection()).files["pdf"]
    assert b"/FontFile2" in pdf
    assert b"/Type3" not in pdf


def test_the_same_figure_has_the_same_bytes_in_every_format() -> None:
    first, again = (render(figure(), ReportSection()).files for _ in range(2))
    assert first == again
    assert list(first) == ["png", "svg", "pdf"]


def test_recorded_runs_are_drawn_by_their_section_and_changes_come_over_it(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6), report={"formats": ["svg"], "width_cm": 10.0})
    build([tmp_path / "run"], tmp_path / "out", changes=["report.width_cm=6"])
    (first, *_) = (tmp_path / "out" / "figures").glob("*.svg")
    assert re.search(r'width="170.07', first.read_text())
    assert not list((tmp_path / "out" / "figures").glob("*.png"))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("cohort.size=5", "runs that are recorded keep their keys"),
        ("report.width_cm=1", "report.width_cm must be"),
        ("report.widht_cm=8", "did you mean 'width_cm'"),
        ("report.formats=gif", "report.formats"),
    ],
)
def test_what_is_no_key_of_pictures_is_refused_by_its_name(change: str, said: str) -> None:
    with pytest.raises(ExperimentError, match=said):
        ReportSection().changed([change])


def test_a_style_and_a_font_that_matplotlib_lacks_are_named() -> None:
    settings = dict(pyplot.rcParams)
    refused = {"no style 'mine'": ReportSection(style="mine"), "no font 'Nil'": ReportSection(font="Nil")}
    for said, section in refused.items():
        with pytest.raises(ExperimentError, match=said), drawing(section):
            pass
    with drawing(ReportSection(style="classic", font="serif")):
        assert pyplot.rcParams["font.family"] == ["serif"]
        assert pyplot.rcParams["xtick.direction"] == "in", "of the style"
        assert pyplot.rcParams["pdf.fonttype"] == 42, "of no style"
    assert dict(pyplot.rcParams) == settings


def test_a_run_ends_well_whatever_its_pictures_cannot_be(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = table([{"round": 0, "accuracy": 0.5}])
    curve.draw(rows, tmp_path / "curve", "run", report=ReportSection(style="mine"))
    assert "no style 'mine'" in caplog.text
    curve.draw(rows, tmp_path / "curve", "run", report=ReportSection(formats=("svg", "pdf")))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["curve.pdf", "curve.svg"]


def test_methods_differ_without_their_colours() -> None:
    named = looks([0.0] * NAMED)
    assert len({look.marker for look in named}) == NAMED
    assert len({look.dash for look in named[: NAMED // 2]}) == NAMED // 2
    same = [(a, b) for a in named for b in named if a is not b and a.colour == b.colour]
    assert all(a.dash != b.dash for a, b in same)


def test_a_method_is_called_by_its_folder_its_label_a_setting_or_a_key(tmp_path: Path) -> None:
    groups, _ = group_runs(read_all([two_sizes(tmp_path)])[0])
    assert [g.label for g in with_labels(groups, [f"{tmp_path / '5'}=FedAvg"])] == ["FedAvg", "cohort.size = 10"]
    # The name may have an equals sign, and the text may be written without spaces.
    assert [g.label for g in with_labels(groups, ["cohort.size=5=M = 5"])] == ["M = 5", "cohort.size = 10"]
    assert with_labels(groups, ["cohort.size=clients"])[0].names == {"cohort.size": "clients"}


def test_a_method_of_two_names_is_refused(tmp_path: Path) -> None:
    groups, _ = group_runs(read_all([two_sizes(tmp_path)])[0])
    with pytest.raises(RunFolderError, match=r"gives 'cohort\.size = 5' two names, 'a' and 'b': choose one"):
        with_labels(groups, ["cohort.size = 5=a", f"{tmp_path / '5'}=b"])
    assert [g.label for g in with_labels(groups, ["cohort.size=5=a"] * 2)] == ["a", "cohort.size = 10"]


@pytest.mark.parametrize("name", ["cohort.size = 7=small", "{both}=both", "cohort.size", "cohort.size = 5="])
def test_a_name_of_nothing_or_of_several_methods_is_refused(name: str, tmp_path: Path) -> None:
    groups, _ = group_runs(read_all([two_sizes(tmp_path)])[0])
    with pytest.raises(RunFolderError, match=r"a text of labels: cohort\.size = 5, "):
        with_labels(groups, [name.format(both=tmp_path)])


def test_two_methods_have_two_names(tmp_path: Path) -> None:
    groups, _ = group_runs(read_all([two_sizes(tmp_path)])[0])
    with pytest.raises(RunFolderError, match="two methods 'same'"):
        with_labels(groups, ["cohort.size = 5=same", "cohort.size = 10=same"])


def test_names_are_in_lanes_and_on_axes(tmp_path: Path) -> None:
    for size in (5, 10):
        for rate in (0.1, 0.2):
            client = {"optimizer": {"name": "sgd", "lr": rate}}
            write(tmp_path / f"{size}-{rate}", accuracies(0.5, 0.6), cohort={"size": size}, client=client)
    names = ["client.optimizer.lr = 0.1=slow", "cohort.size=clients M", "client.optimizer.lr=rate"]
    groups = with_labels(group_runs(read_all([tmp_path])[0])[0], names)
    assert "slow, cohort.size = 5" in [group.label for group in groups]
    along = lanes.lanes(groups)
    assert along is not None
    assert (along.label, [lane.label for lane in along.lanes]) == ("clients M", ["slow", "client.optimizer.lr = 0.2"])
    (axes,) = drawn(next(heat_maps.make(groups)))
    assert {axes.get_xlabel(), axes.get_ylabel()} == {"clients M", "rate"}


def rows_of_texts(names: tuple[str, ...], label: str) -> Figure:
    def draw(axes: Any) -> None:
        ticks.rows(axes, names)
        axes.set_xlabel(label)

    return Figure("rows", "f", "f.", pa.table({}), draw, height_in=1.4 + 0.3 * len(names))


def test_long_names_of_rows_and_axes_stay_inside_a_narrow_picture() -> None:
    section = ReportSection(width_cm=8.0, font_size=12.0)
    figure = rows_of_texts(("A very long name of a method that does not fit", "two"), "bytes transferred, down and up")
    with drawing(section):
        canvas = laid_out(figure, section)
        (axes,) = canvas.axes
        found = [text.get_window_extent() for text in (*axes.get_yticklabels(), axes.xaxis.label)]
    assert all(min(box.x0, box.y0) >= 0 and box.x1 <= canvas.bbox.x1 and box.y1 <= canvas.bbox.y1 for box in found)
    first, second = found[:2]
    assert not first.overlaps(second)


def test_a_picture_without_room_says_which_and_what_to_do(
    caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    render(rows_of_texts(("abcdefgh" * 4, "two"), "x"), ReportSection(width_cm=4.0, font_size=40.0))
    assert "Picture rows has no room for its texts: raise report.width_cm" in caplog.text
    assert not [warning for warning in recwarn if "constrained_layout" in str(warning.message)]


def test_a_short_line_has_a_marker_at_each_point() -> None:
    (look, *_) = looks([0.0])
    assert look.line(FEW_POINTS)["markevery"] is None
    assert look.line(FEW_POINTS + 1)["markevery"] is not None
    many = looks([0.0] * (NAMED + 1))
    assert next(look.line(1)["marker"] for look in many if not look.is_named) == "o"


def test_panels_of_rounds_span_the_same_rounds(tmp_path: Path) -> None:
    rows = [{"accuracy": 0.5, **({"eval/test/accuracy": 0.4} if place > 2 else {})} for place in range(6)]
    groups, _ = group_runs(read_all([write(tmp_path / "run", rows)])[0])
    (figure, *_) = train_test.make(groups)
    with drawing(ReportSection()):
        left, right = laid_out(figure, ReportSection()).axes
    assert figure.name == "train-and-test-by-rounds"
    assert left.get_xlim() == right.get_xlim()


def test_a_picture_of_gain_says_which_method_over_which(tmp_path: Path) -> None:
    for size in (5, 10):
        write(tmp_path / f"{size}", accuracies(0.5), cohort={"size": size}, clients={"a": 0.5, "b": 0.1 * size})
    groups, _ = group_runs(read_all([tmp_path])[0])
    (axes,) = drawn(next(client_gain.make(groups)))
    assert axes.get_title() == "cohort.size = 10 over cohort.size = 5"
