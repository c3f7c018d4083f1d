"""Differences are paired by seed and tested; tables say so in three formats."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

import raysim
from raysim.cli import app
from raysim.report import comparison_table
from raysim.report.comparison import Comparison, compare, default_metrics, holm, p_value
from raysim.report.groups import group_runs, with_labels
from raysim.report.runs import read_all
from tests.support.run_folders import accuracies, write

METRIC = "eval/test/accuracy"


def made(folder: Path, finals: dict[float, list[float]], first_seeds: dict[float, int] | None = None) -> Comparison:
    """The comparison of methods by learning rate with these final accuracies, trial by trial."""
    for rate, values in finals.items():
        for trial, value in enumerate(values):
            seed = trial + (first_seeds or {}).get(rate, 0)
            client = {"optimizer": {"name": "sgd", "lr": rate}}
            write(folder / f"{rate}-{trial}", accuracies(0.1, value), seed=seed, client=client)
    return compare(group_runs(read_all([folder])[0])[0], METRIC)


def test_the_difference_is_taken_trial_by_trial(tmp_path: Path) -> None:
    first, second = made(tmp_path, {0.1: [0.5, 0.7, 0.9], 0.2: [0.6, 0.8, 1.0]}).methods
    assert (first.mean, first.deviation) == pytest.approx((0.7, 0.2))
    assert first.difference is None
    assert second.difference is not None
    # Trials differ by 0.2, and the methods by 0.1 in every one of them.
    assert second.difference.mean == pytest.approx(0.1)
    assert second.difference.deviation == pytest.approx(0, abs=1e-12)
    assert second.difference.pairs == 3


def test_a_table_has_no_settings_that_all_of_its_methods_share(tmp_path: Path) -> None:
    """Some runs hold clients out, as a study's trials do, and only they have the second figure."""
    for holdout, metric in ((0.0, METRIC), (0.2, "eval/validation/accuracy")):
        for rate in (0.1, 0.2):
            client, data = {"optimizer": {"name": "sgd", "lr": rate}}, {"name": "digits", "clients": 10}
            rows = [{metric: 0.1}, {metric: rate}]
            write(tmp_path / f"{holdout}-{rate}", rows, client=client, data={**data, "holdout": holdout})
    groups, _ = group_runs(read_all([tmp_path])[0])
    assert [group.label for group in groups] == [
        f"data.holdout = {holdout}, client.optimizer.lr = {rate}" for holdout in ("0", "0.2") for rate in (0.1, 0.2)
    ]
    for metric in (METRIC, "eval/validation/accuracy"):
        labels = [method.label for method in compare(groups, metric).methods]
        assert labels == ["client.optimizer.lr = 0.1", "client.optimizer.lr = 0.2"]
    named = with_labels(groups, ["data.holdout=0.2=held out"])
    assert compare(named, "eval/validation/accuracy").methods[0].label == "held out, client.optimizer.lr = 0.1"


def test_only_shared_seeds_are_paired(tmp_path: Path) -> None:
    _, second = made(tmp_path, {0.1: [0.5, 0.7], 0.2: [0.8, 0.1]}, {0.2: 1}).methods
    assert second.difference is not None
    assert second.difference.pairs == 1
    assert second.difference.mean == pytest.approx(0.1)
    assert second.difference.p is None


def test_no_shared_seeds_is_no_difference_and_is_said(tmp_path: Path) -> None:
    found = made(tmp_path, {0.1: [0.5], 0.2: [0.6]}, {0.2: 9})
    assert found.methods[1].difference is None
    assert "shares no seeds" in found.notes[0]


def test_few_pairs_are_said(tmp_path: Path) -> None:
    found = made(tmp_path, {0.1: [0.5, 0.6, 0.7], 0.2: [0.6, 0.6, 0.9]})
    assert any("With 3 pairs p-values mean little" in note for note in found.notes)


