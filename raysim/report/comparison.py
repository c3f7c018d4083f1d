"""Compares methods on one figure: mean and deviation of each, and a paired test of trials with the same seeds.

Trials with the same seeds have the same data and cohorts, so they differ only in the method. The difference is computed
pair by pair, and its mean is tested against 0. If several methods are compared with the first, Holm's procedure
corrects the p-values.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np

from raysim.config.messages import nearest
from raysim.errors import RunFolderError
from raysim.report.column_names import headlines
from raysim.report.groups import Group, headline, without_shared
from raysim.report.series import over_trials
from raysim.report.signed_ranks import p_of_signed_ranks
from raysim.report.ties import EQUAL, levelled

Test = Literal["t", "wilcoxon"]
"""Student's t, which assumes normal differences; or Wilcoxon's signed ranks, which does not."""

FEW_PAIRS = 6
"""With fewer pairs Wilcoxon's p cannot fall below 0.05, and it cannot be checked whether differences are normal."""

_OF_VALUES = 1000.0
"""Times that figures may be larger than their differences, for the rounding of these."""


class Difference(NamedTuple):
    """The difference of a method from the first, over `pairs` trials with the same seeds.

    deviation: of a sample; None with one pair. p: two-sided, corrected; None if no test is defined: fewer than two
    pairs, or equal differences.
    """

    mean: float
    deviation: float | None
    pairs: int
    p: float | None


class Method(NamedTuple):
    """A group's figure over its trials; `difference` is None for the first group, or without shared seeds."""

    label: str
    trials: int
    mean: float
    deviation: float | None
    difference: Difference | None


class Comparison(NamedTuple):
    """`after`: the finished rounds at which all were measured; None if there is no common round.

    last: a trial's figure is the mean over so many rounds that have it, the last ones until then.
    """

    metric: str
    after: int | None
    methods: tuple[Method, ...]
    test: Test
    notes: tuple[str, ...]
    last: int = 1


def compare(groups: Sequence[Group], metric: str, test: Test = "t", last: int = 1) -> Comparison:
    """Compare each group with the first, on a column of the records.

    Args:
        groups: of the compared runs.
        metric: the column.
        test: the paired test.
        last: see `Comparison`.

    Raises:
        RunFolderError: fewer than two groups have the figure; or `last` is below 1, or more than the rounds in which a
            trial has it.
    """
    if last < 1:
        raise RunFolderError(f"The number of last rounds must be at least 1, but is {last}.")
    having = [(group, known) for group in groups if (known := _measured(group, metric))]
    labels = [group.label for group in without_shared([group for group, _ in having])]
    measured = dict(zip(labels, [known for _, known in having], strict=True))
    if len(measured) < 2:
        raise RunFolderError(
            f"To be compared, two methods must have the figure {metric!r}, but got {len(measured)} with it"
            f"{_hint(groups, metric)}. Runs that differ in seeds only are one method."
        )
    after, notes = _common_round([rounds for trials in measured.values() for rounds in trials.values()])
    windows = {
        label: {seeds: _last_until(rounds, after, last) for seeds, rounds in trials.items()}
        for label, trials in measured.items()
    }
    notes += _different_windows(windows, metric, last)
    values = {
        label: {seeds: statistics.fmean(window.values()) for seeds, window in trials.items()}
        for label, trials in windows.items()
    }
    (first, reference), *others = values.items()
    differences = [_differences(reference, trials) for _, trials in others]
    ps = holm([p_value(paired, test) for paired in differences])
    methods = [_method(first, reference, None)]
    for (label, trials), paired, p in zip(others, differences, ps, strict=True):
        methods.append(_method(label, trials, _difference(paired, p) if paired else None))
    return Comparison(metric, after, tuple(methods), test, (*notes, *_cautions(methods, test)), last)


def _measured(group: Group, metric: str) -> dict[tuple[int, ...], dict[int, float]]:
    """Return the figure by finished rounds, of each trial that has it, by seeds."""
    series = {run.seeds: over_trials([run.rounds], metric) for run in group.runs}
    return {
        seeds: dict(zip(one.rounds.tolist(), one.mean.tolist(), strict=True))
        for seeds, one in series.items()
        if one is not None
    }


def default_metrics(groups: Sequence[Group]) -> list[str]:
    """Return the accuracy, or loss, of every evaluated split, or of training if no split was evaluated."""
    return list(headlines(_columns(groups)).values()) or [headline(groups)]


