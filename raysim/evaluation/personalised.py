"""Scores clients with the model of all and with models of their own: fine-tuned ones, or those of a personalisation.

Source: Wang et al. (2021), section 7.5. Draws of fine-tuning are addressed by (seed, round, client), apart from those
of training.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
import numpy.typing as npt
from torch import nn

from raysim import seeds
from raysim.client import local_training
from raysim.client.local_training import ClientFailure
from raysim.client.section import ClientSection
from raysim.client.trainer import Trainer
from raysim.data.dataset import Split
from raysim.data.on_device import Examples
from raysim.errors import ExperimentError
from raysim.evaluation import scores as evaluate
from raysim.evaluation.metric import Metrics
from raysim.evaluation.scores import ClientScores
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.task import Task

CLIENTS_PER_UNIT = 16
"""Clients that a trainer with a client axis trains together: a constant of the program, because it fixes the bits."""

Unit = tuple[str, tuple[tuple[int, int, int], ...]]
"""(split name, clients: position in the training split, position and examples in the scored one)."""


@dataclass(frozen=True)
class BeforeAndAfter:
    """Scores of the same clients, in the same order, by position in the scored split. A monoid under `concatenate`.

    before: with the model of all. after: with their own. seen: whether each took part in training, where that is known.
    """

    before: ClientScores
    after: ClientScores
    seen: npt.NDArray[np.bool_]


def concatenate(left: BeforeAndAfter, right: BeforeAndAfter) -> BeforeAndAfter:
    """Return the rows of `left`, then those of `right`."""
    return BeforeAndAfter(
        evaluate.concatenate(left.before, right.before),
        evaluate.concatenate(left.after, right.after),
        np.concatenate([left.seen, right.seen]),
    )


def plan(name: str, split: Split, train: Split, positions: Sequence[int], key: str) -> tuple[Unit, ...]:
    """Plan units over the clients at these positions that have examples in the split, and are training clients too.

    `key`: that of the experiment which asks for it.

    Raises:
        ExperimentError: there is no such client.
    """
    known = {train.id_of(position): position for position in range(len(train))}
    clients_of_split = [
        (known[split.id_of(position)], position, len(split.client(position)[1]))
        for position in positions
        if split.id_of(position) in known
    ]
    clients = [client for client in clients_of_split if client[2]]
    if not clients:
        raise ExperimentError(
            f"{key} scores clients on their own examples in the split {name!r}, but no training "
            f"client has any there: its ids must be those of training clients, such as {train.id_of(0)!r}."
        )
    return tuple(
        (name, tuple(clients[start : start + CLIENTS_PER_UNIT])) for start in range(0, len(clients), CLIENTS_PER_UNIT)
    )


@dataclass(frozen=True)
class Bench:
    """The objects with which a worker scores: `module` is bound to `loaded`; `seen` transforms examples for evaluation;
    `metrics` are the user-defined ones; `batch_size` counts examples at a time."""

    module: nn.Module
    loaded: Weights
    task: Task
    seen: evaluate.Seen
    metrics: Metrics
    batch_size: int

    def scores(
        self,
        examples: Examples,
        broadcast: Weights,
        unit: Unit,
        personal: Iterable[Weights],
        known: Container[int] = (),
    ) -> BeforeAndAfter:
        """Score the unit's clients with the model that was sent, then with their own ones, in order.

        `known`: positions of training clients that took part.
        """
        name, clients = unit
        before = [self.score(examples, broadcast, name, client) for client in clients]
        after = [self.score(examples, own, name, client) for own, client in zip(personal, clients, strict=True)]
        seen = np.array([client[0] in known for client in clients])
        return BeforeAndAfter(reduce(evaluate.concatenate, before), reduce(evaluate.concatenate, after), seen)

    def score(self, examples: Examples, weights: Weights, name: str, client: tuple[int, int, int]) -> ClientScores:
        """Score one client of a unit with a model."""
        trained, position, size = client
        for own, values in (
            (self.loaded.params, weights.params),
            (self.loaded.buffers, weights.buffers),
            (self.loaded.counters, weights.counters),
        ):
            own.copy_(values)
        unit: evaluate.Unit = (name, ((position, 0, size),))
        try:
            return evaluate.evaluate(
                self.module, self.task, examples, unit, self.loaded.params, self.batch_size, self.seen, self.metrics
            )
        except ClientFailure as failure:
            # Messages name training clients here.
            raise ClientFailure(trained) from failure.__cause__


@dataclass(frozen=True)
class FineTuner:
    """Fine-tunes clients by `section` with `trainer`; `seed` is the run's."""

    trainer: Trainer
    section: ClientSection
    layout: Layout
    seed: int

    def models(
        self, examples: Examples, broadcast: Weights, lr: float, round_index: int, unit: Unit
    ) -> Iterator[Weights]:
        """Yield the fine-tuned model of each of the unit's clients, until the next is asked for."""
        positions, seed = [client[0] for client in unit[1]], seeds.key(self.seed, "fine-tuning")
        members = local_training.members(examples, positions, self.section, seed, round_index, broadcast.params)
        for group in local_training.train(self.trainer, broadcast, members, lr, self.layout):
            updates = group.updates
            for row in range(len(group.clients)):
                yield Weights(broadcast.params + updates.delta[row], updates.buffers[row], updates.counters[row])
