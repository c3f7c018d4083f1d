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

_EVALUATION = re.compile(r"(?P<of>eval(?:_[a-z]+)?)/(?P<split>.+?)/(?:(?P<part>[a-z]+)/)?(?P<metric>accuracy|loss)")
_WHAT = MappingProxyType(
    {
        ("eval", None): "",
        ("eval_average", None): " of the clients' mean model",
        ("eval_tuned", None): " after fine-tuning",
        ("eval_tuned", "before"): " before fine-tuning",
        ("eval_personal", None): " of clients' own models",
        ("eval_personal", "global"): " of the model of all, on clients with own models",
        ("eval_personal", "seen"): " of own models of clients that took part",
        ("eval_personal", "new"): " of own models of clients that did not take part",
    }
)
"""Columns by their first part, and the one behind the split: the model that was scored, for people."""
_AXES = (curves.ROUNDS, curves.EXAMPLES, curves.BYTES, curves.SIMULATED_TIME, curves.WALL_TIME, curves.EPSILON)


def make(groups: Sequence[Group], monotone: bool = False) -> Iterator[Figure]:
    """Yield the curves of evaluations, or of local training if nothing was evaluated."""
    names = dict.fromkeys(name for group in groups for run in group.runs for name in run.rounds.column_names)
    found = [match for name in names if (match := _EVALUATION.fullmatch(name)) and _model(match) in _WHAT]
    evaluations = sorted(found, key=_order)
    for match in evaluations:
        what = f"{match['split'].capitalize()} {match['metric']}{_WHAT[_model(match)]}"
        # Only the broadcast model's score is shown against all axes.
        for against in _AXES if match["of"] == "eval" else _AXES[:1]:
            yield from _figure(groups, match[0], what, against, monotone)
    for column in ("accuracy", "loss") if not evaluations else ():
        for against in _AXES:
            yield from _figure(groups, column, f"Training {column} (nothing was evaluated)", against, monotone)


def _model(column: re.Match[str]) -> tuple[str, str | None]:
    return column["of"], column["part"]


def _order(column: re.Match[str]) -> tuple[int, bool, str, str]:
    return list(_WHAT).index(_model(column)), column["split"] != "test", column["split"], column["metric"]


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