def test_values_are_those_of_the_last_round_that_all_have(tmp_path: Path) -> None:
    write(tmp_path / "a", accuracies(0.1, 0.2))
    write(tmp_path / "b", accuracies(0.3, 0.4, 0.9), rounds=3, cohort={"size": 9})
    found = compare(group_runs(read_all([tmp_path])[0])[0], METRIC)
    assert (found.after, [method.mean for method in found.methods]) == (2, [0.2, 0.4])
    assert "1 of 2 runs went on after round 2" in found.notes[0]


def test_the_mean_of_the_last_rounds_counts_instead_of_the_last_value(tmp_path: Path) -> None:
    for seed, shift in enumerate((0.0, 0.2)):
        write(tmp_path / f"a{seed}", accuracies(0.9, 0.1 + shift, 0.3 + shift), seed=seed, rounds=3)
        # Evaluated in every second round.
        rows = [{METRIC: value} for value in (0.0, None, 0.2 + shift, None, 0.6 + shift)]
        write(tmp_path / f"b{seed}", rows, seed=seed, rounds=5, cohort={"size": 9})
    groups, _ = group_runs(read_all([tmp_path])[0])
    # Round 3 is the last one that all have: rounds 2 and 3 of the first method, 1 and 3 of the second.
    found = compare(groups, METRIC, last=2)
    assert (found.after, found.last) == (3, 2)
    assert [method.mean for method in found.methods] == pytest.approx([(0.2 + 0.4) / 2, (0.1 + 0.2) / 2])
    # Over two trials: means 0.2 and 0.4, and 0.1 and 0.2.
    assert [method.deviation for method in found.methods] == pytest.approx([0.2 / 2**0.5, 0.1 / 2**0.5])
    assert "The last 2 rounds with the figure are not the same rounds in all runs." in found.notes
    assert comparison_table.written(found, "text").startswith(f"{METRIC}, mean of the last 2 rounds that have it until")
    assert compare(groups, METRIC, last=1) == compare(groups, METRIC)


def test_the_mean_is_of_the_newest_rounds_where_none_is_common(tmp_path: Path) -> None:
    write(tmp_path / "a", [{METRIC: value} for value in (0.1, None, 0.3, None)], rounds=4)
    write(tmp_path / "b", [{METRIC: value} for value in (None, 0.5, None, 0.9)], rounds=4, cohort={"size": 9})
    found = compare(group_runs(read_all([tmp_path])[0])[0], METRIC, last=2)
    assert [method.mean for method in found.methods] == pytest.approx([0.2, 0.7])
    assert comparison_table.written(found, "text").startswith(f"{METRIC}, mean of the last 2 rounds that have it\n")


def test_more_rounds_than_were_evaluated_or_fewer_than_one_are_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a", accuracies(0.1, 0.2, 0.3), rounds=3)
    write(tmp_path / "b", accuracies(0.3, 0.4), cohort={"size": 9})
    assert "mean of the last 2 rounds" in str(raysim.compare(tmp_path, last=2))
    with pytest.raises(
        raysim.RunFolderError, match=r"at most 2, .* in which cohort.size = 5 has 'eval/test/acc.*is 3\."
    ):
        raysim.compare(tmp_path, last=3)
    with pytest.raises(raysim.RunFolderError, match=r"must be at least 1, but is 0\."):
        raysim.compare(tmp_path, last=0)
    asked = CliRunner().invoke(app, ["compare", str(tmp_path), "--last", "2"])
    assert (asked.exit_code, "mean of the last 2 rounds" in asked.output) == (0, True)


def test_the_p_values_are_those_of_scipys_paired_tests() -> None:
    a, b = [0.5, 0.6, 0.7, 0.9, 0.4, 0.8], [0.6, 0.6, 0.9, 0.95, 0.5, 0.7]
    differences = [y - x for x, y in zip(a, b, strict=True)]
    assert p_value(differences, "t") == pytest.approx(stats.ttest_rel(b, a).pvalue)
    without_ties = [0.1, 0.2, -0.05, 0.3, 0.4, 0.6]
    # One of six ranks, the smallest, is against: 4 of the 64 signs are as far out, both sides counted.
    assert p_value(without_ties, "wilcoxon") == pytest.approx(4 / 64)


