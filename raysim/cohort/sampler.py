"""Defines a sampler, which chooses the cohort of a round: a record of pure functions.

    state     = init(at)                    before the first round; tensors by name, which are checkpointed
    positions = sample(state, at)           the cohort of a round, `at` says which
    positions = choose(at, drawn, losses)   those of them that train, by their losses, where a sampler does so
    state     = learn(state, participants)  after the round, from the facts of its clients

Whoever runs a sampler asks its record, never its name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from raysim import seeds
from raysim.arrays import Float64s, Int64s
from raysim.config.values import Constant
from raysim.data.array_split import ArraySplit
from raysim.data.split import Split

State = Mapping[str, Tensor]
Positions = npt.NDArray[np.int64]


class Clients:
    """The clients that cohorts are drawn from. What takes a pass over all of them is taken when it is first asked for.

    Args:
        split: the training split.
    """

    def __init__(self, split: Split) -> None:
        self._split = split

    def __len__(self) -> int:
        return len(self._split)

    @cached_property
    def examples(self) -> Int64s:
        """Every client's number of examples, (N,); not to be written to."""
        sizes = np.array(self._split.sizes(), dtype=np.int64)
        sizes.flags.writeable = False
        return sizes

    @cached_property
    def ends(self) -> Int64s:
        """Where every client's examples end, were all of them one behind the other, (N,)."""
        return np.cumsum(self.examples)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Every client's id."""
        return tuple(self._split.id_of(position) for position in range(len(self)))

    def position_of(self, client_id: str) -> int:
        """Return the position of the client with this id."""
        return self._split.position_of(client_id)


@dataclass(frozen=True)
class CohortAt:
    """The round of a cohort.

    round: 0 for the first. size: clients to draw: `cohort.size`, as it grew, and with over-selection more. clients: of
    the training split, in the order of their positions. seed: addresses draws. constants: of the section.
    """

    round: int
    size: int
    clients: Clients
    seed: int
    constants: Mapping[str, Constant] = field(default_factory=dict)

    @property
    def population(self) -> int:
        """N, the number of training clients: positions are 0 to N - 1."""
        return len(self.clients)

    @property
    def examples(self) -> Int64s:
        """Every client's number of examples, int64 (N,); not to be written to."""
        return self.clients.examples

    @property
    def ids(self) -> tuple[str, ...]:
        """Every client's id, by position."""
        return self.clients.ids

    @cached_property
    def rng(self) -> np.random.Generator:
        """A generator addressed by run and round: its draws are the same wherever the round is drawn."""
        return seeds.generator(seeds.key(self.seed, "cohort/own", self.round))


class Participant(NamedTuple):
    """What the server knows of a client that took part in a round.

    position: in the training split. client: its id. examples: of its training split. loss: mean over the examples of
    all its local batches. norm: |y_i - x| of what it sent, before clipping. steps: local steps taken. distance:
    |x_new - y_i|, y_i after clipping; NaN where the sampler does not ask for it.
    """

    position: int
    client: str
    examples: int
    loss: float
    norm: float
    steps: int
    distance: float


class DrawnClients(NamedTuple):
    """How clients are drawn, for an accountant of privacy.

    probability: of each client, independently of the others; None: `at.size` of all clients without replacement, every
    set equally likely. groups: that take turns, if they do; None: all clients may be drawn in every round.
    """

    probability: float | None = None
    groups: int | None = None


class Sampler(NamedTuple):
    """Chooses the clients of every round, by pure functions: `init(at)`, then `sample(state, at)` in each round.

    raysim/cohort/uniform.py is a short example, docs/cookbook.md has one with a state.

    init: the state before the first round, tensors by name, which are checkpointed; `lambda at: {}` keeps none.
    sample: positions in the training split, in order of drawing; there may be none. A position that is there c times
        was drawn c times: the client trains once and counts c times.
    learn: participants come once each, in an order that workers do not change; None: nothing is learned.
    needs_distances: `learn` needs `Participant.distance`, so a round's updates are kept until it has them.
    name: in messages.
    repeats: a client may be drawn several times in a round.
    varies: cohorts may have fewer clients than they are meant to have.
    sized_by: a clause for messages, if another key than `cohort.size` sets the cohort's size; else None.
    expected: from round and N to the expected number of clients; None if `cohort.size` sets it.
    rounds: the number of rounds with cohorts; None: any number.
    uniform_weights: the examples are in the probabilities already, so clients weigh alike.
    choose: from the clients drawn, each once in order of drawing, and f_i, their mean losses of the model that all of
        them receive, to the clients that train; None: all train.
    asks: the number of clients that `sample` draws in place of `at.size`, for `choose`; None: `at.size`.
    uniform_by_default: clients weigh alike unless the experiment says otherwise.
    drawn: how clients are drawn, where privacy knows an accountant for it; else None.
    available: from seed, positions and rounds to the number of these clients that a cohort may be drawn from, in each
        of the rounds; None: all.
    """

    init: Callable[[CohortAt], State]
    sample: Callable[[State, CohortAt], Positions]
    learn: Callable[[State, Sequence[Participant]], State] | None = None
    needs_distances: bool = False
    name: str = "own"
    repeats: bool = False
    varies: bool = False
    sized_by: str | None = None
    expected: Callable[[int, int], float | None] = lambda round_index, population: None
    rounds: int | None = None
    uniform_weights: bool = False
    choose: Callable[[CohortAt, Positions, Float64s], Positions] | None = None
    asks: int | None = None
    uniform_by_default: bool = False
    drawn: DrawnClients | None = None
    available: Callable[[int, Int64s, Int64s], Int64s] | None = None


def nothing(at: CohortAt) -> State:
    """Return the state of a sampler that keeps none."""
    return {}


def drawn_in(num_rounds: int, sampler: Sampler, examples: Sequence[int], size: int) -> list[list[int]]:
    """The positions that are drawn in the first rounds with seed 0, before anything is learned: to see a sampler's law.

    Args:
        num_rounds: number of cohorts.
        sampler: what a section's `make` returns.
        examples: their number for each client; the ids of clients are "0", "1", ...
        size: clients to draw.
    """
    ends = np.cumsum([0, *examples])
    rows = np.zeros(ends[-1])
    clients = Clients(ArraySplit(tuple(map(str, range(len(examples)))), rows, rows, ends))
    state = sampler.init(CohortAt(0, size, clients, 0))
    return [sampler.sample(state, CohortAt(t, size, clients, 0)).tolist() for t in range(num_rounds)]
