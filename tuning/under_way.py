"""Defines a trial under way: its runs, one for each seed, and their reports so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysim import Experiment, Report
from tuning import objective as objectives
from tuning import standard_error
from tuning.ledger import Held
from tuning.objective import Objective, Row


@dataclass
class TrialUnderWay:
    """The state of a trial while it runs.

    runs: its experiments, one per seed, and their folders.
    rows: of each run. finished: the finished runs. numbers: of the runs under way, run number -> seed's place.
    reported: steps that `steps` returned. known_steps: steps that the storage had before.
    """

    held: Held
    runs: Sequence[tuple[Experiment, Path]]
    rows: list[list[Row]] = field(default_factory=list)
    finished: set[int] = field(default_factory=set)
    numbers: dict[int, int] = field(default_factory=dict)
    reported: set[int] = field(default_factory=set)
    known_steps: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Begin with empty rows."""
        self.rows = [[] for _ in self.runs]
        self.known_steps = frozenset(self.held.reported)

    @property
    def total(self) -> int:
        """Rounds of each run."""
        return self.runs[0][0].rounds

    @property
    def is_complete(self) -> bool:
        """True if every seed is finished."""
        return len(self.finished) == len(self.runs)

    @property
    def has_all_rounds(self) -> bool:
        """True if the last round of every seed is known, which may have stopped before."""
        return all(len(rows) == self.total or place in self.finished for place, rows in enumerate(self.rows))

    def add(self, report: Report) -> int:
        """Add a report; return the place of its seed."""
        place = self.numbers[report.run]
        self.rows[place].extend(report.rows)
        if report.finished:
            self.finished.add(place)
        if report.finished or report.error is not None:
            del self.numbers[report.run]
        return place

    def steps(self, objective: Objective, by_seed: bool) -> dict[int, float]:
        """Return the new steps for a pruner: finished rounds -> mean figure; or seed's place -> value.

        Call it only if `lacks` returns None.
        """
        if by_seed:
            found = {place: self._value(objective, place) for place in sorted(self.finished)}
        else:
            found = objectives.reports(objective, self.rows, self.total)
        fresh = {step: value for step, value in found.items() if step not in self.reported}
        self.reported |= fresh.keys()
        return fresh

    def lacks(self, objective: Objective) -> str | None:
        """Return why a finished seed has no value, for example if no client trained; None: all have a value."""
        for place in sorted(self.finished):
            total = self._rounds(objective, place)
            if objective.value(self.rows[place], total) is None:
                chosen = objective.rounds(total)
                return (
                    f"with seed {self.runs[place][0].seed} there is no {objective.label} in rounds {chosen.start} to "
                    f"{chosen.stop - 1}: let more rounds count (tuning.objective.last or window)"
                )
        return None

    def values(self, objective: Objective) -> list[float]:
        """Return the objective of every seed, in order, when all are finished and `lacks` returns None."""
        return [self._value(objective, place) for place in range(len(self.runs))]

    def missed(self, objective: Objective) -> str | None:
        """Return which seeds did not reach the objective's target, and how near they came; None if all have."""
        found = [
            f"{objective.best(self.rows[place])} at best with seed {self.runs[place][0].seed}"
            for place, value in enumerate(self.values(objective))
            if objective.missed(value, self.total)
        ]
        return f"not reached: {', '.join(found)}" if found else None

    def facts(self, objective: Objective) -> dict[str, Any]:
        """Return the facts to keep with the trial: folders, rounds and last figures of its runs."""
        known: dict[str, Any] = {
            "seeds": [experiment.seed for experiment, _ in self.runs],
            "rounds": [len(rows) for rows in self.rows],
            "figures": _means([rows[-1] for rows in self.rows if rows]),
        }
        if self.is_complete and self.lacks(objective) is None:
            values = self.values(objective)
            reached = [value for value in values if not objective.missed(value, self.total)]
            known["values"] = [value if value in reached else None for value in values]
            known["standard_error/seeds"] = standard_error.over_seeds(values) if reached == values else None
            known["standard_error/clients"] = self._over_clients(objective)
        return known

    def _value(self, objective: Objective, place: int) -> float:
        value = objective.value(self.rows[place], self._rounds(objective, place))
        assert value is not None
        return value

    def _rounds(self, objective: Objective, place: int) -> int:
        """Return the rounds of which a seed's last ones count; one that misses a target is measured by all."""
        return self.total if objective.has_target else len(self.rows[place])

    def _over_clients(self, objective: Objective) -> float | None:
        """Return the root mean square over the seeds' last evaluations, whose clients may be the same."""
        if objective.name not in ("accuracy", "loss"):
            return None
        errors = [standard_error.of_run(path, objective.name) for _, path in self.runs]
        known = [error for error in errors if error is not None]
        return (sum(error**2 for error in known) / len(known)) ** 0.5 if len(known) == len(errors) else None


def _means(rows: Sequence[Row]) -> Mapping[str, float]:
    """Return mean loss, accuracy and evaluations of the last rows, if all have them."""
    names = [name for name in (rows[0] if rows else ()) if name in ("loss", "accuracy") or name.startswith("eval/")]
    return {
        name: sum(row[name] for row in rows) / len(rows)
        for name in names
        if all(row.get(name) is not None for row in rows)
    }
