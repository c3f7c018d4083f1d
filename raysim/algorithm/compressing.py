"""Compresses what clients send, with error feedback, and the model that they receive: pure functions of records.

    a = h_i + e_i        Q(a) is sent        e_i <- a - Q(a)

h_i is clipped and divided already. Draws are addressed by (seed, round, client), those of the model by (seed, round).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.client.compression import ClientCompression
from raysim.client.local_training import Trained
from raysim.cohort.sampler import State
from raysim.compression import choice as compressors
from raysim.compression.passes import Groups
from raysim.config.own_figures import joined
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.models.vectors import fresh, squared_norm
from raysim.server.accumulator import Compressed, Contributions
from raysim.server.compression import ServerCompression
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums

XHAT = "xhat"
"""Name, in the server's state, of what clients have of the model."""


Compress = Callable[
    [Broadcast, Trained, Contributions, Callable[[int], Tensor | None]],
    tuple[Compressed, list[Tensor | None]],
]
"""(broadcast, trained clients, their contributions, what the client at a position kept) -> what they send in place of
h_i, and what each keeps for the next time; None without error feedback."""


def update_compressor(section: ClientCompression, layout: Layout, sent_groups: Layout, seed: int) -> Compress:
    """Return how clients compress what they send.

    Args:
        section: the experiment's `[client.compression]`.
        layout: of the whole update.
        sent_groups: the layout of the groups that are sent.
        seed: addresses the draws.
    """
    compression, groups = compressors.over(section, sent_groups, section.error_feedback), Groups(layout)

    def compress(
        broadcast: Broadcast,
        trained: Trained,
        contributions: Contributions,
        rest_of: Callable[[int], Tensor | None],
    ) -> tuple[Compressed, list[Tensor | None]]:
        positions, scales = trained.clients.positions.tolist(), contributions.scale.tolist()
        rests = [rest_of(position) for position in positions]
        facts, norms = np.zeros((len(rests), 3)), np.zeros((len(rests), len(layout.names)))
        with torch.inference_mode():
            rows = fresh(trained.updates.delta)
            for row, position in enumerate(positions):
                if not contributions.included[row]:
                    rows[row] = 0
                    continue
                a, scale, before = trained.updates.delta[row], scales[row], rests[row]
                if scale != 1:
                    a = a * scale
                whole = float(contributions.squared_norm[row]) * scale**2
                if before is not None:
                    a = a + before
                    whole = squared_norm(a)
                key = seeds.key(seed, "compression", broadcast.round, position)
                lost, norms[row] = compression.send(a, key, rows[row], groups)
                facts[row] = whole, lost, math.sqrt(lost)
                if before is not None:
                    rests[row] = a - rows[row]
            return Compressed(rows, *(torch.from_numpy(told).to(rows.device) for told in (norms, facts))), rests

    return compress


def figures(section: ClientCompression, sums: Sums) -> Metrics:
    """Return a round's figures; None where they are not defined."""
    whole, lost, rest = sums.compression.tolist()
    found: Metrics = {"compression_error": lost / whole if whole else None}
    if section.error_feedback:
        found["residual_norm"] = rest / sums.clients if sums.clients else None
    return found


def with_compression_figures(base: Algorithm, section: ClientCompression) -> Algorithm:
    """Return the algorithm with the figures of what compression lost."""

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        return after, joined(metrics, figures(section, sums[-1]))

    return base._replace(step=step)


def num_bytes(section: compressors.Keys | None, sent_groups: Layout) -> int | None:
    """Return the bytes of a compressed vector; None without compression."""
    return None if section is None else compressors.over(section, sent_groups).num_bytes


def with_compressed_broadcast(
    base: Algorithm, section: ServerCompression, sent_groups: Layout, unsent: Layout, seed: int
) -> Algorithm:
    """Return the algorithm whose clients receive the groups that are sent as the server compresses them.

    Args:
        base: the algorithm.
        section: the experiment's `[server.compression]`.
        sent_groups, unsent: the layouts of the groups that are sent, and of the others, which are the same everywhere.
        seed: addresses the draws.
    """
    compression, of_change = compressors.over(section, sent_groups), section.of == "change"

    def of(vector: Tensor, round_index: int) -> Tensor:
        sent = compression.apply(vector, seeds.key(seed, "compression/server", round_index), torch.empty_like(vector))
        for into, piece in zip(unsent.pieces(sent), unsent.pieces(vector), strict=True):
            into.copy_(piece)
        return sent

    def vector(state: ServerState) -> Tensor:
        return state.received[XHAT] if of_change else of(base.received(state), state.round)

    def init(weights: Weights, sampler: State) -> ServerState:
        state = base.init(weights, sampler)
        return replace(state, received={XHAT: base.received(state)}) if of_change else state

    def compressed(
        broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        return replace(broadcast, weights=replace(broadcast.weights, params=vector(state)))

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        if of_change and after.weights is not state.weights:
            before = state.received[XHAT]
            after = replace(after, received={XHAT: before + of(base.received(after) - before, state.round)})
        return after, metrics

    phases = tuple(phase.sending(compressed) for phase in base.phases)
    traffic = base.traffic._replace(model_bytes=num_bytes(section, sent_groups))
    return base._replace(init=init, phases=phases, step=step, traffic=traffic, received=vector)
