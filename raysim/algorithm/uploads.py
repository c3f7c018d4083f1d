"""Computes uploads from trained clients, and contributions to the sums from uploads: pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.algorithm.broadcast import Broadcast, counts, weighed
from raysim.arrays import Bools, Float64s, Int64s
from raysim.client.adversary import Adversary, attack
from raysim.client.chunk_clients import ChunkClients
from raysim.client.corrections.correction import Correction
from raysim.client.local_training import ClientFailure, Trained
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.section import ClientSection
from raysim.config.global_draws import draws
from raysim.data.field import label_counts
from raysim.errors import ExperimentError
from raysim.models.layout import Layout
from raysim.models.vectors import group_norms
from raysim.server.accumulator import Contributions
from raysim.server.aggregators import fednova
from raysim.server.section import ServerSection
from raysim.server.weighting import ClientFacts, weight


class Uploads(NamedTuple):
    """The uploads of k clients: their updates, and the facts of their training, a row or an entry each.

    deltas: y_i - x, (k, P). squared_norms: |delta_i|^2. finite: whether all values of delta_i are finite. loss,
    correct: sums over the `seen` examples of all local batches.
    """

    clients: ChunkClients
    deltas: Tensor
    squared_norms: Float64s
    finite: Bools
    seen: Int64s
    loss: Float64s
    correct: Float64s


class Attack(NamedTuple):
    """The attack of the clients at these positions, which replaces their updates; `seed` addresses the noise.
    sent_groups: the layout of the groups that are sent."""

    adversary: Adversary
    positions: frozenset[int]
    sent_groups: Layout
    seed: int


def uploads(trained: Trained) -> Uploads:
    """Return the uploads of trained clients, in order."""
    updates = trained.updates
    return Uploads(
        clients=trained.clients,
        deltas=updates.delta,
        squared_norms=trained.squared_norms.sum(-1).numpy(force=True),
        finite=trained.finite,
        seen=updates.seen,
        loss=updates.loss.numpy(),
        correct=updates.correct.numpy(),
    )


def replace_attacked(
    attack_: Attack, layout: Layout, round_index: int, trained: Trained, sent: Uploads
) -> tuple[Trained, Uploads]:
    """Replace adversaries' updates: in the uploads, and in copies of the trained clients' vectors."""
    positions = trained.clients.positions.tolist()
    rows = [row for row, position in enumerate(positions) if sent.finite[row] and position in attack_.positions]
    if not rows:
        return trained, sent
    norms, finite = sent.squared_norms.copy(), sent.finite.copy()
    with torch.inference_mode():
        delta, squares = trained.updates.delta.clone(), trained.squared_norms.clone()
        for row in rows:
            delta[row] = attack(
                attack_.adversary, delta[row], attack_.sent_groups, attack_.seed, round_index, positions[row]
            )
            of_groups = group_norms(layout, delta[row])
            squares[row] = torch.tensor(of_groups, dtype=torch.float64).square()
            norms[row] = sum(norm**2 for norm in of_groups)
            finite[row] = math.isfinite(norms[row])
    trained = replace(trained, updates=replace(trained.updates, delta=delta), squared_norms=squares)
    return trained, sent._replace(deltas=delta, squared_norms=norms, finite=finite)


Contributing = Callable[[Uploads, Broadcast, int | None, Callable[[int], str]], Contributions]
"""From uploads, the broadcast, the padding label, and ids by position to contributions."""


def contribution_rule(
    client: ClientSection, server: ServerSection, correction: Correction, num_labels: int
) -> Contributing:
    """Return the function that makes contributions of uploads; an update that is not finite is not included.

    Weight w_i; clipping and zeroing at the round's levels; the divisors of the update and of the mean; label counts if
    they are on.
    """
    nova = server.aggregator if isinstance(server.aggregator, fednova.FedNova) else None
    momentum = client.optimizer.momentum if isinstance(client.optimizer, ClientSgd) else 0.0

    def contributions(
        sent: Uploads, broadcast: Broadcast, padding: int | None, id_of: Callable[[int], str]
    ) -> Contributions:
        clients, taus = sent.clients, sent.clients.batches.steps
        update_divisors = mean_divisors = np.ones(len(clients))
        if nova is not None:
            pulled = broadcast.lr * correction.client.pull
            update_divisors = np.array([fednova.normaliser(tau, momentum, pulled) for tau in taus.tolist()])
            mean_divisors = update_divisors if nova.tau_eff == "sum_p_a" else taus.astype(np.float64)
        judged = broadcast.limits.judge(sent.deltas, np.sqrt(sent.squared_norms))
        if broadcast.fair_weights:
            mean_divisors = _fair_divisors(mean_divisors, sent, judged.scale, broadcast)
        return Contributions(
            included=sent.finite,
            weight=_weights(server, sent, broadcast, id_of),
            held=clients.num_examples,
            squared_norm=sent.squared_norms,
            seen=sent.seen,
            loss=sent.loss,
            correct=sent.correct,
            judged_scale=judged.scale,
            within_clip=judged.within_clip,
            within_zeroing=judged.within_zeroing,
            update_divisor=update_divisors,
            labels=_labels(clients, num_labels, padding) if num_labels else None,
            count=counts(broadcast, clients.positions),
            mean_divisor=mean_divisors,
            steps=taus,
        )

    return contributions


def _weights(server: ServerSection, sent: Uploads, broadcast: Broadcast, id_of: Callable[[int], str]) -> Float64s:
    """Return w_i of each client; the value for a client that is not included is not used."""
    clients, rule = sent.clients, server.weighting_rule
    if rule is None:
        return weighed(broadcast, clients.positions, clients.num_examples if server.weighs_examples else None)
    constants, weights = server.weighting_constants, np.zeros(len(clients))
    with np.errstate(all="ignore"):  # of clients that are not included
        norms, losses = np.sqrt(sent.squared_norms).tolist(), (sent.loss / sent.seen).tolist()
    of_clients = zip(clients.positions.tolist(), clients.num_examples.tolist(), norms, losses, strict=True)
    with draws() as drew:
        for row, (position, examples, norm, loss) in enumerate(of_clients):
            if sent.finite[row]:
                facts = ClientFacts(id_of(position), examples, norm, loss, int(clients.batches.steps[row]), constants)
                try:
                    weights[row] = weight(rule, facts)
                except Exception as error:
                    raise ClientFailure(position) from error
        if drew():
            raise ExperimentError(
                "weighting= drew from a global generator (of torch, NumPy or Python), whose draws differ from worker "
                "to worker, but it must be a function of the client's facts alone."
            )
    return weights


def _fair_divisors(mean_divisors: Float64s, sent: Uploads, scales: Float64s, broadcast: Broadcast) -> Float64s:
    """Return the divisors of the mean, with a fair objective's 1 + c_i |h_i|^2 in the place of those that have one."""
    fair = [broadcast.fair_weights.get(position) for position in sent.clients.positions.tolist()]
    curvatures = np.array([0.0 if own is None else own.curvature for own in fair])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(curvatures != 0, 1 + curvatures * sent.squared_norms * scales**2, mean_divisors)


def _labels(clients: ChunkClients, num_labels: int, padding: int | None) -> Tensor:
    """Return (k, L), the clients' label counts."""
    each = clients.y.split_with_sizes(clients.num_examples.tolist())
    counted = [torch.from_numpy(label_counts(own.numpy(force=True), num_labels, padding)) for own in each]
    return torch.stack(counted).to(clients.y.device)
