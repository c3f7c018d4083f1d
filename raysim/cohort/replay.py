"""Replay: the cohorts are given, client by client, so that a run elsewhere can be repeated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

import numpy as np
from pydantic import BeforeValidator, Field

from raysim.cohort.sampler import Positions, Sampler, State
from raysim.errors import ExperimentError
from raysim.section import Section

ClientId = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]
"""Client ids are strings; a file may write them as integers."""

Cohort = Annotated[tuple[ClientId, ...], Field(min_length=1)]


class Replay(Section):
    """`cohorts[t]` lists the client ids of round t; their lengths are the cohort sizes."""

    name: Literal["replay"] = "replay"
    cohorts: Annotated[tuple[Cohort, ...], Field(min_length=1)]


def make(section: Replay, rounds: int, position_of: Callable[[str], int]) -> Sampler:
    """Close the pair over the cohorts' positions; every id is looked up here, before the first round.

    Raises:
        ExperimentError: fewer cohorts than rounds, or a client named twice in a round.
        DataError: an id that does not exist, from `position_of`.
    """
    if len(section.cohorts) < rounds:
        raise ExperimentError(
            f"cohort.sampler.cohorts must hold one list of client ids per round, but holds {len(section.cohorts)} "
            f"for rounds = {rounds}."
        )
    positions = []
    for index, cohort in enumerate(section.cohorts):
        if len(set(cohort)) < len(cohort):
            twice = sorted({c for c in cohort if cohort.count(c) > 1})
            raise ExperimentError(
                f"A client may be in a cohort once, but cohort.sampler.cohorts[{index}] repeats {twice}."
            )
        positions.append(np.array([position_of(client_id) for client_id in cohort], dtype=np.int64))

    def init() -> State:
        return {}

    def sample(state: State, round_index: int) -> Positions:
        return positions[round_index]

    return Sampler(init, sample)
