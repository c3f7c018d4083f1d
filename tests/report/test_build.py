"""The report as files: one page that stands alone, and each picture with its data."""

from __future__ import annotations

import errno
import gc
import math
import re
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pytest
from matplotlib import pyplot

from raysim.errors import ExperimentError, RunFolderError
from raysim.experiment.pictures import ReportSection
from raysim.report import curve, picture_files
from raysim.report.build import Built, _apart, build, default_folder
from raysim.report.gallery import axes as ticks
from raysim.report.gallery.figure import Figure, Kind, Panel
from raysim.report.gallery.gallery import kinds
from raysim.report.gallery.render import Drawn, laid_out, render, themed
from raysim.report.groups import group_runs
from raysim.report.looks import DARK
from raysim.report.page import page
from raysim.report.runs import read_all
from tests.support.run_folders import accuracies, write


def test_the_page_asks_for_nothing_beside_itself(built: Built) -> None:
    text = built.page.read_text()
    # Links are followed by people only; a namespace is a name.
    loaded = re.sub(r'<a href="[^"]*"|xmlns(:xlink)?="[^"]*"', "", text)
    assert not re.findall(r"https?://|//cdn|@import|<script|<iframe", loaded)
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"#][^"]*)"', loaded))


def test_the_time_of_a_method_is_its_trials_mean_also_where_one_ended_first(tmp_path: Path) -> None:
    for seed, (count, seconds) in enumerate(((2, 5.0), (4, 0.5))):
        write(tmp_path / f"{seed}", [{"accuracy": 0.5, "wall_time_s": seconds}] * count, rounds=4, seed=seed)
    assert "6.0 s" in build([tmp_path], tmp_path / "report").page.read_text()


def test_every_picture_is_there_as_png_svg_and_csv(built: Built) -> None:
    text, folder = built.page.read_text(), built.page.parent
    linked = re.findall(r'<a href="(figures/[^"]+)"', text)
    assert len(linked) == 4 * built.figures == 4 * text.count("<figure ")
    assert {file.suffix for file in (folder / "figures").iterdir()} == {".png", ".svg", ".pdf", ".csv"}
    assert sorted(linked) == sorted(str(file.relative_to(folder)) for file in (folder / "figures").iterdir())
    for link in linked:
        content = (folder / link).read_bytes()
        assert content.startswith({"png": b"\x89PNG", "svg": b"<svg", "pdf": b"%PDF", "csv": b'"group"'}[link[-3:]])


def test_the_data_beside_a_picture_are_what_is_drawn(built: Built, sweep: Path) -> None:
    groups, _ = group_runs(read_all([sweep])[0])
    made = [figure for kind in kinds() for figure in kind.make(groups)]
    for figure in made[:3]:
        table = csv.read_csv(built.page.parent / "figures" / f"{figure.name}.csv")
        assert table.to_pydict() == figure.data.to_pydict()


def test_the_table_says_mean_and_deviation_of_every_method(built: Built) -> None:
    text = built.page.read_text()
    assert text.count("<tr>") == 1 + 4
    assert "8 runs with 4 different settings." in text
    cells = "".join(rf'<td class="number">{text}</td>\s*' for text in ("2", "12", r"[\d.]+ % ± 0.7 %"))
    assert re.search(cells, text)


