"""Defines what a trial has recorded so far: the rows of its runs, one run for each seed, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from raysim.experiment.row import Row
from tuning import budget, standard_error
from tuning import objective as objectives
from tuning.objective import Objective

RUNS = "runs"
"""Fact of a finished trial: the fingerprints of its runs, by seed."""

COHORT = "cohort"
"""Fact of a trial that is run with several cohorts: the size of the last."""


@dataclass
class TrialRows:
    """The rows of a trial's runs.

    seeds: of the runs, in order. total: rounds of each run. rows: of each run. finished: the places of the finished
    runs. before: the rows of runs with smaller cohorts, which count as spent only.
    """

    seeds: Sequence[int]
    total: int
    rows: list[list[Row]] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    before: list[list[Row]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin with empty rows, unless some are given."""
        self.rows = self.rows or [[] for _ in self.seeds]

    def add(self, place: int, rows: Sequence[Row], finished: bool) -> None:
        """Add rows of the run with this place; `finished`: they are its last."""
        self.rows[place].extend(rows)
        if finished:
            self.finished.add(place)

    def of_next_stage(self) -> TrialRows:
        """Return the rows of the trial's runs with the next cohort, none yet; the present ones count as spent."""
        return TrialRows(self.seeds, self.total, before=[*self.before, *self.rows])

    @property
    def is_complete(self) -> bool:
        """True if every seed is finished."""
        return len(self.finished) == len(self.seeds)

    @property
    def has_all_rounds(self) -> bool:
        """True if the last round of every seed is known, which may have stopped before."""
        return all(len(rows) == self.total or place in self.finished for place, rows in enumerate(self.rows))

    def steps(self, objective: Objective, by_seed: bool) -> dict[int, float]:
        """Return the steps for a pruner: finished rounds -> mean figure; or seed's place -> value.

        Call it only if `lacks` returns None.
        """
        if by_seed:
            return {place: self._value(objective, place) for place in sorted(self.finished)}
        return objectives.reports(objective, self.rows, self.total)

    def lacks(self, objective: Objective) -> str | None:
        """Return why a finished seed has no finite value, for example if no client trained; None: all have one."""
        for place in sorted(self.finished):
            total = self._rounds(objective, place)
            value, chosen = objective.value(self.rows[place], total), objective.rounds(total)
            if value is None:
                return (
                    f"with seed {self.seeds[place]} there is no {objective.label} in rounds {chosen.start} to "
                    f"{chosen.stop - 1}: let more rounds count (tuning.objective.last or window)"
                )
            if not objective.has_target and not math.isfinite(value):
                return (
                    f"with seed {self.seeds[place]} the {objective.label} in rounds {chosen.start} to "
                    f"{chosen.stop - 1} is {value}, and trials are compared by finite values"
                )
        return None

    def values(self, objective: Objective) -> list[float]:
        """Return the objective of every seed, in order, when all are finished and `lacks` returns None."""
        return [self._value(objective, place) for place in range(len(self.seeds))]

    def value(self, objective: Objective) -> float:
        """Return the trial's value when all seeds are finished and `lacks` returns None."""
        return objective.combined(self.values(objective), self.total)

    def missed(self, objective: Objective) -> str | None:
        """Return which seeds did not reach the objective's target, and how near they came; None if all have."""
        if (aim := objective.aim) is None:
            return None
        found = [
            f"{aim.best(self.rows[place])} at best with seed {self.seeds[place]}"
            for place, value in enumerate(self.values(objective))
            if objective.missed(value, self.total)
        ]
        return f"not reached: {', '.join(found)}" if found else None

    def facts(self, objective: Objective, over_clients: float | None = None) -> dict[str, Any]:
        """Return the facts to keep with the trial: rounds, values and last figures of its runs.

        Args:
            over_clients: the standard error over clients of its value.
        """
        known: dict[str, Any] = {
            "seeds": list(self.seeds),
            "rounds": [len(rows) for rows in self.rows],
            "spent": budget.cost_of_trial([*self.before, *self.rows]),
            "figures": _means([rows[-1] for rows in self.rows if rows]),
        }
        if self.is_complete and self.lacks(objective) is None:
            values = self.values(objective)
            reached = [value for value in values if not objective.missed(value, self.total)]
            known["values"] = [value if value in reached else None for value in values]
            known["standard_error/seeds"] = standard_error.over_seeds(values) if reached == values else None
            known["standard_error/clients"] = over_clients
        return known

    def _value(self, objective: Objective, place: int) -> float:
        value = objective.value(self.rows[place], self._rounds(objective, place))
        assert value is not None
        return value

    def _rounds(self, objective: Objective, place: int) -> int:
        """Return the rounds of which a seed's last ones count; one that misses a target is measured by all."""
        return self.total if objective.has_target else len(self.rows[place])


def _means(rows: Sequence[Row]) -> Mapping[str, float]:
    """Return mean loss, accuracy and evaluations of the last rows, if all have them."""
    names = [name for name in (rows[0] if rows else ()) if name in ("loss", "accuracy") or name.startswith("eval/")]
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in names
        if all(row.get(name) is not None for row in rows)
    }
