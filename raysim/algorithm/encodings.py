"""Lets clients encode what they send, where the server learns a sum only (server/encoding.py): pure functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from raysim.algorithm.compressing import squared_norms
from raysim.algorithm.phase import Broadcast
from raysim.algorithm.private import Private
from raysim.algorithm.uploads import Upload
from raysim.models.layout import Layout
from raysim.server import secure_sum
from raysim.server.accumulator import Compressed, Contribution
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


def encoded(
    encoding: Encoding,
    layout: Layout,
    sent: Broadcast,
    received: Sequence[Upload],
    contributions: Sequence[Contribution | None],
) -> tuple[list[Tensor | None], Compressed]:
    """Return the messages of clients, and the vectors that enter the mean by them, decoded one by one.

    A client whose update is not finite (its contribution is None) sends zeros where `encoding.always`, else nothing.
    """
    messages: list[Tensor | None] = []
    rows = torch.zeros(len(received), layout.size, dtype=torch.float64)
    for row, one, included in zip(rows, received, contributions, strict=True):
        weight = 1.0 if included is None else included.weight
        if included is None and not encoding.always:
            messages.append(None)
            continue
        # The clipped update.
        vector = row.clone() if included is None else one.delta.cpu().double() * included.judged.scale
        update = SentUpdate(vector, weight, sent.round, one.client.position, sent.limits.clip)
        messages.append(message := encoding.encode(update))
        if included is not None and weight:
            row.copy_(encoding.decode(sent.round, message)).div_(weight)
    rows = rows.to(received[0].delta.device)
    return messages, Compressed(rows, squared_norms(layout, rows), rows.new_zeros(len(rows), 3))


def num_bytes(encoding: Encoding | None) -> int | None:
    """Return the bytes of a message; None: those of the vector itself."""
    return None if encoding is None or encoding.bits is None else -(-encoding.bits * encoding.num_values // 8)
