"""Lets clients encode what they send, where the server learns a sum only (server/encoding.py): pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.algorithm.phase import Broadcast
from raysim.algorithm.private import Private
from raysim.algorithm.uploads import Upload
from raysim.models.layout import Layout
from raysim.server import secure_sum
from raysim.server.accumulator import Contribution
from raysim.server.encoding import Encoding, SentUpdate
from raysim.server.release import Releasing
from raysim.server.section import ServerSection


def made(server: ServerSection, private: Private | None, sent: Layout) -> tuple[Releasing | None, Encoding | None]:
    """Return what the server learns of a round, and what clients send for it; None: sums, and updates.

    Args:
        server: the experiment's `[server]`.
        private: the mechanism of privacy, if there is one.
        sent: the layout of the groups that are sent.
    """
    if private is not None:
        return Releasing(private.mechanism.release, private.mechanism.always), private.mechanism.encoding
    if (section := server.secure_sum) is None:
        return None, None
    encoding = secure_sum.encoding(section, sent)
    return Releasing(lambda t, level, sums: secure_sum.released(section, encoding, t, sums)), encoding


def of_client(sent: Broadcast, upload: Upload, included: Contribution) -> SentUpdate:
    """Return what a client encodes: its clipped update."""
    vector = upload.delta.cpu().double() * included.judged.scale
    return SentUpdate(vector, included.weight, sent.round, upload.client.position, sent.limits.clip)


def of_rejected(encoding: Encoding | None, sent: Broadcast, upload: Upload) -> Tensor | None:
    """Return the message of a client whose update is not finite; None if it sends none."""
    if encoding is None or not encoding.always:
        return None
    nothing = torch.zeros(len(upload.delta), dtype=torch.float64)
    return encoding.encode(SentUpdate(nothing, 1.0, sent.round, upload.client.position, sent.limits.clip))


def num_bytes(encoding: Encoding | None) -> int | None:
    """Return the bytes of a message; None: those of the vector itself."""
    return None if encoding is None or encoding.bits is None else -(-encoding.bits * encoding.num_values // 8)
