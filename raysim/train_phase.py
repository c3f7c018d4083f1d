"""The phase that every round has: clients train, and what enters the mean is added up."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from raysim.broadcast import Broadcast
from raysim.client import chunk as local_training
from raysim.client.adversary import Adversary, attack
from raysim.client.corrections.correction import Correction
from raysim.client.examples import Examples
from raysim.client.section import ClientSection
from raysim.client.sgd import Sgd
from raysim.cohort.chunks import Chunk
from raysim.data.label_counts import label_counts
from raysim.members import Members
from raysim.models.model import Model
from raysim.phase import Workshop
from raysim.remembered import Remembered
from raysim.server import fednova
from raysim.server.accumulator import Accumulator, Included
from raysim.server.norms import group_norms
from raysim.server.section import ServerSection
from raysim.server.sums import Sums


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
) -> Callable[[Workshop, Examples, Broadcast, Chunk], Sums]:
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

    def local(workshop: Workshop, examples: Examples, sent: Broadcast, chunk: Chunk) -> Sums:
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
        padding = examples.dataset.y.padding
        remembered = Remembered(correction, workshop, sent, chunk)
        start = None if correction.start is None else correction.start(sent.beside)
        offset = None if correction.offset is None else remembered.offset
        for position in chunk:
            if position in sent.left_out:
                sums.reject(position)
        stream: Iterable[local_training.Trained]
        if workshop.trained is not None:
            stream = [workshop.trained]
        else:
            clients = members.of(examples, sent, chunk)
            stream = local_training.train(workshop.train, sent.weights, clients, sent.lr, model.params, offset, start)
        for trained in stream:
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
                        labels=_labels(member.y, num_labels, padding) if num_labels else None,
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


def _labels(y: Tensor, num_labels: int, padding: int | None) -> Tensor:
    return torch.from_numpy(label_counts(y.numpy(force=True), num_labels, padding)).to(y.device)
