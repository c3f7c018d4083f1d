"""Compresses what clients send, with error feedback, and the model that they receive: pure functions of records.

    a = h_i + e_i        Q(a) is sent        e_i <- a - Q(a)

h_i is clipped and divided already. Draws are addressed by (seed, round, client), those of the model by (seed, round).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from raysim import seeds
from raysim.algorithm.phase import Broadcast
from raysim.client.compression import ClientCompression
from raysim.client.local_training import Trained
from raysim.client.trainer import Client
from raysim.compression import choice as compressors
from raysim.compression.compressor import CompressionKeys
from raysim.compression.passes import Groups
from raysim.models.layout import Layout
from raysim.models.vectors import fresh, squared_norm
from raysim.server.accumulator import Compressed, Contribution
from raysim.server.compression import ServerCompression
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums

XHAT = "xhat"
"""Name, in the server's state, of what clients have of the model."""


Compress = Callable[
    [Broadcast, Trained, Sequence[Contribution | None], Callable[[Client], Tensor | None]],
    tuple[Compressed | None, list[Tensor | None]],
]
"""(broadcast, trained clients, their contributions or None, what a client kept) -> what they send in place of h_i, and
what each keeps for the next time; None without compression and without error feedback."""


def sending(section: ClientCompression | None, layout: Layout, sent: Layout, seed: int) -> Compress:
    """Return how clients compress what they send.

    Args:
        section: the experiment's `[client.compression]`.
        layout: of the whole update.
        sent: the layout of the groups that are sent.
        seed: addresses the draws.
    """
    if section is None:
        return lambda broadcast, trained, contributions, rest_of: (None, [None] * len(trained.clients))
    compression, groups = compressors.over(section, sent), Groups(layout)

    def compress(
        broadcast: Broadcast,
        trained: Trained,
        contributions: Sequence[Contribution | None],
        rest_of: Callable[[Client], Tensor | None],
    ) -> tuple[Compressed, list[Tensor | None]]:
        rests = [rest_of(client) for client in trained.clients]
        facts, norms = np.zeros((len(rests), 3)), np.zeros((len(rests), len(layout.names)))
        with torch.inference_mode():
            rows = fresh(trained.updates.delta)
            for row, (client, included) in enumerate(zip(trained.clients, contributions, strict=True)):
                if included is None:
                    rows[row] = 0
                    continue
                a, scale, before = trained.updates.delta[row], included.judged.scale / included.divisor, rests[row]
                if scale != 1:
                    a = a * scale
                whole = included.squared_norm * scale**2
                if before is not None:
                    a = a + before
                    whole = squared_norm(a)
                key = seeds.key(seed, "compression", broadcast.round, client.position)
                lost, norms[row] = compression.send(a, key, rows[row], groups)
                facts[row] = whole, lost, math.sqrt(lost)
                if before is not None:
                    rests[row] = a - rows[row]
            return Compressed(rows, *(torch.from_numpy(told).to(rows.device) for told in (norms, facts))), rests

    return compress


def squared_norms(layout: Layout, rows: Tensor) -> Tensor:
    """Return float64 (k, G), |row|^2 per parameter group of (k, P), from norms in the dtype of the rows."""
    return torch.stack([torch.linalg.vector_norm(piece, dim=-1) for piece in layout.pieces(rows)], -1).double().square()


def figures(section: ClientCompression, sums: Sums) -> Metrics:
    """Return a round's figures; None where they are not defined."""
    whole, lost, rest = sums.compression.tolist()
    found: Metrics = {"compression_error": lost / whole if whole else None}
    if section.error_feedback:
        found["residual_norm"] = rest / sums.clients if sums.clients else None
    return found


def num_bytes(section: CompressionKeys | None, sent: Layout) -> int | None:
    """Return the bytes of a compressed vector; None without compression."""
    return None if section is None else compressors.over(section, sent).num_bytes


class Downlink(NamedTuple):
    """How the server compresses the model that it sends; vectors are (P,).

    init(x_0): what the state has of it. received(state, x): where clients start. after(state, x): what the state has
    after the step to x.
    """

    init: Callable[[Tensor], Tensors]
    received: Callable[[ServerState, Tensor], Tensor]
    after: Callable[[ServerState, Tensor], Tensors]


def downlink(section: ServerCompression | None, sent: Layout, unsent: Layout, seed: int) -> Downlink:
    """Return how the server compresses the groups that are sent; the others are the same everywhere."""
    if section is None:
        return Downlink(lambda x: {}, lambda state, x: x, lambda state, x: {})
    compression = compressors.over(section, sent)

    def of(vector: Tensor, round_index: int) -> Tensor:
        made = compression.apply(vector, seeds.key(seed, "compression/server", round_index), torch.empty_like(vector))
        for into, piece in zip(unsent.pieces(made), unsent.pieces(vector), strict=True):
            into.copy_(piece)
        return made

    def xhat(state: ServerState, x: Tensor) -> Tensor:
        return state.received[XHAT]

    def moved(state: ServerState, x: Tensor) -> Tensors:
        before = state.received[XHAT]
        return {XHAT: before + of(x - before, state.round)}

    if section.of == "change":
        return Downlink(lambda x: {XHAT: x}, xhat, moved)
    return Downlink(lambda x: {}, lambda state, x: of(x, state.round), lambda state, x: {})
