"""Decides when a run stops, by `[stop]`, the budget of privacy and rows: a pure function, so resumed runs stop alike.

A run's rows are taken in order of its rounds: `after` takes one, `after_all` several. Wall seconds are recorded in the
rows too, so they count over a resume; only they differ between two runs of one experiment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import NamedTuple

from raysim.experiment.experiment import Experiment
from raysim.experiment.row import Row, lost_every_update
from raysim.experiment.stop import Divergence, Patience, StopBudget, StopSection, StopTarget, without_evaluation

_COSTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "client_updates": ("clients", "rejected"),
        "simulated_s": ("simulated_time_s",),
        "bytes": ("bytes_down", "bytes_up"),
        "wall_s": ("wall_time_s",),
    }
)
"""Budgets and the columns that use them up; a round uses up one of `rounds`."""

_EPSILONS = ("epsilon", "epsilon_next")
"""The columns of what the rounds so far have spent, and of what one more would make it."""

_UNITS = MappingProxyType({"rounds": "rounds", "client_updates": "client updates", "bytes": "bytes"})


class StopReason(NamedTuple):
    """Why a run has stopped before its last round.

    condition: the key below `[stop]`: "target", "patience", "divergence", "budget.rounds", "budget.bytes" and so on; or
    "privacy", for that of `server.privacy.epsilon`.
    rounds: finished rounds. text: a sentence for people, without its full stop.
    """

    condition: str
    rounds: int
    text: str


@dataclass(frozen=True)
class Seen:
    """What the conditions need of the rows so far.

    rounds: how many. spent: of each budget. recent: the target's metric, its newest records. best: patience's metric,
    its best record; None before the first. best_round: after how many rounds. since_best: records after it. stopped:
    the first condition that held.
    """

    rounds: int = 0
    spent: Mapping[str, float] = field(default_factory=dict)
    recent: tuple[float, ...] = ()
    best: float | None = None
    best_round: int = 0
    since_best: int = 0
    stopped: StopReason | None = None


NOTHING = Seen()
"""Before the first round."""


def columns(section: StopSection | None) -> list[str]:
    """Return the columns of the records that the conditions look at."""
    if section is None:
        return ["round", *_EPSILONS]
    costs = [column for of_one in _COSTS.values() for column in of_one]
    return list(dict.fromkeys(["round", "loss", *_EPSILONS, *costs, *section.metrics.values()]))


def may_stop(experiment: Experiment) -> bool:
    """Whether there is a condition under which the run ends before its last round."""
    return experiment.stop is not None or epsilon_budget(experiment) is not None


def epsilon_budget(experiment: Experiment) -> float | None:
    """Return the epsilon that the run must not exceed; None: any."""
    privacy = experiment.server.privacy
    return None if privacy is None else privacy.epsilon


def after_all(experiment: Experiment, rows: Iterable[Row], seen: Seen = NOTHING) -> Seen:
    """Return what was seen after these rows, which follow those of `seen`."""
    if may_stop(experiment):
        for row in rows:
            seen = after(experiment, seen, row)
    return seen


def after(experiment: Experiment, seen: Seen, row: Row) -> Seen:
    """Return what was seen after one more row; once a condition holds, nothing changes.

    An evaluation that was due only because the run ended there does not count for one that goes on: a run that was
    lengthened stops where one stops that was as long from the beginning.
    """
    if not may_stop(experiment) or seen.stopped is not None:
        return seen
    rounds = seen.rounds + 1
    if rounds % experiment.evaluation.every and rounds != experiment.rounds:
        trained = _seen(experiment, seen, without_evaluation(row))
        if trained.stopped is None:
            return trained
    return _seen(experiment, seen, row)


def _seen(experiment: Experiment, seen: Seen, row: Row) -> Seen:
    seen, held = replace(seen, rounds=seen.rounds + 1), dict[str, str | None]()
    if (section := experiment.stop) is not None:
        seen, held = _of_section(section, seen, row)
    held["privacy"] = _privacy(epsilon_budget(experiment), row)
    if seen.rounds >= experiment.rounds:
        # The last round ends the run, whatever else would.
        return seen
    reason = next((StopReason(name, seen.rounds, text) for name, text in held.items() if text is not None), None)
    return replace(seen, stopped=reason)


def _of_section(section: StopSection, seen: Seen, row: Row) -> tuple[Seen, dict[str, str | None]]:
    seen, target = _target(section.target, seen, row)
    seen, patience = _patience(section.patience, seen, row)
    seen, budget = _budget(section.budget, seen, row)
    return seen, {
        "divergence": _divergence(section.divergence, row),
        "target": target,
        **budget,
        "patience": patience,
    }


def is_over(experiment: Experiment, rounds: int, stopped: StopReason | None) -> bool:
    """Whether a run with so many finished rounds has ended: with its last round, or because it stopped before."""
    return rounds >= experiment.rounds or stopped is not None


def text(experiment: Experiment, reason: StopReason) -> str:
    """Return the reason for people: after which round, and by which key."""
    key = "server.privacy.epsilon" if reason.condition == "privacy" else f"stop.{reason.condition}"
    return f"after round {reason.rounds:,} of {experiment.rounds:,}: {reason.text} ({key})"


def used_by(row: Row) -> dict[str, float]:
    """Return what a round uses up of every budget.

    >>> used = used_by({"clients": 9, "rejected": 1, "bytes_up": 5})
    >>> used["rounds"], used["client_updates"], used["bytes"]
    (1, 10, 5)
    """
    return {"rounds": 1, **{name: sum(row.get(column) or 0 for column in of_one) for name, of_one in _COSTS.items()}}


def unit(budget: str) -> str:
    """Return the unit of a budget, for people."""
    return _UNITS.get(budget, "seconds")


def _target(target: StopTarget | None, seen: Seen, row: Row) -> tuple[Seen, str | None]:
    if target is None or (value := row.get(target.metric)) is None:
        return seen, None
    recent = (*seen.recent, value)[-target.last :]
    seen, mean = replace(seen, recent=recent), _mean(recent)
    is_reached = mean >= target.value if target.is_maximised else mean <= target.value
    if len(recent) < target.last or not is_reached:
        return seen, None
    of = f"the mean of the last {target.last} records of {target.metric}" if target.last > 1 else target.metric
    return seen, f"{of} is {mean:.6g}, and the target {target.value:g}"


def _mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value; NaN of infinities with both signs."""
    try:
        return math.fsum(values) / len(values)
    except (OverflowError, ValueError):
        return sum(value / len(values) for value in values)


