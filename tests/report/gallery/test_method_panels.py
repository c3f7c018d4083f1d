"""Curves of many groups: a panel for each method, a line per cohort size."""

from __future__ import annotations

from pathlib import Path

from raysim.report.gallery import method_panels
from raysim.report.gallery.curves import EXAMPLES
from raysim.report.groups import Group, group_runs
from raysim.report.runs import read_all
from tests.support.drawn import drawn
from tests.support.run_folders import write

SIZES, OPTIMIZERS = (1, 2, 5, 10, 20, 50, 100), ("sgd", "momentum")


def groups(folder: Path, sizes: tuple[int, ...] = SIZES) -> list[Group]:
    for optimizer in OPTIMIZERS:
        for size in sizes:
            rows = [{"pseudo_gradient_norm": size * (t + 1.0), "examples_so_far": 10 * size * t} for t in range(2)]
            path = folder / f"m={size},{optimizer}"
            write(path, rows, cohort={"size": size}, server={"optimizer": {"name": optimizer, "lr": 1.0}})
    return group_runs(read_all([folder])[0])[0]


def test_every_method_has_a_panel_and_every_cohort_a_line_with_a_name(tmp_path: Path) -> None:
    (figure,) = method_panels.make(groups(tmp_path), "pseudo_gradient_norm")
    assert figure.name == "pseudo_gradient_norm-by-rounds-of-each-method"
    assert {panel.title for panel in figure.panels} == {"sgd", "momentum"}
    assert figure.data.num_rows == 2 * 7 * 2
    assert len(set(figure.data["group"].to_pylist())) == 14
    looks = [[line.get_color() for line in axes.get_lines()] for axes in drawn(figure)]
    assert looks[0] == looks[1]
    assert len(set(looks[0])) == 6
    for axes in drawn(figure):
        assert axes.get_legend_handles_labels()[1] == [f"cohort.size = {size}" for size in SIZES]
        assert [line.get_ydata().tolist() for line in axes.get_lines()] == [[size, 2.0 * size] for size in SIZES]


def test_curves_may_stand_against_examples(tmp_path: Path) -> None:
    (figure,) = method_panels.make(groups(tmp_path), "pseudo_gradient_norm", EXAMPLES)
    assert figure.data["examples_so_far"].to_pylist()[:4] == [0, 10, 0, 20]
    assert [axes.get_xlabel() for axes in drawn(figure)] == ["training examples processed"] * 2


def test_few_groups_are_named_in_one_picture(tmp_path: Path) -> None:
    assert not list(method_panels.make(groups(tmp_path, SIZES[:6]), "pseudo_gradient_norm"))


def test_a_column_that_was_not_recorded_has_no_figure(tmp_path: Path) -> None:
    assert not list(method_panels.make(groups(tmp_path), "mean_cosine_similarity"))


def test_what_a_shell_lists_by_letters_is_read_by_numbers(tmp_path: Path) -> None:
    groups(tmp_path)
    listed = sorted(tmp_path.glob("*sgd"))
    assert [run.path.name for run in read_all(listed)[0]] == [f"m={size},sgd" for size in SIZES]
    assert [run.path.name for run in read_all(listed[::-1])[0]] == [path.name for path in listed[::-1]]
