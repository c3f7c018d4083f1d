"""Draws accuracy and loss of every evaluation against rounds, examples, bytes, time and epsilon.

Made monotone, a trial's curve is the best value so far, with straight lines between evaluations. Source: McMahan et al.
(2017), section 3: figure 5, and figures 2 and 7 by the text on the tables' targets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from types import MappingProxyType

from raysim.report.gallery import curves
from raysim.report.gallery.figure import Figure
from raysim.report.groups import Group

_EVALUATION = re.compile(r"(eval(?:_average|_tuned)?)/(.+)/(accuracy|loss)")
_WHAT = MappingProxyType(
    {"eval": "", "eval_average": " of the clients' mean model", "eval_tuned": " after fine-tuning"}
)
_AXES = (curves.ROUNDS, curves.EXAMPLES, curves.BYTES, curves.SIMULATED_TIME, curves.WALL_TIME, curves.EPSILON)


def make(groups: Sequence[Group], monotone: bool = False) -> Iterator[Figure]:
    """Yield the curves of evaluations, or of local training if nothing was evaluated."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    evaluations = [match for name in names if (match := _EVALUATION.fullmatch(name))]
    evaluations.sort(key=lambda match: (list(_WHAT).index(match[1]), match[2] != "test", match[2], match[3]))
    for match in evaluations:
        what = f"{match[2].capitalize()} {match[3]}{_WHAT[match[1]]}"
        # Only the broadcast model's score is shown against all axes.
        for against in _AXES if match[1] == "eval" else _AXES[:1]:
            yield from _figure(groups, match[0], what, against, monotone)
    for column in ("accuracy", "loss") if not evaluations else ():
        for against in _AXES:
            yield from _figure(groups, column, f"Training {column} (nothing was evaluated)", against, monotone)


def _figure(
    groups: Sequence[Group], column: str, what: str, against: curves.Against, monotone: bool
) -> Iterator[Figure]:
    found = curves.lines(groups, column, against, monotone)
    if found:
        name = f"{column}-by-{against.name}".replace("/", "-")
        title = f"{'Best ' + what.lower() + ' so far' if monotone else what} against {_plain(against)}"
        yield curves.figure(name, title, _caption(found, against), found, column, against)


def _plain(against: curves.Against) -> str:
    return "rounds" if against is curves.ROUNDS else against.label


def _caption(found: Sequence[curves.GroupCurve], against: curves.Against) -> str:
    trials = max(len(line.group.runs) for line in found)
    mean = (
        f"Mean of up to {trials} trials, with one standard deviation either way." if trials > 1 else "One trial each."
    )
    if against is curves.EXAMPLES:
        return f"{mean} Lines that lie together learn as much from an example, whatever their cohorts."
    if against is curves.BYTES:
        return f"{mean} What the simulated clients would receive and send."
    if against is curves.EPSILON:
        return f"{mean} What all rounds so far have told of a client; the scores themselves have no noise."
    if against is curves.SIMULATED_TIME:
        return f"{mean} As the simulated devices would have experienced it."
    if against is curves.WALL_TIME:
        return f"{mean} As it was measured on the machine of each run; time between sessions is not counted."
    return mean
