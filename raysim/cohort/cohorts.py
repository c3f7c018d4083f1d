"""Draws the cohorts of a run: a sampler over its clients, whose answers are checked where the sampler is not built in.

A sampler of a script or of a package gets copies of its state: `learn` may write to them and return them. `sample` may
not, because what it wrote would be lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.arrays import Float64s
from raysim.cohort.sampler import CohortAt, Participant, Positions, Sampler, State
from raysim.config.form import check_forms, has_values
from raysim.config.plain import shown
from raysim.config.user_call import watched_call
from raysim.errors import ExperimentError

_MOST_ROUNDS, _MOST_CLIENTS = 10_000, 2**20
"""Whose availability is looked at before a run; more clients are taken to be like them."""


class Cohorts:
    """A sampler over the clients of a run.

    Args:
        rule: the sampler.
        at: what of a round a cohort is drawn from.
        is_built_in: its answers are not checked.
    """

    def __init__(self, rule: Sampler, at: Callable[[int], CohortAt], is_built_in: bool) -> None:
        self.rule, self.is_built_in, self._at = rule, is_built_in, at

    def init(self) -> State:
        """Return the sampler's state before the first round."""
        if self.is_built_in:
            return self.rule.init(self._at(0))
        state = watched_call(f"{self._who()}.init", self.rule.init, self._at(0))
        if not isinstance(state, Mapping) or not all(
            isinstance(name, str) and isinstance(value, Tensor) and has_values(value) for name, value in state.items()
        ):
            raise ExperimentError(f"{self._who()}.init must return dense tensors by name, but returned {shown(state)}.")
        return {name: value.clone() for name, value in state.items()}

    def sample(self, state: State, t: int) -> Positions:
        """Return the cohort after t finished rounds."""
        at = self._at(t)
        if self.is_built_in:
            return self.rule.sample(state, at)
        copies = _copies(state)
        drawn = watched_call(f"{self._who()}, drawing the cohort of round {t},", self.rule.sample, copies, at)
        if changed := [name for name, value in state.items() if not _same(value, copies.get(name))]:
            raise ExperimentError(
                f"{self._who()} wrote to {', '.join(changed)} of its state while it drew the cohort of round {t}: only "
                f"`learn` changes the state."
            )
        positions = self._checked(drawn, at)
        if self.rule.asks is None:
            return self._sized(self._who(), positions, at)
        return self._sized(f"{self._who()}.sample", positions, at, ("`asks`", self.rule.asks))

    def choose(self, drawn: Positions, losses: Float64s, t: int) -> Positions:
        """Return the clients that train, of those drawn after t finished rounds, by their losses."""
        at = self._at(t)
        assert self.rule.choose is not None
        if self.is_built_in:
            return self.rule.choose(at, drawn, losses)
        what = f"{self._who()}, choosing the clients of round {t},"
        chosen = self._checked(watched_call(what, self.rule.choose, at, drawn.copy(), losses.copy()), at)
        if strangers := sorted(set(chosen.tolist()) - set(drawn.tolist())):
            raise ExperimentError(f"{what} must return clients that were drawn, but returned {strangers}.")
        return self._sized(f"{self._who()}.choose", chosen, at)

    def first(self) -> Positions:
        """Return a cohort like that of the first round; where losses choose it, the first that are drawn."""
        drawn = self.sample(self.init(), 0)
        return drawn if self.rule.choose is None else self.choose(drawn, np.zeros(len(drawn)), 0)

    def shortage(self, rounds: int) -> str | None:
        """Return in how many of the first rounds too few clients are available for a cohort; None if in none."""
        if self.rule.available is None or not rounds:
            return None
        first = self._at(0)
        looked = np.arange(min(rounds, _MOST_ROUNDS), dtype=np.int64)
        clients = np.arange(min(first.population, _MOST_CLIENTS), dtype=np.int64)
        found = self.rule.available(first.seed, clients, looked) * (first.population / len(clients))
        short = found < np.array([self._at(t).size for t in looked.tolist()])
        if not short.any():
            return None
        least = int(found.argmin())
        return (
            f"in {int(short.sum()):,} of the first {len(looked):,} rounds the {self.rule.name} sampler has fewer "
            f"clients than a cohort should have, {int(found[least]):,} of {first.population:,} in round {least:,}: "
            f"cohorts are smaller there, and a round without a client leaves the model as it is"
        )

    def learn(self, state: State, participants: Sequence[Participant], t: int) -> State:
        """Return the state after round t."""
        assert self.rule.learn is not None
        if self.is_built_in:
            return self.rule.learn(state, participants)
        what = f"{self._who()}, learning from round {t},"
        learned = watched_call(what, self.rule.learn, _copies(state), participants)
        check_forms(what, "state", learned, state, ExperimentError)
        return {name: value.clone() for name, value in learned.items()}

    def _who(self) -> str:
        return f"sampler= ({self.rule.name})"

    def _checked(self, drawn: Any, at: CohortAt) -> Positions:
        requirement = f"{self._who()} must return the positions of round {at.round}'s cohort, integers (M,)"
        try:
            positions = np.asarray(drawn)
        except Exception:
            raise ExperimentError(f"{requirement}, but returned {shown(drawn)}.") from None
        if positions.ndim != 1 or (positions.size and positions.dtype.kind not in "iu"):
            got = f"{positions.dtype} of shape {positions.shape}" if positions.dtype != object else shown(drawn)
            raise ExperimentError(f"{requirement}, but returned {got}.")
        if isinstance(drawn, np.ma.MaskedArray) and np.ma.is_masked(drawn):
            # np.asarray takes what lies under the mask: clients that the sampler left out would train.
            raise ExperimentError(f"{requirement}, but some that it returned are masked: use compressed().")
        # Compared before the cast, which makes large unsigned numbers negative.
        outside = positions[(positions < 0) | (positions >= at.population)]
        if outside.size:
            raise ExperimentError(f"{requirement}, from 0 to {at.population - 1}, but returned {outside[0]}.")
        if not self.rule.repeats:
            members, counts = np.unique(positions, return_counts=True)
            if twice := members[counts > 1].tolist():
                raise ExperimentError(
                    f"{requirement}, each once unless the raysim.Sampler has repeats = True, but returned {twice} "
                    f"several times."
                )
        return positions.astype(np.int64)

    def _sized(self, what: str, positions: Positions, at: CohortAt, asked: tuple[str, int] | None = None) -> Positions:
        """Return the positions, as many as are meant, unless the sampler says that cohorts vary.

        Args:
            what: the function that returned them.
            positions: what it returned.
            at: the round.
            asked: the name and number of those to draw where some of them are chosen; None: as many as the cohort has.
        """
        if self.rule.varies or self.rule.sized_by is not None:
            return positions
        expected = self.rule.expected(at.round, at.population)
        name, meant = asked or (("at.size", at.size) if expected is None else ("`expected`", int(expected)))
        if len(positions) != meant:
            raise ExperimentError(
                f"{what} must return {name} positions, {meant:,} in round {at.round}, but returned "
                f"{len(positions):,}. A sampler of cohorts that vary is made by make(section), as raysim.Sampler(..., "
                f"varies=True)."
            )
        return positions


def _copies(state: State) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in state.items()}


def _same(left: Tensor, right: Any) -> bool:
    return (
        isinstance(right, Tensor) and left.shape == right.shape and torch.equal(left.nan_to_num(), right.nan_to_num())
    )
