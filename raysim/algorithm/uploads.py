"""Computes uploads from trained clients, and contributions to the sums from uploads: pure functions of records."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast, weighed
from raysim.client.adversary import Adversary, attack
from raysim.client.corrections.correction import Correction
from raysim.client.local_training import ClientFailure, Trained
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.section import ClientSection
from raysim.client.trainer import Client
from raysim.data.field import label_counts
from raysim.models.layout import Layout
from raysim.models.vectors import group_norms
from raysim.server.accumulator import Contribution
from raysim.server.aggregators import fednova
from raysim.server.section import ServerSection
from raysim.server.weighting import ClientFacts, weight


class Upload(NamedTuple):
    """The upload of one client: its update, and the facts of its training.

    delta: y_i - x, (P,). squared_norm: |delta|^2. finite: whether all values of delta are finite. loss, correct: sums
    over the `seen` examples of all local batches.
    """

    client: Client
    delta: Tensor
    squared_norm: float
    finite: bool
    seen: int
    loss: float
    correct: float


class Attack(NamedTuple):
    """The attack of the clients at these positions, which replaces their updates; `seed` addresses the noise.
    sent_groups: the layout of the groups that are sent."""

    adversary: Adversary
    positions: frozenset[int]
    sent_groups: Layout
    seed: int


def uploads(trained: Trained) -> list[Upload]:
    """Return one upload for each trained client, in order."""
    updates, squares = trained.updates, trained.squared_norms.sum(-1).tolist()
    loss, correct = updates.loss.tolist(), updates.correct.tolist()
    of_clients = trained.clients, updates.delta.unbind(), squares, trained.finite, updates.seen, loss, correct
    return [Upload(*of_client) for of_client in zip(*of_clients, strict=True)]


def attacked(
    attack_: Attack, layout: Layout, round_index: int, trained: Trained, made: list[Upload]
) -> tuple[Trained, list[Upload]]:
    """Replace adversaries' updates: in the uploads, and in copies of the trained clients' vectors."""
    rows = [i for i, one in enumerate(made) if one.finite and one.client.position in attack_.positions]
    if not rows:
        return trained, made
    made = list(made)
    with torch.inference_mode():
        delta, squares = trained.updates.delta.clone(), trained.squared_norms.clone()
        for i in rows:
            position = made[i].client.position
            delta[i] = attack(attack_.adversary, delta[i], attack_.sent_groups, attack_.seed, round_index, position)
            norms = group_norms(layout, delta[i])
            squares[i] = torch.tensor(norms, dtype=torch.float64).square()
            square = sum(norm**2 for norm in norms)
            made[i] = made[i]._replace(delta=delta[i], squared_norm=square, finite=math.isfinite(square))
    return replace(trained, updates=replace(trained.updates, delta=delta), squared_norms=squares), made


def contribution_rule(
    client: ClientSection, server: ServerSection, correction: Correction, num_labels: int
) -> Callable[[Upload, Broadcast, int | None, Callable[[int], str]], Contribution]:
    """Return the function from (finite upload, broadcast, padding label, ids by position) to a contribution.

    Weight w_i; clipping and zeroing at the round's levels; FedNova's division by a_i, or a fair objective's
    divisor; label counts if they are on.
    """
    nova = server.aggregator if isinstance(server.aggregator, fednova.FedNova) else None
    momentum = client.optimizer.momentum if isinstance(client.optimizer, ClientSgd) else 0.0

    by_examples, weighting = server.weighs_examples, server.weighting_rule

    def weight_of(upload: Upload, sent: Broadcast, id_of: Callable[[int], str]) -> float:
        member = upload.client
        if weighting is None:
            return weighed(sent, member.position, float(member.num_examples) if by_examples else 1.0)
        norm, loss = math.sqrt(upload.squared_norm), upload.loss / upload.seen
        steps, constants = member.batches.num_steps, server.weighting_constants
        facts = ClientFacts(id_of(member.position), member.num_examples, norm, loss, steps, constants)
        try:
            return weight(weighting, facts)
        except Exception as error:
            raise ClientFailure(member.position) from error

    def contribution(upload: Upload, sent: Broadcast, padding: int | None, id_of: Callable[[int], str]) -> Contribution:
        member, tau = upload.client, upload.client.batches.num_steps
        a = averaged = 1.0
        if nova is not None:
            a = fednova.normaliser(tau, momentum, sent.lr * correction.client.pull)
            averaged = a if nova.tau_eff == "sum_p_a" else tau
        judged = sent.limits.judge(upload.delta, math.sqrt(upload.squared_norm))
        if (fair := sent.fair_weights.get(member.position)) is not None and fair.curvature:
            averaged = 1 + fair.curvature * upload.squared_norm * judged.scale**2
        return Contribution(
            weight=weight_of(upload, sent, id_of),
            held=member.num_examples,
            squared_norm=upload.squared_norm,
            seen=upload.seen,
            loss=upload.loss,
            correct=upload.correct,
            judged=judged,
            divisor=a,
            labels=_labels(member.y, num_labels, padding) if num_labels else None,
            count=sent.repeats.get(member.position, 1),
            normaliser=averaged,
            steps=tau,
        )

    return contribution


def _labels(y: Tensor, num_labels: int, padding: int | None) -> Tensor:
    return torch.from_numpy(label_counts(y.numpy(force=True), num_labels, padding)).to(y.device)