def test_equal_differences_have_one_rank_though_rounding_parts_them(tmp_path: Path) -> None:
    before, after = [0.80, 0.70, 0.60, 0.50, 0.90, 0.65, 0.55], [0.85, 0.65, 0.65, 0.55, 0.95, 0.60, 0.65]
    differences = [b - a for a, b in zip(before, after, strict=True)]
    assert len({abs(each) for each in differences}) == 3, "0.05 in two forms, and 0.1"
    # Two of six ranks of 3.5 are against: none, one or two of them, or the rank of 7 alone, in 1 + 6 + 15 + 1 of 128.
    expected = 2 * 23 / 128
    assert p_value(differences, "wilcoxon") == pytest.approx(expected)
    for seed, values in enumerate(zip(before, after, strict=True)):
        for size, value in zip((5, 9), values, strict=True):
            write(tmp_path / f"{size}-{seed}", accuracies(value, value), seed=seed, cohort={"size": size})
    (method,) = compare(group_runs(read_all([tmp_path])[0])[0], METRIC, "wilcoxon").methods[1:]
    assert method.difference is not None
    assert method.difference.pairs == 7
    assert method.difference.p == pytest.approx(expected)


@pytest.mark.parametrize(
    "differences",
    [[0.1] * 10 + [0.2] * 5, [0.0, 0.1, 0.1, 0.1, 0.1, 0.2], [0.0, 0.0, 0.3, -0.1, 0.1, 0.2], [0.3, -0.1, 0.2] * 4],
    ids=["15 pairs", "a zero", "two zeros", "both ways"],
)
def test_wilcoxons_p_counts_all_signs_where_sizes_are_equal_or_zero(differences: list[float]) -> None:
    """A normal approximation made p of the 15 pairs more than six times as large."""
    sizes = np.abs([each for each in differences if each])
    ranks = stats.rankdata(sizes)
    signs = np.array(list(product((0, 1), repeat=len(sizes))))
    rising = signs @ ranks
    moved = np.array([each for each in differences if each]) > 0
    against = min(ranks[moved].sum(), ranks[~moved].sum())
    expected = min(1.0, 2 * np.mean(rising <= against))
    assert p_value(differences, "wilcoxon") == pytest.approx(expected, rel=1e-12)


def test_wilcoxons_p_of_many_pairs_is_scipys() -> None:
    rng = np.random.default_rng(0)
    for pairs in (50, 51):
        differences = rng.permutation(np.arange(1, pairs + 1)) * rng.choice([-1, 1, 1], size=pairs) / 64
        assert p_value(differences.tolist(), "wilcoxon") == pytest.approx(stats.wilcoxon(differences).pvalue)


def test_equal_means_of_several_rounds_have_no_difference(tmp_path: Path) -> None:
    # The means of the first two differ in the last bit.
    for seed, (first, second) in enumerate([((0.1, 0.1, 0.4), (0.1, 0.2, 0.3)), ((0.2, 0.3, 0.4), (0.4, 0.3, 0.2))]):
        write(tmp_path / f"a-{seed}", accuracies(*first), seed=seed, rounds=3)
        write(tmp_path / f"b-{seed}", accuracies(*second), seed=seed, rounds=3, cohort={"size": 9})
    difference = compare(group_runs(read_all([tmp_path])[0])[0], METRIC, "wilcoxon", last=3).methods[1].difference
    assert difference is not None
    assert (difference.mean, difference.deviation, difference.p) == (0.0, 0.0, None)


@pytest.mark.parametrize("differences", [[], [0.1], [0.1, 0.1, 0.1]])
def test_where_nothing_varies_there_is_no_test(differences: list[float]) -> None:
    assert p_value(differences, "t") is None
    assert p_value(differences, "wilcoxon") is None


