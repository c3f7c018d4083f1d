"""Reads the result of a study from its storage."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from optuna.trial import FrozenTrial

from raysim.config.ipython import as_printed
from raysim.run_folder.tables import column
from tuning.budget import bought
from tuning.conclude import results
from tuning.dimension import Listed
from tuning.kept_trial import DIVERGED, FAILED, FINISHED, MISSED
from tuning.objective import Objective
from tuning.regret import Regret
from tuning.space import Space
from tuning.trial_rows import COHORT
from tuning.writing import number, sentence, settings, with_error

RETRY = "Failed trials are kept: mend the cause, and run them again (--retry-failed, retry_failed=True)."

COST = "bytes"
"""What the objective is drawn against, unless a study has a second objective."""

ROUNDS = "rounds"


@dataclass(frozen=True)
class Configuration:
    """A finished trial.

    number: its place in the study. values: the experiment's, by dotted key. value: the objective, the mean over the
    seeds. by_seed: the objective of each seed. seeds_error, clients_error: standard errors over seeds, and over
    validation clients, if they are defined. test: column -> mean and standard error over the seeds, of the final runs.
    missed: that the target was not reached, for people; None if it was. `print` shows settings and objective.
    """

    number: int
    values: Mapping[str, Any]
    value: float
    by_seed: tuple[float | None, ...] = field(repr=False)
    seeds_error: float | None = field(repr=False)
    clients_error: float | None = field(repr=False)
    test: Mapping[str, Mapping[str, float | None]] = field(repr=False)
    missed: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        error = "" if self.error is None else f" +- {number(self.error)}"
        return f"{settings(self.values)}: {self.missed or f'{number(self.value)}{error}'} (trial {self.number})"

    @property
    def error(self) -> float | None:
        """The standard error to state: the larger of the two."""
        return max((e for e in (self.seeds_error, self.clients_error) if e is not None), default=None)


@dataclass(frozen=True)
class SmallerBudget:
    """What a study would have chosen with a part of its budget.

    unit, amount: of the part. number, values, value, missed: of the trial, as of a `Configuration`.
    """

    unit: str
    amount: float
    number: int
    values: Mapping[str, Any]
    value: float
    missed: str | None = None


@dataclass(frozen=True)
class TableBest:
    """The best configuration of a whole table, by all clients and without noise.

    values: by dotted key. value: of the objective. chosen: that of the study's best, likewise.
    """

    values: Mapping[str, Any]
    value: float
    chosen: float | None


@dataclass(frozen=True)
class Study:
    """The result of a study.

    name: of the study in its storage. objective: the optimised figure. best, second: the best two configurations.
    trials: a row for each trial. counts: outcome -> trials. edges: a sentence for each best value at the edge of its
    space. spent: what all trials have used up, by the units of a budget. path: the study's folder, with best.toml,
    trials.parquet and the pictures. regret: of choices by few validation clients, the last by as many as there are, if
    the objective is a sum over clients. smaller: what smaller budgets would have chosen. front: the
    numbers of the trials that no other one beats in the objective and in the second one. cost: the second objective,
    which is bytes if the study has none. table: of a study on a table. `print` and a notebook show the closing table of
    `raysim tune`, a notebook also the pictures.
    """

    name: str
    objective: Objective = field(repr=False)
    best: Configuration
    second: Configuration | None = field(repr=False)
    trials: pa.Table = field(repr=False)
    counts: Mapping[str, int] = field(repr=False)
    edges: tuple[str, ...] = field(repr=False)
    spent: Mapping[str, float] = field(repr=False)
    path: Path
    regret: tuple[Regret, ...] = field(default=(), repr=False)
    smaller: tuple[SmallerBudget, ...] = field(default=(), repr=False)
    front: tuple[int, ...] = field(default=(), repr=False)
    cost: str | None = field(default=None, repr=False)
    table: TableBest | None = field(default=None, repr=False)

    def described(self, one: Configuration) -> str:
        """Return the settings and the objective of a configuration, for people."""
        value = one.missed or with_error(self.objective, one.value, one.error)
        return f"{settings(one.values)}: {self.objective.label} {value} (trial {one.number})"

    def __str__(self) -> str:
        from raysim.report.closing import text
        from tuning.closing import lines

        return text(lines(self))

    _repr_pretty_ = as_printed

    def _repr_html_(self) -> str:
        from raysim.report import notebook
        from tuning.closing import lines

        return notebook.html_of_folder(lines(self), self.path)


class Searched(NamedTuple):
    """What a study searches. cost: the second objective. unit: what the budget counts."""

    name: str
    objective: Objective
    cost: str | None
    unit: str
    space: Space


def of_trials(searched: Searched, trials: Sequence[FrozenTrial], found: Sequence[Configuration], where: Path) -> Study:
    """Return the result of a study, without the regret of its choice; `found`: the finished trials, the best first."""
    name, objective, cost, unit, space = searched
    return Study(
        name=name,
        objective=objective,
        best=found[0],
        second=found[1] if len(found) > 1 else None,
        trials=table(trials, space),
        counts=counts(trials),
        edges=edges(found[0], space),
        spent=total_cost(trials),
        front=front(trials, objective, cost or COST),
        cost=cost,
        smaller=smaller(trials, space, objective, unit),
        path=where,
    )


def rank_trials(
    trials: Sequence[FrozenTrial], space: Space, objective: Objective, attributes: Mapping[str, Any] = {}
) -> list[Configuration]:
    """Return the finished trials, the best first, those that missed their target last, equal ones in order of number.

    Args:
        trials: of the storage. attributes: the study's, which hold the results of the final runs.
    """
    finished = [trial for trial in trials if trial.user_attrs.get("outcome") in (FINISHED, MISSED)]
    sign = -1 if objective.is_maximised else 1
    order = sorted(finished, key=lambda trial: (sign * _value(trial), trial.number))
    tested = results(attributes)
    return [
        Configuration(
            trial.number,
            space.values(trial.params),
            _value(trial),
            tuple(trial.user_attrs["facts"]["values"]),
            trial.user_attrs["facts"]["standard_error/seeds"],
            trial.user_attrs["facts"]["standard_error/clients"],
            tested.get(trial.number, {}),
            trial.user_attrs["facts"]["why"],
        )
        for trial in order
    ]


def table(trials: Sequence[FrozenTrial], space: Space) -> pa.Table:
    """Return a row for each trial, in order.

    Columns: trial, outcome, value (null unless finished), standard errors, the space's keys (as JSON if the values of a
    key are of several kinds), value/<i> of seed i, the number of rounds of its seeds (`cost_column`), the mean figures
    of their last rows, seconds, why it diverged or failed.
    """
    rows = [_row(trial, space) for trial in trials]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: [row.get(name) for row in rows] for name in names}
    return pa.table({name: (column if name in space.dimensions else pa.array)(of) for name, of in columns.items()})


def cost_column(unit: str, keys: Iterable[str]) -> str:
    """Return the column of what a trial has used up; `keys`: of the space, whose columns have the settings.

    >>> cost_column("rounds", ["client.optimizer.lr"]), cost_column("rounds", ["rounds"])
    ('rounds', 'spent/rounds')
    """
    return f"spent/{unit}" if unit in keys else unit


def counts(trials: Sequence[FrozenTrial]) -> dict[str, int]:
    """Return outcome -> number of trials, the most frequent first."""
    outcomes = [trial.user_attrs["outcome"] for trial in trials]
    return {
        outcome: outcomes.count(outcome) for outcome in sorted(set(outcomes), key=lambda o: (-outcomes.count(o), o))
    }


def edges(best: Configuration, space: Space) -> tuple[str, ...]:
    """Return a sentence for each key whose best value is the smallest or largest one tried."""
    sentences = []
    for key, dimension in space.dimensions.items():
        if isinstance(dimension, Listed):
            if not dimension.ordered or len(dimension.values) < 2:
                continue
            low, high = min(dimension.values), max(dimension.values)
        else:
            low, high = dimension.low, dimension.high
        if best.values[key] in (low, high):
            which, way = ("smallest", "down") if best.values[key] == low else ("largest", "up")
            sentences.append(f"{key} = {number(best.values[key])} is the {which} that was tried: extend it {way}")
    return tuple(sentences)


def incumbents(trials: Iterable[FrozenTrial], objective: Objective, unit: str) -> Iterator[tuple[float, FrozenTrial]]:
    """Yield each trial that is better than all before it, with what the study had spent of a budget at its end."""
    used, sign = 0.0, 1 if objective.is_maximised else -1
    best = -math.inf
    for trial in trials:
        used += trial.user_attrs["facts"].get("spent", {}).get(unit, 0.0)
        if trial.user_attrs["outcome"] in (FINISHED, MISSED) and sign * _value(trial) > best:
            best = sign * _value(trial)
            yield used, trial


def smaller(trials: Sequence[FrozenTrial], space: Space, objective: Objective, unit: str) -> tuple[SmallerBudget, ...]:
    """Return what a quarter and a half of the budget would have chosen, of the trials in their order."""
    total = total_cost(trials).get(unit, 0.0)
    found = []
    for share in (0.25, 0.5) if total else ():
        amount = bought(unit, share * total)
        chosen = [trial for used, trial in incumbents(trials, objective, unit) if used <= amount]
        if chosen:
            last = chosen[-1]
            why = last.user_attrs["facts"].get("why")
            found.append(SmallerBudget(unit, amount, last.number, space.values(last.params), _value(last), why))
    return tuple(found)


def front(trials: Sequence[FrozenTrial], objective: Objective, cost: str = COST) -> tuple[int, ...]:
    """Return the numbers of the finished trials that no other one beats in the objective and in what it has used."""
    sign = -1 if objective.is_maximised else 1
    finished = [trial for trial in trials if trial.user_attrs["outcome"] == FINISHED]
    points = {t.number: (sign * _value(t), t.user_attrs["facts"].get("spent", {}).get(cost, 0.0)) for t in finished}
    return tuple(
        number
        for number, (value, used) in points.items()
        if not any(v <= value and u <= used and (v, u) != (value, used) for v, u in points.values())
    )


def total_cost(trials: Sequence[FrozenTrial]) -> dict[str, float]:
    """Return what all trials have used up, without what costs nothing here."""
    total = Counter[str]()
    for trial in trials:
        total.update(trial.user_attrs["facts"].get("spent", {}))
    return {unit: amount for unit, amount in total.items() if amount}


def no_result(trials: Sequence[FrozenTrial], space: Space) -> str:
    """Return why a study has no finished trial, with advice."""
    found = counts(trials)
    failed = next((t for t in trials if t.user_attrs["outcome"] == FAILED), None)
    if failed is not None:
        return (
            f"No trial finished ({', '.join(f'{n} {outcome}' for outcome, n in found.items())}). Trial {failed.number} "
            f"failed with: {sentence(failed.user_attrs['facts']['why'])} {RETRY}"
        )
    diverged = next((t for t in trials if t.user_attrs["outcome"] == DIVERGED), None)
    if diverged is None:
        return "No trial finished: all were stopped early. Take another pruner, or none."
    why = diverged.user_attrs["facts"]["why"]
    rates = [key for key in space.dimensions if key.endswith("lr")]
    lower = f"smaller values of {' and '.join(rates)}" if rates else "smaller learning rates"
    return (
        f"All {len(trials)} trials diverged; in trial {diverged.number} {why}. Try {lower}, "
        f"clip gradients (client.max_grad_norm) or updates (server.clip), or normalise the inputs."
    )


def _value(trial: FrozenTrial) -> float:
    # With two objectives the other one is what the trial cost.
    value: float = trial.values[0]
    return value


def _row(trial: FrozenTrial, space: Space) -> dict[str, Any]:
    outcome, kept = trial.user_attrs["outcome"], trial.user_attrs["facts"]
    took = trial.duration
    return {
        "trial": trial.number,
        "outcome": outcome,
        "value": _value(trial) if outcome == FINISHED else None,
        "standard_error/seeds": kept.get("standard_error/seeds"),
        "standard_error/clients": kept.get("standard_error/clients"),
        **space.values(trial.params),
        **{f"value/{place}": value for place, value in enumerate(kept.get("values", ()))},
        **({COHORT: kept[COHORT]} if COHORT in kept else {}),
        cost_column(ROUNDS, space.dimensions): int(kept.get("spent", {}).get(ROUNDS, 0)),
        **{unit: amount for unit, amount in kept.get("spent", {}).items() if unit != ROUNDS},
        **kept.get("figures", {}),
        "seconds": None if took is None else took.total_seconds(),
        "why": kept["why"],
    }
