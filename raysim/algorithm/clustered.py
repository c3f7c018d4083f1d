"""Carries out clusters: an algorithm of several models, made of that of one (client/personalisation/clusters.py).

Its state holds the models one behind the other, and the server's state of each under "0/", "1/", ... A round has a
phase of losses and a phase of training for each model, so that nothing but sums of one model travels:

    phases 0 .. k-1     losses of model j                  every client
    phases k .. 2k-1    training of model j                the clients of argmin_j f_i(x_j)
    step                one step of each model, with the sums of its phase

Levels of clipping and the ledger are of the whole cohort, and so are the round's figures.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

import numpy as np
import torch
from torch import Tensor

from raysim.algorithm import start_losses
from raysim.algorithm.algorithm import Algorithm, PersonalModels
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import LocalContext
from raysim.algorithm.phase import Phase
from raysim.cohort.sampler import State
from raysim.config.own_figures import joined
from raysim.data.on_device import Examples
from raysim.models.model import Weights
from raysim.models.vectors import squared_norm
from raysim.server.encoding import WRAPPED
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums, add

log = logging.getLogger("raysim")


def join(models: Sequence[Weights]) -> Weights:
    """Return the models one behind the other."""
    return Weights(
        *(torch.cat(vectors) for vectors in zip(*(one.vectors for one in models), strict=True)),
    )


def with_clusters(base: Algorithm, count: int, server: ServerSection) -> Algorithm:
    """Return the algorithm of `count` models, each trained by `base`, whose only phase is training."""
    (training,) = base.phases
    clusters = _Clusters(base, count, training)
    losses = start_losses.make(server, base.members)
    phases = [Phase(partial(clusters.to_score, j), losses, "losses") for j in range(count)]
    phases += [Phase(partial(clusters.to_train, j), training.local) for j in range(count)]
    return base._replace(
        init=clusters.init,
        phases=tuple(phases),
        step=clusters.step,
        average=lambda state: None,
        of_all=lambda state: clusters.models(state.weights)[0],
        traffic=base.traffic._replace(down=base.traffic.down + count - 1),
        personal=PersonalModels(clusters.to_evaluate, clusters.model_of, from_state=False),
    )


@dataclass(frozen=True)
class _Clusters:
    """`count` models in one state, each of which `base` trains by its phase `training`."""

    base: Algorithm
    count: int
    training: Phase

    def init(self, weights: Weights, sampler: State) -> ServerState:
        """Return the first state, of the models that lie one behind the other."""
        each = [self.base.init(one, sampler) for one in self.models(weights)]
        return self._together(each[0], each)

    def models(self, weights: Weights) -> list[Weights]:
        """Return the models, which lie one behind the other."""
        parts = (vector.chunk(self.count) if len(vector) else [vector] * self.count for vector in weights.vectors)
        return [Weights(*each) for each in zip(*parts, strict=True)]

    def to_score(
        self, j: int, state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        """Return what clients receive to score model j."""
        return replace(self.training.broadcast(self._of(state, j), repeats, positions, ()), phase=j)

    def to_train(
        self, j: int, state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        """Return what those clients receive for whom model j is the best."""
        broadcast = self.training.broadcast(self._of(state, j), repeats, positions, ())
        chosen = assign(positions, sums[: self.count])
        elsewhere = frozenset(position for position, model in chosen.items() if model != j)
        rejected: frozenset[int] = frozenset()
        if j == self.count - 1:
            # The last phase names all clients that left the round.
            without = {position for position in positions if position not in chosen}
            rejected = frozenset(without.union(*(earlier.rejected for earlier in sums[self.count :])))
        else:
            elsewhere |= frozenset(positions) - chosen.keys()
        return replace(broadcast, phase=self.count + j, left_out=rejected, elsewhere=elsewhere - rejected)

    def step(self, state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        """Step every model by the sums of its phase; the figures are of the whole cohort."""
        # A round without clients has one phase, without any.
        is_whole = len(sums) == 2 * self.count
        trained = sums[self.count :] if is_whole else [sums[-1]] * self.count
        cohort = replace(reduce(add, trained), rejected=sums[-1].rejected) if is_whole else sums[-1]
        if cohort.clients and cohort.weight == 0:
            log.warning("round %d: every client weighs 0, so the models are left as they are", state.round)
            cohort = replace(cohort, clients=0)
        shared, metrics = self.base.step(self._of(state, 0), (*sums[: len(sums) - len(trained)], cohort), None)
        steps = [
            self.base.step(self._of(state, j), (own,), None) if own.clients and own.weight else (self._of(state, j), {})
            for j, own in enumerate(trained)
        ]
        after = self._together(shared, [stepped for stepped, _ in steps])
        if WRAPPED in metrics:
            # Each model has a sum of its own; the sum of all is not used.
            metrics[WRAPPED] = sum(figures.get(WRAPPED) or 0 for _, figures in steps)
        if cohort.clients:
            metrics["params_norm"] = math.sqrt(squared_norm(after.weights.params))
        return after, joined(metrics, {f"cluster/{j}/clients": own.clients for j, own in enumerate(trained)})

    def to_evaluate(self, state: ServerState, positions: Sequence[int]) -> Broadcast:
        """Return what evaluated clients receive: all models."""
        first, *others = self.models(state.weights)
        beside = {str(j): own.params for j, own in enumerate(others, start=1)}
        return Broadcast(state.round - 1, first, lr=0.0, beside=beside)

    def model_of(self, context: LocalContext, examples: Examples, broadcast: Broadcast, position: int) -> Tensor:
        """Return the parameters of the model with the smallest loss on a client's examples."""
        ((_, x, y),) = self.base.members.held(examples, broadcast, (position,))
        assert context.loss is not None
        each = [broadcast.weights.params, *(broadcast.beside[str(j)] for j in range(1, self.count))]
        return each[best([context.loss(replace(broadcast.weights, params=params), x, y) for params in each])]

    def _of(self, state: ServerState, j: int) -> ServerState:
        return replace(state, weights=self.models(state.weights)[j], optimizer=_under(f"{j}/", state.optimizer))

    def _together(self, state: ServerState, each: Sequence[ServerState]) -> ServerState:
        optimizer = {f"{j}/{name}": value for j, one in enumerate(each) for name, value in one.optimizer.items()}
        return replace(state, weights=join([one.weights for one in each]), optimizer=optimizer)


def best(losses: Sequence[float]) -> int:
    """Return the model with the smallest loss, the lowest of several; one without a finite loss is the worst.

    >>> best([2.0, 1.0, 1.0]), best([math.nan, 3.0])
    (1, 1)
    """
    return int(np.argmin([loss if math.isfinite(loss) else math.inf for loss in losses]))


def assign(positions: Sequence[int], losses: Sequence[Sums]) -> dict[int, int]:
    """Return the model of each client, from the sums of every model's losses; none of clients without a finite loss."""
    losses_by_model = [{fact.position: fact.loss for fact in own.facts} for own in losses]
    rows = {position: [own.get(position, math.inf) for own in losses_by_model] for position in positions}
    return {position: best(row) for position, row in rows.items() if min(row) < math.inf}


def _under(prefix: str, tensors: Tensors) -> Tensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
