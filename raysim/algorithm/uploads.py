"""Computes uploads from trained clients, and contributions to the sums from uploads: pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast, counts, weighed
from raysim.arrays import Bools, Float64s, Int64s
from raysim.client.adversary import Adversary, attack
from raysim.client.chunk_clients import ChunkClients
from raysim.client.corrections.correction import Correction
from raysim.client.local_training import ClientFailure, Trained
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.section import ClientSection
from raysim.data.field import label_counts
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
    made, squares = trained.updates, trained.squared_norms.sum(-1).numpy(force=True)
    facts = made.seen, made.loss.numpy(), made.correct.numpy()
    return Uploads(trained.clients, made.delta, squares, trained.finite, *facts)


def replace_attacked(
    attack_: Attack, layout: Layout, round_index: int, trained: Trained, made: Uploads
) -> tuple[Trained, Uploads]:
    """Replace adversaries' updates: in the uploads, and in copies of the trained clients' vectors."""
    positions = trained.clients.positions.tolist()
    rows = [row for row, position in enumerate(positions) if made.finite[row] and position in attack_.positions]
    if not rows:
        return trained, made
    norms, finite = made.squared_norms.copy(), made.finite.copy()
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
    return trained, made._replace(deltas=delta, squared_norms=norms, finite=finite)


Contributing = Callable[[Uploads, Broadcast, int | None, Callable[[int], str]], Contributions]
"""From uploads, the broadcast, the padding label, and ids by position to contributions."""


def contribution_rule(
    client: ClientSection, server: ServerSection, correction: Correction, num_labels: int
) -> Contributing:
    """Return the function that makes contributions of uploads; an update that is not finite is not included.

    Weight w_i; clipping and zeroing at the round's levels; FedNova's division by a_i, or a fair objective's
    divisor; label counts if they are on.
    """
    nova = server.aggregator if isinstance(server.aggregator, fednova.FedNova) else None
    momentum = client.optimizer.momentum if isinstance(client.optimizer, ClientSgd) else 0.0

    def contributions(
        made: Uploads, broadcast: Broadcast, padding: int | None, id_of: Callable[[int], str]
    ) -> Contributions:
        members, taus, number = made.clients, made.clients.batches.steps, len(made.clients)
        divisors = normalisers = np.ones(number)
        if nova is not None:
            pulled = broadcast.lr * correction.client.pull
            divisors = np.array([fednova.normaliser(tau, momentum, pulled) for tau in taus.tolist()])
            normalisers = divisors if nova.tau_eff == "sum_p_a" else taus.astype(np.float64)
        judged = broadcast.limits.judge(made.deltas, np.sqrt(made.squared_norms))
        if broadcast.fair_weights:
            normalisers = _fair_normalisers(normalisers, made, judged.scale, broadcast)
        return Contributions(
            included=made.finite,
            weight=_weights(server, made, broadcast, id_of),
            held=members.num_examples,
            squared_norm=made.squared_norms,
            seen=made.seen,
            loss=made.loss,
            correct=made.correct,
            judged_scale=judged.scale,
            within_clip=judged.within_clip,
            within_zeroing=judged.within_zeroing,
            divisor=divisors,
            labels=_labels(members, num_labels, padding) if num_labels else None,
            count=counts(broadcast, members.positions),
            normaliser=normalisers,
            steps=taus,
        )

    return contributions


def _weights(server: ServerSection, made: Uploads, broadcast: Broadcast, id_of: Callable[[int], str]) -> Float64s:
    """Return w_i of each client; the value for a client that is not included is not used."""
    members, rule = made.clients, server.weighting_rule
    if rule is None:
        return weighed(broadcast, members.positions, members.num_examples if server.weighs_examples else None)
    constants, weights = server.weighting_constants, np.zeros(len(members))
    with np.errstate(all="ignore"):  # of clients that are not included
        norms, losses = np.sqrt(made.squared_norms).tolist(), (made.loss / made.seen).tolist()
    of_clients = zip(members.positions.tolist(), members.num_examples.tolist(), norms, losses, strict=True)
    for row, (position, examples, norm, loss) in enumerate(of_clients):
        if made.finite[row]:
            facts = ClientFacts(id_of(position), examples, norm, loss, int(members.batches.steps[row]), constants)
            try:
                weights[row] = weight(rule, facts)
            except Exception as error:
                raise ClientFailure(position) from error
    return weights


def _fair_normalisers(normalisers: Float64s, made: Uploads, scales: Float64s, broadcast: Broadcast) -> Float64s:
    """Return the normalisers with a fair objective's divisor in the place of those that have one."""
    fair = [broadcast.fair_weights.get(position) for position in made.clients.positions.tolist()]
    curvatures = np.array([0.0 if own is None else own.curvature for own in fair])
    with np.errstate(over="ignore", invalid="ignore"):
        return np.where(curvatures != 0, 1 + curvatures * made.squared_norms * scales**2, normalisers)


def _labels(members: ChunkClients, num_labels: int, padding: int | None) -> Tensor:
    """Return (k, L), the clients' label counts."""
    each = members.y.split_with_sizes(members.num_examples.tolist())
    counted = [torch.from_numpy(label_counts(own.numpy(force=True), num_labels, padding)) for own in each]
    return torch.stack(counted).to(members.y.device)