def test_what_cannot_be_shown_is_one_line_at_the_end(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    text = build([tmp_path / "run"], tmp_path / "out").page.read_text()
    (line,) = re.findall(r"<p>Not shown, [^<]*</p>", text)
    assert "Clip level (clip_level)" in line
    assert "Learning curves" not in line


def test_a_run_before_its_first_round_has_a_page_that_says_so(tmp_path: Path) -> None:
    write(tmp_path / "run", [])
    made = build([tmp_path / "run"], tmp_path / "out")
    assert made.figures == 0
    assert "has finished 0 of 2 rounds" in made.page.read_text()


def test_warnings_come_before_anything_else(tmp_path: Path) -> None:
    write(tmp_path / "a", accuracies(0.5, 0.6), rounds=9)
    write(tmp_path / "b", accuracies(0.5, 0.6), data={"name": "digits", "clients": 30})
    made = build([tmp_path], tmp_path / "out")
    text = made.page.read_text()
    for note in ("has finished 2 of 9 rounds", "Runs of different data are compared: data.clients is 20, 30."):
        assert note in text[text.index("<aside") : text.index("</aside>")]
        assert any(note in said for said in made.notes)


def test_names_from_outside_are_text(tmp_path: Path) -> None:
    write(tmp_path / "<b>run", accuracies(0.5), rounds=3, clients={"<i>": 0.5})
    text = build([tmp_path], tmp_path / "out").page.read_text()
    assert "&lt;b&gt;run has finished" in text
    assert "<b>run" not in text


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    first, again = (build([tmp_path / "run"], tmp_path / name).page.read_bytes() for name in ("first", "again"))
    assert first == again


def test_a_report_replaces_the_one_before_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    out = tmp_path / "run" / "report"
    (out / "figures").mkdir(parents=True)
    foreign = out / "figures" / "mine.png"
    foreign.write_bytes(b"mine")
    build([tmp_path / "run"], out)
    assert foreign.read_bytes() == b"mine", "a folder that is not a report is not cleared"
    (out / "figures" / "old.csv").write_text("old")
    page = out / "index.html"
    page.write_text(page.read_text() + '<a href="figures/old.csv">')
    build([tmp_path / "run"], out)
    assert not (out / "figures" / "old.csv").exists()


def test_where_a_report_goes_unless_it_is_said() -> None:
    assert default_folder([Path("runs/a")]) == Path("runs/a/report")
    assert default_folder([Path("runs/a"), Path("runs/b")]) == Path("report")


def test_panels_share_an_axis_of_values_and_a_legend() -> None:
    drawn: list[Any] = []

    def draw(high: float, axes: Any) -> None:
        for name in ("one", "two"):
            axes.plot([0, 1], [0, high], label=f"line {name}")
        drawn.append(axes)

    panels = tuple(Panel(f"panel {high}", partial(draw, high)) for high in (1.0, 5.0, 2.0))
    svg = render(Figure("f", "f", "f.", pa.table({}), panels), ReportSection()).svg
    assert len({axes.get_ylim() for axes in drawn}) == 1
    for text in ("line one", "line two", "panel 1.0", "panel 5.0", "panel 2.0"):
        assert svg.count(f">{text}<") == 1


def test_the_last_panel_of_each_column_has_the_ticks_of_a_shared_axis() -> None:
    def draw(axes: Any) -> None:
        axes.plot([0, 1], [0, 1])

    panels = tuple(Panel(f"panel {place}", draw) for place in range(5))
    canvas = laid_out(Figure("f", "f", "f.", pa.table({}), panels, shares_x=True), ReportSection())
    shown = [axes.xaxis.get_tick_params()["labelbottom"] for axes in canvas.axes[:5]]
    assert shown == [False, False, False, True, True]


@pytest.mark.parametrize(
    ("high", "expected"), [(100.0, ["1", "2", "5", "10", "20", "50", "100"]), (1e6, [f"{10**k:g}" for k in range(7)])]
)
def test_a_long_logarithmic_axis_has_ticks_at_decades_only(high: float, expected: list[str]) -> None:
    def draw(axes: Any) -> None:
        axes.plot([0, 1], [1.0, high])
        axes.set_yscale("log")
        axes.set_ylim(1.0, high)
        ticks.plain_logarithm(axes)

    (axes,) = laid_out(Figure("f", "f", "f.", pa.table({}), draw), ReportSection()).axes
    inside = [text.get_text() for text in axes.get_yticklabels() if 1 <= text.get_position()[1] <= high]
    assert inside == expected


def test_pictures_have_letters_and_colours_that_a_page_can_change(sweep: Path) -> None:
    groups, _ = group_runs(read_all([sweep])[0])
    settings = dict(pyplot.rcParams)
    figure = next(kinds()[0].make(groups))
    drawn = render(figure, ReportSection())
    assert "finished rounds" in drawn.svg
    assert f'aria-label="{figure.title}"' in drawn.svg
    assert "var(" not in drawn.svg, "by itself the file needs no page"
    themed_svg = themed(drawn.svg)
    assert not [colour for colour in DARK if re.search(rf"{colour}\b", themed_svg, re.IGNORECASE)]
    assert dict(pyplot.rcParams) == settings


def test_the_pages_pictures_have_the_pages_colours_and_their_files_their_own(built: Built) -> None:
    drawings = re.findall(r'<svg role="img".*?</svg>', built.page.read_text(), re.DOTALL)
    assert len(drawings) == built.figures
    assert all("var(" in each for each in drawings)
    files = list(built.page.parent.glob("figures/*.svg"))
    assert len(files) == built.figures
    assert not any("var(" in file.read_text() for file in files)


def test_an_older_report_goes_and_files_of_others_stay(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    out = tmp_path / "out"
    page = build([tmp_path / "run"], out).page
    (out / "figures" / "mine.png").write_bytes(b"mine")
    (out / "figures" / "former.csv").write_bytes(b"of the former report")
    (tmp_path / "outside.csv").write_bytes(b"mine")
    links = "".join(f'<a href="figures/{name}">' for name in ("former.csv", "../../outside.csv", "%2e%2e/x.png"))
    page.write_text(page.read_text() + links)
    build([tmp_path / "run"], out)
    assert (out / "figures" / "mine.png").read_bytes() == b"mine"
    assert not (out / "figures" / "former.csv").exists()
    assert (tmp_path / "outside.csv").read_bytes() == b"mine"


def test_a_page_of_others_is_not_replaced(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "index.html").write_text("mine")
    with pytest.raises(RunFolderError, match=r"index\.html is no page of `raysim report`, so it is not replaced"):
        build([tmp_path / "run"], tmp_path / "out")
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["index.html"]


@pytest.mark.parametrize("ending", ["png", "csv"])
def test_a_file_of_others_with_the_name_of_a_picture_is_not_replaced(ending: str, tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    out = tmp_path / "out"
    (out / "figures").mkdir(parents=True)
    name = next(file.stem for file in build([tmp_path / "run"], tmp_path / "other").page.parent.glob("figures/*.csv"))
    mine = out / "figures" / f"{name}.{ending}"
    mine.write_bytes(b"mine")
    with pytest.raises(RunFolderError, match=rf"{name}\.{ending} is none of the pictures .*: move it away, or choose"):
        build([tmp_path / "run"], out)
    assert [file for file in out.rglob("*") if file.is_file()] == [mine]
    assert mine.read_bytes() == b"mine"


def test_a_file_of_others_in_the_place_of_the_last_picture_is_refused_before_the_first_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "run", [{"eval/test/accuracy": value, "eval/test/loss": 1 - value} for value in (0.5, 0.6)])
    drawn: list[str] = []

    def noting(figure: Figure, report: ReportSection) -> Drawn:
        drawn.append(figure.name)
        return render(figure, report)

    monkeypatch.setattr("raysim.report.build.render", noting)
    build([tmp_path / "run"], tmp_path / "other")
    *others, last = drawn
    assert others
    drawn.clear()
    (tmp_path / "out" / "figures").mkdir(parents=True)
    (tmp_path / "out" / "figures" / f"{last}.png").write_bytes(b"mine")
    with pytest.raises(RunFolderError, match=rf"{last}\.png is none of the pictures"):
        build([tmp_path / "run"], tmp_path / "out")
    assert not drawn


def test_a_report_that_was_killed_between_its_files_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it wrote is linked by its page."""
    monkeypatch.setattr("raysim.report.build.kinds", lambda *asked: kinds(*asked)[:1])
    write(tmp_path / "run", [{"eval/test/accuracy": value, "eval/test/loss": 1 - value} for value in (0.5, 0.6)])
    whole = build([tmp_path / "run"], tmp_path / "whole")
    assert whole.figures > 1
    move = picture_files.move
    for after in range(whole.figures):
        left = iter(range(after))

        def killed(*given: Any, left: Any = left) -> None:
            if next(left, None) is None:
                raise KeyboardInterrupt
            move(*given)

        monkeypatch.setattr(picture_files, "move", killed)
        with pytest.raises(KeyboardInterrupt):
            build([tmp_path / "run"], tmp_path / "out")
    monkeypatch.setattr(picture_files, "move", move)
    again = build([tmp_path / "run"], tmp_path / "out")
    files = [{file.name for file in made.page.parent.rglob("*")} for made in (whole, again)]
    assert files[0] == files[1]


def test_a_page_that_cannot_be_written_leaves_the_older_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    out = tmp_path / "out"
    build([tmp_path / "run"], out)
    older = {file: file.read_bytes() for file in out.rglob("*") if file.is_file()}

    def failing(*given: Any) -> Any:
        yield "<!doctype html>"
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("raysim.report.build.page", failing)
    with pytest.raises(OSError, match=r"index\.html could not be written"):
        build([tmp_path / "run"], out)
    assert {file: file.read_bytes() for file in out.rglob("*") if file.is_file()} == older


def test_one_picture_is_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither figures nor their files are kept until the page is written, which holds one SVG in a piece."""
    write(tmp_path / "run", accuracies(0.5, 0.6))
    made: list[weakref.ref[Figure]] = []

    def many(groups: object) -> Iterator[Figure]:
        for number in range(5):
            gc.collect()
            assert sum(each() is not None for each in made) <= 1
            figure = Figure(f"f{number}", "f", "f.", pa.table({"group": ["a"]}), lambda axes: None)
            made.append(weakref.ref(figure))
            yield figure

    pieces: list[str] = []

    def in_pieces(*given: Any) -> Iterator[str]:
        for piece in page(*given):
            pieces.append(piece)
            yield piece

    monkeypatch.setattr("raysim.report.build.kinds", lambda *asked: [Kind("s", "many", "", many)])
    monkeypatch.setattr("raysim.report.build.page", in_pieces)
    built = build([tmp_path / "run"], tmp_path / "out")
    assert built.figures == len(made) == 5
    drawn = [piece.count('<svg role="img"') for piece in pieces]
    assert (sum(drawn), max(drawn)) == (5, 1)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["figures", "index.html"]


def test_a_picture_that_fails_leaves_the_older_report(tmp_path: Path) -> None:
    write(tmp_path / "run", accuracies(0.5, 0.6))
    with pytest.raises(ExperimentError, match="no font 'Nil'"):
        build([tmp_path / "run"], tmp_path / "out", changes=["report.font=Nil"])
    assert not (tmp_path / "out").exists()
    build([tmp_path / "run"], tmp_path / "out")
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}
    with pytest.raises(ExperimentError, match="no font 'Nil'"):
        build([tmp_path / "run"], tmp_path / "out", changes=["report.font=Nil"])
    assert {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()} == before


NAMES = (
    "eval/a/b/accuracy",
    "eval/a-b/accuracy",
    "eval/A-b/accuracy",
    "eval/50%\\\n/accuracy",
    f"eval/{'x' * 300}/loss",
    f"eval/{'€' * 75}/accuracy",
    f"eval/{'€' * 76}/accuracy",
)


def test_names_of_any_letters_make_files_of_their_own(tmp_path: Path) -> None:
    for name, rate in (("one", 0.1), ("two", 0.2)):
        rows = [{each: value / 1000 for value, each in enumerate(NAMES, start=round)} for round in (1, 11)]
        write(tmp_path / name, rows, client={"optimizer": {"name": "sgd", "lr": rate}})
    made = build([tmp_path / "one", tmp_path / "two"], tmp_path / "report")
    files = list((made.page.parent / "figures").iterdir())
    assert len(files) == 4 * made.figures == len({file.name.casefold() for file in files})
    links = re.findall(r'<a href="figures/([^"]+)"', made.page.read_text())
    assert sorted(links) == sorted(file.name for file in files)
    assert build([tmp_path / "one"], tmp_path / "report").figures == len(
        list((made.page.parent / "figures").glob("*.csv"))
    )


def test_numbered_names_that_are_cut_are_names_of_their_own() -> None:
    long = "a" * 119
    taken: dict[str, int] = {}
    figures = [Figure(name, "f", "f.", pa.table({}), ()) for name in (f"{long}-2", long, long.upper(), long, "b", "B")]
    names = [_apart(figure, taken).name for figure in figures]
    assert len({name.casefold() for name in names}) == len(names)
    assert names[-2:] == ["b", "B-2"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        (
            {"eval/test/loss": [1e308, -1e308], "eval/test/accuracy": [1e300, 1e300]},
            "2 values of eval/test/loss, 2 values of eval/test/accuracy",
        ),
        ({"eval/test/accuracy": [True, False], "accuracy": [0.1, 0.2]}, None),
        ({"eval/test/accuracy": [0.1, 0.2], "eval/test/p1.2.3": [0.1, 0.1]}, None),
        ({"examples_so_far": [2**62, 2**62], "eval/test/accuracy": [0.1, 0.2]}, None),
        (
            {"eval/test/accuracy": [math.inf, -math.inf], "accuracy": [0.1, math.nan]},
            "2 values of eval/test/accuracy, 1 value of accuracy",
        ),
        (
            {f"c{i}": [1e160, 1.0] for i in range(5)},
            "1 value of c0, 1 value of c1, 1 value of c2, 2 more columns",
        ),
    ],
)
def test_figures_that_no_axis_holds_are_left_out_and_counted(
    tmp_path: Path, columns: dict[str, list[float]], said: str | None
) -> None:
    for seed in range(2):
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        write(tmp_path / f"run-{seed}", rows, {"a": 0.1, "b": 0.2}, seed=seed)
    made = build([tmp_path], tmp_path / "report")
    note = (
        f"Pictures and tables of each of {tmp_path}/run-0 and {tmp_path}/run-1 leave out values that are not finite, "
        f"or larger than 1e+150 in size: {said}."
    )
    assert list(made.notes) == ([note] if said else [])
    assert all(note in made.page.read_text() for note in made.notes)
    curve.figure(read_all([tmp_path])[0][0].rounds, "")


@pytest.mark.parametrize("large", [1e308, -1e308, 1e151])
def test_figures_of_clients_that_no_axis_holds_are_left_out_and_counted(tmp_path: Path, large: float) -> None:
    write(tmp_path / "run", [{"accuracy": 0.1}] * 2, {"a": large, "b": large, "c": 0.2, "d": 0.3})
    made = build([tmp_path / "run"], tmp_path / "report")
    assert list(made.notes) == [
        f"Pictures and tables of {tmp_path}/run leave out values that are not finite, or larger than 1e+150 in size: "
        "2 values of the clients' accuracy."
    ]
    clients = read_all([tmp_path / "run"])[0][0].clients
    assert clients["accuracy"].to_pylist() == [None, None, 0.2, 0.3]