def _patience(patience: Patience | None, seen: Seen, row: Row) -> tuple[Seen, str | None]:
    if patience is None or (value := row.get(patience.metric)) is None:
        return seen, None
    gain = math.inf if seen.best is None else (value - seen.best if patience.is_maximised else seen.best - value)
    # No number is not better than any.
    if gain > patience.min_change and not math.isnan(value):
        return replace(seen, best=value, best_round=seen.rounds, since_best=0), None
    seen = replace(seen, since_best=seen.since_best + 1)
    if seen.since_best < patience.evaluations:
        return seen, None
    best = "no number" if seen.best is None else f"{seen.best:.6g} after round {seen.best_round:,}"
    return seen, f"{patience.metric} was best with {best}, and {patience.evaluations:,} records since were no better"


def _budget(budget: StopBudget | None, seen: Seen, row: Row) -> tuple[Seen, dict[str, str]]:
    if budget is None:
        return seen, {}
    used = used_by(row)
    spent = {name: seen.spent.get(name, 0) + used[name] for name in budget.amounts}
    return replace(seen, spent=spent), {
        f"budget.{name}": f"the budget of {amount:,.12g} {unit(name)} is used up ({spent[name]:,.12g})"
        for name, amount in budget.amounts.items()
        if spent[name] >= amount
    }


def _privacy(budget: float | None, row: Row) -> str | None:
    if budget is None or (after := row.get(_EPSILONS[1])) is None or after <= budget:
        return None
    return f"epsilon is {row[_EPSILONS[0]]:.6g}, and one more round would make it {after:.6g}, above {budget:g}"


def _divergence(divergence: Divergence | None, row: Row) -> str | None:
    if divergence is None:
        return None
    if lost_every_update(row):
        return "every update was rejected, because none was finite"
    value = row.get(divergence.metric)
    if value is None:
        return None
    if not math.isfinite(value):
        return f"{divergence.metric} is {value}"
    if divergence.above is not None and value > divergence.above:
        return f"{divergence.metric} is {value:.6g}, above {divergence.above:g}"
    return None