def test_holms_correction() -> None:
    # The smallest of three counts three times, the next twice; what is smaller than the one before becomes it.
    assert holm([0.04, 0.01, None, 0.03]) == pytest.approx([0.06, 0.03, None, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_one_method_or_an_unknown_figure_is_an_error(tmp_path: Path) -> None:
    for seed in range(2):
        write(tmp_path / f"{seed}", accuracies(0.5, 0.6), seed=seed)
    groups, _ = group_runs(read_all([tmp_path])[0])
    with pytest.raises(raysim.RunFolderError, match=r"got 1 with it. Runs that differ in seeds only are one method"):
        compare(groups, METRIC)
    with pytest.raises(raysim.RunFolderError, match=r"got 0 with it .did you mean 'eval/test/accuracy'"):
        compare(groups, "eval/test/acuracy")
    assert default_metrics(groups) == [METRIC]


def test_the_table_in_three_formats(tmp_path: Path) -> None:
    found = made(tmp_path, {0.1: [0.5, 0.75], 0.2: [0.75, 0.75]})
    text = comparison_table.written(found, "text").splitlines()
    assert text[0] == "eval/test/accuracy, after round 2"
    assert " ".join(text[3].split()) == "client.optimizer.lr = 0.2 2 75.0 % 0.0 % +12.5 ± 17.7 points 2 0.5"
    markdown = comparison_table.written(found, "markdown").splitlines()
    assert markdown[2:5:2] == [
        "|  | trials | mean | std | difference | pairs | p (paired t) |",
        "| client.optimizer.lr = 0.1 | 2 | 62.5 % | 17.7 % | - | - | - |",
    ]
    latex = comparison_table.written(found, "latex")
    assert r"client.optimizer.lr = 0.2 & 2 & 75.0 \% & 0.0 \% & +12.5 $\pm$ 17.7 points & 2 & 0.5 \\" in latex


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("*a* **b**", r"\*a\* \*\*b\*\*"),
        ("_a_ ~~b~~ x_y", r"\_a\_ \~\~b\~\~ x\_y"),
        ("https://x", "https&#58;//x"),
        ("www.x WWW.x", "www&#46;x WWW&#46;x"),
        ("lr = 0.1: wwwx", "lr = 0.1: wwwx"),
    ],
)
def test_markdown_shows_marks_and_addresses_as_they_are(text: str, written: str) -> None:
    assert comparison_table.as_markdown(text) == written


def test_latex_escapes_what_it_must(tmp_path: Path) -> None:
    for name in ("a_b", "c"):
        write(tmp_path / name, accuracies(0.5, 0.6), name=name, model=None)
    table = comparison_table.written(compare(group_runs(read_all([tmp_path])[0])[0], METRIC), "latex")
    assert r"run = a\_b" in table


def test_what_was_left_out_is_said_where_too_little_is_left(tmp_path: Path) -> None:
    made(tmp_path, {0.1: [0.5], 0.2: [0.6]})
    (tmp_path / "0.2-0" / "experiment.json").write_text("{}")
    with pytest.raises(raysim.RunFolderError, match=r"two methods must have .*0\.2-0 is left out: .* is damaged"):
        raysim.compare(tmp_path)


def test_what_a_folder_says_acts_on_nothing(tmp_path: Path) -> None:
    """A notebook runs what is HTML in Markdown, and LaTeX reads the lines behind a comment."""
    said = "<img src=x onerror=alert(1)>\n\\input{x} [a](javascript:b) `c` $d$ | e"
    for name in (said, "plain"):
        data = {"name": "arrow", "train": "a", "client": "c", "x": ["x"], "y": name}
        write(tmp_path / str(len(name)), accuracies(0.5, 0.6), data=data, data_fingerprint=None)
    found = raysim.compare(tmp_path)
    markdown = found._repr_markdown_()
    assert "data.y" in markdown
    assert not set(markdown) & set("<>[]`$")
    assert "\n\\input" not in markdown
    assert all(len(line.replace(r"\|", "").split("|")) in (1, 9) for line in markdown.splitlines())
    begins = r"(%|\\(begin|end|toprule|midrule|bottomrule)| & |data\.y = |$)"
    assert all(re.match(begins, line) for line in found.written("latex").splitlines())
    assert len(found.written("text").splitlines()) == 6
