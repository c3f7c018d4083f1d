"""Lets clients encode what they send, where the server learns a sum only (server/encoding.py): pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.private import Private
from raysim.algorithm.uploads import Uploads
from raysim.models.layout import Layout
from raysim.models.squared_norms import squared_norms
from raysim.server import secure_sum
from raysim.server.accumulator import Compressed, Contributions
from raysim.server.encoding import Encoding, SentUpdate
from raysim.server.release import Releasing
from raysim.server.section import ServerSection


def make(
    server: ServerSection, private: Private | None, sent_groups: Layout
) -> tuple[Releasing | None, Encoding | None]:
    """Return what the server learns of a round, and what clients send for it; None: sums, and updates.

    Args:
        server: the experiment's `[server]`.
        private: the mechanism of privacy, if there is one.
        sent_groups: the layout of the groups that are sent.
    """
    if private is not None:
        return Releasing(private.mechanism.release, private.mechanism.always), private.mechanism.encoding
    if (section := server.secure_sum) is None:
        return None, None
    encoding = secure_sum.encoding(section, sent_groups)
    return Releasing(lambda t, level, sums: secure_sum.released(section, encoding, t, sums)), encoding


def encode_updates(
    encoding: Encoding,
    layout: Layout,
    broadcast: Broadcast,
    received: Uploads,
    contributions: Contributions,
) -> tuple[list[Tensor | None], Compressed]:
    """Return the messages of clients, and the vectors that enter the mean by them, decoded one by one.

    A client whose update is not finite (its contribution is not included) sends zeros where `encoding.always`, else
    nothing.
    """
    messages: list[Tensor | None] = []
    rows = torch.zeros(received.deltas.shape, dtype=torch.float64)
    facts = contributions.included, contributions.weight, contributions.judged_scale, received.clients.positions
    for row, delta, included, weight, scale, position in zip(
        rows, received.deltas, *(fact.tolist() for fact in facts), strict=True
    ):
        if not included and not encoding.always:
            messages.append(None)
            continue
        # The clipped update.
        vector = delta.cpu().double() * scale if included else row.clone()
        update = SentUpdate(vector, weight if included else 1.0, broadcast.round, position, broadcast.limits.clip)
        messages.append(message := encoding.encode(update))
        if included and weight:
            row.copy_(encoding.decode(broadcast.round, message)).div_(weight)
    rows = rows.to(received.deltas.device)
    return messages, Compressed(rows, squared_norms(layout, rows), rows.new_zeros(len(rows), 3))


def num_bytes(encoding: Encoding | None) -> int | None:
    """Return the bytes of a message; None: those of the vector itself."""
    return None if encoding is None or encoding.bits is None else -(-encoding.bits * encoding.num_values // 8)
