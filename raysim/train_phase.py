"""The phase that every round has: clients train, and what enters the mean is added up."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from raysim.broadcast import Broadcast
from raysim.client import chunk as local_training
from raysim.client.adversary import Adversary, LabelFlip, attack, flip
from raysim.client.corrections.correction import Begins, Correction, Ended
from raysim.client.form import Client
from raysim.client.section import ClientSection
from raysim.client.sgd import Sgd
from raysim.cohort.chunks import Chunk
from raysim.data.dataset import FederatedDataset
from raysim.models.model import Model
from raysim.phase import ClientStates, Workshop
from raysim.server import fednova
from raysim.server.accumulator import Accumulator, Included
from raysim.server.diagnostics import label_counts
from raysim.server.norms import group_norms
from raysim.server.section import ServerSection
from raysim.server.sums import Sums


class Members:
    """Who the clients of a chunk are, alike in every phase of a round.

    Args:
        client: local training.
        seed: addresses what clients draw.
        adversary, adversaries: what which positions do; here, whose labels are flipped.
    """

    def __init__(
        self, client: ClientSection, seed: int, adversary: Adversary | None, adversaries: frozenset[int]
    ) -> None:
        self._client, self._seed = client, seed
        self._flips = adversaries if isinstance(adversary, LabelFlip) else frozenset()

    def of(self, dataset: FederatedDataset, sent: Broadcast, chunk: Chunk) -> list[Client]:
        """The chunk's clients with their data, but for those that an earlier phase rejected."""
        positions = [position for position in chunk if position not in sent.left_out]
        if not positions:
            return []
        members = local_training.members(dataset, positions, self._client, self._seed, sent.round, sent.weights.params)
        if dataset.num_classes is None or not self._flips:
            return members
        classes = dataset.num_classes
        return [replace(c, y=flip(c.y, classes)) if c.position in self._flips else c for c in members]


def make(
    client: ClientSection,
    server: ServerSection,
    correction: Correction,
    model: Model,
    seed: int,
    members: Members,
    num_labels: int,
    adversary: Adversary | None,
    adversaries: frozenset[int],
) -> Callable[[Workshop, FederatedDataset, Broadcast, Chunk], Sums]:
    """`Phase.local` of the training phase.

    Args:
        client, server: their sections of the experiment.
        correction: what `client` names.
        model: layouts.
        seed: addresses the adversaries' noise.
        members: who the clients are.
        num_labels: classes whose labels are counted, or 0.
        adversary, adversaries: what which positions send.
    """
    normaliser = _normaliser(client, server, correction)
    nova = server.aggregator if isinstance(server.aggregator, fednova.FedNova) else None

    def local(workshop: Workshop, dataset: FederatedDataset, sent: Broadcast, chunk: Chunk) -> Sums:
        params, buffers, counters = sent.weights.params, sent.weights.buffers, sent.weights.counters
        sums = Accumulator(
            len(params),
            len(buffers),
            len(counters),
            len(model.params.names),
            params.device,
            params.dtype if server.diagnostics.cosine else None,
            num_labels,
            params.dtype if correction.sums_changes else None,
        )
        remembered = _Remembered(correction, workshop, sent, chunk)
        start = None if correction.start is None else correction.start(sent.beside)
        offset = None if correction.offset is None else remembered.offset
        clients = members.of(dataset, sent, chunk)
        for position in chunk:
            if position in sent.left_out:
                sums.reject(position)
        for trained in local_training.train(
            workshop.train, sent.weights, clients, sent.lr, model.params, offset, start
        ):
            made, loss, correct = trained.updates, trained.updates.loss.tolist(), trained.updates.correct.tolist()
            squares = trained.squared_norms.sum(-1).tolist()
            included: list[Included | None] = []
            for row, member in enumerate(trained.clients):
                position, tau = member.position, member.batches.num_steps
                delta, finite = made.delta[row], trained.finite[row]
                change = remembered.end(position, delta, tau, None if made.gradients is None else made.gradients[row])
                if adversary is not None and finite and position in adversaries:
                    with torch.inference_mode():
                        delta.copy_(attack(adversary, delta, model.params, seed, sent.round, position))
                    norms = group_norms(model.params, delta)
                    trained.squared_norms[row] = torch.tensor(norms, dtype=torch.float64).square()
                    squares[row] = sum(norm**2 for norm in norms)
                    finite = math.isfinite(squares[row])
                if not finite:
                    sums.reject(position)
                    included.append(None)
                    continue
                weight = float(member.num_examples) if server.weighs_examples else 1.0
                count = sent.repeats.get(position, 1)
                judged = sent.limits.judge(delta, math.sqrt(squares[row]))
                scale, averaged = judged.scale, 1.0
                if nova is not None:
                    a = normaliser(tau, sent.lr)
                    judged = judged._replace(scale=scale / a)
                    averaged = a if nova.tau_eff == "sum_p_a" else tau
                included.append(
                    Included(
                        weight=weight,
                        examples=member.num_examples,
                        squared_norm=squares[row],
                        seen=made.seen[row],
                        loss=loss[row],
                        correct=correct[row],
                        judged=judged,
                        labels=label_counts(member.y, num_labels) if num_labels else None,
                        count=count,
                        normaliser=averaged,
                        steps=tau,
                    )
                )
                if change is not None:
                    sums.change(change)
                if workshop.kept is not None:
                    workshop.kept.extend([delta * scale] * count)
                    sums.keep(position, weight, trained.squared_norms[row], scale, count)
            sums.include(included, made.delta, trained.squared_norms, made.buffers, made.counters)
        return sums.total()

    return local


def _normaliser(client: ClientSection, server: ServerSection, correction: Correction) -> Callable[[int, float], float]:
    """fednova's a_i from (tau, lr)."""
    momentum = client.optimizer.momentum if isinstance(client.optimizer, Sgd) else 0.0
    return lambda tau, lr: fednova.normaliser(tau, momentum, lr * correction.pull)


class _Remembered:
    """What the chunk's clients remember: read when a client's turn comes, written when it ends."""

    def __init__(self, correction: Correction, workshop: Workshop, sent: Broadcast, chunk: Chunk) -> None:
        self._correction, self._workshop, self._sent = correction, workshop, sent
        self._row = {position: row for row, position in enumerate(chunk)}
        self._held: dict[int, Tensor] = {}

    def offset(self, client: Client) -> Tensor:
        """The correction's offset_i."""
        correction, own = self._correction, None
        if correction.own_gradient:
            assert self._workshop.gradients is not None
            taken = local_training.full_gradients(self._workshop.gradients, self._sent.weights, [client])
            _, own = next(iter(taken))
        state = self._state(client.position)
        if correction.after is not None:
            self._held[client.position] = state
        assert correction.offset is not None
        return correction.offset(Begins(self._sent.beside, state, own))

    def end(self, position: int, delta: Tensor, tau: int, gradient: Tensor | None) -> Tensor | None:
        """Write the client's state; what it changed by, where that is summed."""
        correction, sent = self._correction, self._sent
        if correction.after is None:
            return None
        before = self._held.pop(position)
        place = sent.places.get(position)
        gap = 1 if place is None else sent.round - place.round
        after = correction.after(Ended(sent.beside, before, delta, tau, sent.lr, gap, gradient))
        assert self._workshop.states is not None
        self._workshop.states.write(self._row[position], after)
        return after - before if correction.sums_changes else None

    def _state(self, position: int) -> Tensor:
        states: ClientStates | None = self._workshop.states
        read = None if states is None else states.read(position)
        params = self._sent.weights.params
        return torch.zeros_like(params) if read is None else read.to(params.device)
