"""Defines the standing of a run: its newest figures, and its pace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from raysim.config.counted import counted
from raysim.report import number_formats
from raysim.report.column_names import headlines

WINDOW = 50
"""Number of last rounds that give the pace: it follows a change, and covers rounds with and without evaluation."""

APART_S = 0.2
"""Rounds that finish closer together count as one of these: else a pause would be the pace of a run of fast rounds."""


@dataclass(frozen=True)
class Finish:
    """The time when rounds finished (seconds of a monotonic clock), their trained clients, and their number."""

    at_s: float
    clients: int
    rounds: int = 1


@dataclass(frozen=True)
class Standing:
    """The facts known after a row. `after` returns a new standing.

    total: rounds when the run is complete. done: finished rounds, those before a resume included.
    finishes: the start of this session, then its newest rounds, at most WINDOW of them, or of groups of fast ones.
    loss, accuracy: of the newest round's training; None where undefined.
    evaluations: the newest headline value of every evaluated split, by column.
    rejected, retries: summed over this session.
    """

    total: int
    finishes: tuple[Finish, ...]
    done: int = 0
    loss: float | None = None
    accuracy: float | None = None
    evaluations: Mapping[str, float] = field(default_factory=dict)
    rejected: int = 0
    retries: int = 0

    @classmethod
    def at_start(cls, total: int, now_s: float) -> Standing:
        """Return the standing at the start of a session."""
        return cls(total, (Finish(now_s, 0),))

    def after(self, row: Mapping[str, Any], now_s: float) -> Standing:
        """Return the standing after a row, the record of one finished round."""
        rejected = int(row.get("rejected") or 0)
        finishes = self._with(Finish(now_s, int(row.get("clients") or 0) + rejected), row.get("wall_time_s") or 0.0)
        newest = {name: row[name] for name in headlines(row).values() if row[name] is not None}
        return replace(
            self,
            done=int(row["round"]) + 1,
            finishes=finishes,
            loss=row.get("loss"),
            accuracy=row.get("accuracy"),
            evaluations={**self.evaluations, **newest},
            rejected=self.rejected + rejected,
            retries=self.retries + int(row.get("retries") or 0),
        )

    def _with(self, finish: Finish, took_s: float) -> tuple[Finish, ...]:
        """Return the finishes with that of another round, which took so many seconds."""
        *before, last = self.finishes
        if not before:
            # It began before the measurement did, where workers joined in its course or the news of both came together.
            return replace(last, at_s=min(last.at_s, finish.at_s - took_s)), finish
        if finish.at_s - before[-1].at_s < APART_S:
            return *before, Finish(finish.at_s, last.clients + finish.clients, last.rounds + finish.rounds)
        return (*before, last, finish)[-WINDOW - 1 :]

    def unmeasured(self, now_s: float) -> Standing:
        """Return the same standing, with a pace measured from now on."""
        return replace(self, finishes=(Finish(now_s, 0),))

    @property
    def round_s(self) -> float | None:
        """Seconds per round; None before the first."""
        return self._span_s / sum(finish.rounds for finish in self.finishes[1:]) if len(self.finishes) > 1 else None

    @property
    def clients_per_s(self) -> float | None:
        """Clients trained per second, rejected ones included; None before the first round."""
        if len(self.finishes) < 2 or self._span_s <= 0:
            return None
        return sum(finish.clients for finish in self.finishes[1:]) / self._span_s

    def left_s(self, now_s: float) -> float | None:
        """Return the seconds until the last round at this pace; they also fall while a round is under way."""
        if self.round_s is None:
            return None
        return max(0.0, (self.total - self.done) * self.round_s - (now_s - self.finishes[-1].at_s))

    @property
    def _span_s(self) -> float:
        return self.finishes[-1].at_s - self.finishes[0].at_s

    def quality(self) -> list[str]:
        """Return the newest figures of the model, as text."""
        parts = (
            [f"loss {number_formats.loss(self.loss)}"]
            if self.loss is not None
            else ["no update accepted"] * bool(self.done)
        )
        if self.accuracy is not None:
            parts.append(f"accuracy {number_formats.share(self.accuracy)}")
        for split, name in headlines(self.evaluations).items():
            value = self.evaluations[name]
            is_share = name.endswith("/accuracy")
            parts.append(
                f"{split} {number_formats.share(value)}" if is_share else f"{split} loss {number_formats.loss(value)}"
            )
        return parts

    def pace(self) -> list[str]:
        """Return the pace and the remaining time, as of the newest round."""
        parts = [f"{number_formats.rate(self.clients_per_s)} clients/s"] if self.clients_per_s is not None else []
        left_s = self.left_s(self.finishes[-1].at_s)
        return parts + ([f"{number_formats.duration(left_s)} left"] if left_s else [])

    def trouble(self) -> list[str]:
        """Return rejected updates and retried work, if any."""
        parts = [counted(self.rejected, "update") + " rejected"] if self.rejected else []
        return parts + ([f"{self.retries:,} retried"] if self.retries else [])