def p_value(differences: Sequence[float], test: Test) -> float | None:
    """Return the two-sided p of the paired test that the differences' mean, or median, is 0; None if undefined.

    Sizes of differences that rounding parts have one rank.
    """
    if len(differences) < 2 or np.allclose(differences, differences[0], rtol=1e-9, atol=0):
        return None
    if test == "t":
        from scipy import stats  # slow to import

        return float(stats.ttest_1samp(differences, 0.0).pvalue)
    found = np.asarray(differences, dtype=np.float64)
    return p_of_signed_ranks(np.sign(found) * levelled(np.abs(found), _OF_VALUES * np.abs(found).max()))


def holm(ps: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for their number m: the i-th smallest times m - i + 1, at most 1, never falling.

    Source: Holm (1979), A simple sequentially rejective multiple test procedure.
    """
    order = sorted((p, place) for place, p in enumerate(ps) if p is not None)
    corrected: list[float | None] = [None] * len(ps)
    largest = 0.0
    for rank, (p, place) in enumerate(order):
        largest = max(largest, min(1.0, p * (len(order) - rank)))
        corrected[place] = largest
    return corrected


def _columns(groups: Iterable[Group]) -> dict[str, None]:
    return dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)


def _hint(groups: Sequence[Group], metric: str) -> str:
    columns = list(_columns(groups))
    return "" if metric in columns else nearest(metric, columns)


def _common_round(trials: Sequence[Mapping[int, float]]) -> tuple[int | None, list[str]]:
    """Return the last round that was measured in all trials, and notes on it."""
    common = set(trials[0]).intersection(*trials[1:])
    if not common:
        return None, ["No round was measured in all runs: the newest value of each run is compared."]
    after = max(common)
    longer = sum(max(rounds) > after for rounds in trials)
    note = f"{longer} of {len(trials)} runs went on after round {after:,}: that is the last one measured in all."
    return after, [note] if longer else []


def _last_until(rounds: Mapping[int, float], after: int | None, last: int) -> dict[int, float]:
    """Return the last so many of the rounds until `after`, or of all; fewer if there are not so many."""
    until = sorted(number for number in rounds if after is None or number <= after)
    return {number: rounds[number] for number in until[-last:]}


def _different_windows(
    windows: Mapping[str, Mapping[tuple[int, ...], Mapping[int, float]]], metric: str, last: int
) -> list[str]:
    """Return a note if the means are not over the same rounds.

    Raises:
        RunFolderError: a trial has fewer rounds than `last`.
    """
    sizes = {label: min(map(len, trials.values())) for label, trials in windows.items()}
    label = min(sizes, key=lambda each: sizes[each])
    if sizes[label] < last:
        raise RunFolderError(
            f"The number of last rounds must be at most {sizes[label]}, the rounds until the last common one in which "
            f"{label} has {metric!r}, but is {last}."
        )
    rounds = {tuple(window) for trials in windows.values() for window in trials.values()}
    is_said = last == 1 or len(rounds) == 1
    return [] if is_said else [f"The last {last} rounds with the figure are not the same rounds in all runs."]


def _differences(reference: Mapping[tuple[int, ...], float], trials: Mapping[tuple[int, ...], float]) -> list[float]:
    """Return the differences of the pairs; 0 where rounding makes all of it, as of equal means of several rounds."""
    pairs = [(value, reference[seeds]) for seeds, value in trials.items() if seeds in reference]
    return [0.0 if abs(a - b) <= EQUAL * max(abs(a), abs(b)) else a - b for a, b in pairs]


def _difference(found: Sequence[float], p: float | None) -> Difference:
    return Difference(statistics.fmean(found), _deviation(found), len(found), p)


def _method(label: str, trials: Mapping[tuple[int, ...], float], difference: Difference | None) -> Method:
    values = list(trials.values())
    return Method(label, len(values), statistics.fmean(values), _deviation(values), difference)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _cautions(methods: Sequence[Method], test: Test) -> list[str]:
    notes = []
    for method in methods[1:]:
        if method.difference is None:
            notes.append(f"{method.label} shares no seeds with {methods[0].label}: nothing can be paired.")
    pairs = [method.difference.pairs for method in methods[1:] if method.difference is not None]
    if pairs and min(pairs) < 2:
        notes.append("One pair cannot show the effect of chance: run more trials (--set trials=5).")
    elif pairs and min(pairs) < FEW_PAIRS:
        weak = (
            f"Wilcoxon's p cannot be below {2 / 2 ** min(pairs):.2g}"
            if test == "wilcoxon"
            else "the t test assumes normal differences, which a few pairs cannot show"
        )
        notes.append(f"With {min(pairs)} pairs p-values mean little: {weak}.")
    return notes
