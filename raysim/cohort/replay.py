"""Replays cohorts from lists of clients, for all rounds or for some, to repeat a run of another program."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from raysim.cohort.adafl import AdaFl
from raysim.cohort.availability import Availability
from raysim.cohort.bernoulli import Bernoulli
from raysim.cohort.md import Md
from raysim.cohort.sampler import CohortAt, Positions, Sampler, State
from raysim.cohort.uniform import UniformSampler
from raysim.config.section import Section
from raysim.config.values import ClientId, Whole
from raysim.errors import ExperimentError

OtherSampler = Annotated[UniformSampler | Md | AdaFl | Bernoulli | Availability, Field(discriminator="name")]
"""The samplers for the rounds without a list."""

Cohort = Annotated[tuple[ClientId, ...], Field(min_length=1, max_length=100_000)]


class Replay(Section):
    """Cohorts from a list, by `cohorts` or `rounds`."""

    name: Literal["replay"] = "replay"
    cohorts: Annotated[tuple[Cohort, ...], Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="Client ids of every round, a list each; their lengths are the cohort sizes."
    )
    rounds: Annotated[dict[Whole, Cohort], Field(min_length=1, max_length=100_000)] | None = Field(
        None, description="Client ids of some rounds, by the round's index."
    )
    over: OtherSampler | None = Field(None, description="Sampler of all other rounds. Absent: uniform.")

    @model_validator(mode="after")
    def _one_way_of_saying_it(self) -> Replay:
        if (self.cohorts is None) == (self.rounds is None):
            got = "neither" if self.rounds is None else "both"
            raise ValueError(
                f"either cohorts, for every round, or rounds, for some of them, must be given, but got {got}"
            )
        if self.over is not None and self.rounds is None:
            raise ValueError(
                f"over, the sampler of the rounds that are not replayed, goes with rounds, but got over.name = "
                f"{self.over.name!r} with cohorts: remove over"
            )
        return self


def all_drawn(section: Replay, rounds: int) -> frozenset[ClientId] | None:
    """Return the ids of all clients that so many rounds draw; None if another sampler draws in one of them.

    >>> sorted(all_drawn(Replay(rounds={0: ("4", "0"), 1: ("3",), 7: ("2",)}), 2) or ())
    ['0', '3', '4']
    >>> all_drawn(Replay(rounds={0: ("4", "0")}), 2)
    """
    given = _given(section)
    if any(t not in given for t in range(rounds)):
        return None
    return frozenset(client for t in range(rounds) for client in given[t])


def make(section: Replay, other: Sampler | None) -> Sampler:
    """Cohorts from lists; rounds without a list use another sampler.

    >>> from raysim.cohort.sampler import drawn_in
    >>> drawn_in(2, make(Replay(cohorts=(("4", "0"), ("3",))), None), [1] * 5, size=0)
    [[4, 0], [3]]
    """
    given = _given(section)

    def init(at: CohortAt) -> State:
        """Look up every id, before the first round.

        Raises:
            ExperimentError: a client is named twice in a round.
            DataError: an id does not exist, from `position_of`.
        """
        key = "cohorts" if section.cohorts is not None else "rounds"
        for index, cohort in given.items():
            if len(set(cohort)) < len(cohort):
                twice = sorted({c for c in cohort if cohort.count(c) > 1})
                raise ExperimentError(
                    f"A client may be in a cohort once, but cohort.sampler.{key}[{index}] repeats {twice}."
                )
            _positions(cohort, at)
        return other.init(at) if other else {}

    def sample(state: State, at: CohortAt) -> Positions:
        if at.round in given:
            return _positions(given[at.round], at)
        assert other is not None
        return other.sample(state, at)

    def expected(round_index: int, population: int) -> float | None:
        if round_index in given:
            return len(given[round_index])
        return other.expected(round_index, population) if other else None

    if other is not None:
        # Clients of a list are not drawn, so no accountant of privacy knows these cohorts.
        return other._replace(init=init, sample=sample, name=section.name, expected=expected, drawn=None)
    sized_by = "the lengths of its lists set it"
    return Sampler(init, sample, name=section.name, sized_by=sized_by, expected=expected, rounds=len(given))


def _given(section: Replay) -> dict[int, Cohort]:
    return dict(enumerate(section.cohorts)) if section.cohorts is not None else section.rounds or {}


def _positions(cohort: Cohort, at: CohortAt) -> Positions:
    return np.array([at.clients.position_of(client_id) for client_id in cohort], dtype=np.int64)
