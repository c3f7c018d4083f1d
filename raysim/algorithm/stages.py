"""Makes the stages between local training and the sums that FedAvg itself does not have: functions of `Outgoing`.

A stage replaces what it changes of the outgoing clients (outgoing.py). `write_states` writes client states,
and stages may read them through `Outgoing.states`; nothing else has an effect.
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.algorithm import encodings
from raysim.algorithm.compressing import Compress
from raysim.algorithm.outgoing import Outgoing
from raysim.algorithm.transforming import Transforming, apply_transforms
from raysim.algorithm.uploads import Attack, replace_attacked
from raysim.models.layout import Layout
from raysim.server.accumulator import Accumulator
from raysim.server.encoding import Encoding

Stage = Callable[[Outgoing], Outgoing]


def transform_stage(how: Transforming) -> Stage:
    """Return the stage of transforms: the updates that they make, and what clients keep for them."""

    def stage(outgoing: Outgoing) -> Outgoing:
        read = outgoing.states.read_of_transforms
        sent, kept = apply_transforms(how, outgoing.broadcast, outgoing.sent, read, outgoing.id_of)
        return outgoing._replace(sent=sent, of_transforms=kept)

    return stage


def attack_stage(attack: Attack, layout: Layout) -> Stage:
    """Return the stage in which adversaries replace their updates."""

    def stage(outgoing: Outgoing) -> Outgoing:
        assert outgoing.uploads is not None
        sent, uploads = replace_attacked(attack, layout, outgoing.broadcast.round, outgoing.sent, outgoing.uploads)
        return outgoing._replace(sent=sent, uploads=uploads)

    return stage


def compression_stage(compress: Compress) -> Stage:
    """Return the stage of compression: what is sent in place of the updates, and what clients keep of the rest."""

    def stage(outgoing: Outgoing) -> Outgoing:
        assert outgoing.contributions is not None
        compressed, rests = compress(
            outgoing.broadcast, outgoing.sent, outgoing.contributions, outgoing.states.read_rest
        )
        return outgoing._replace(compressed=compressed, rests=rests)

    return stage


def write_states(outgoing: Outgoing) -> Outgoing:
    """Stage: write the clients' states."""
    outgoing.states.write(outgoing.trained, outgoing.of_correction, outgoing.of_transforms, outgoing.rests)
    return outgoing


def encoding_stage(by: Encoding, layout: Layout) -> Stage:
    """Return the stage in which clients encode what they send."""

    def stage(outgoing: Outgoing) -> Outgoing:
        assert outgoing.uploads is not None
        assert outgoing.contributions is not None
        messages, decoded = encodings.encode_updates(
            by, layout, outgoing.broadcast, outgoing.uploads, outgoing.contributions
        )
        return outgoing._replace(messages=messages, compressed=decoded)

    return stage


def add_messages(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the clients' messages; of one that is rejected, what it sends all the same."""
    contributions = outgoing.contributions
    assert contributions is not None
    for row, message in enumerate(outgoing.messages):
        if message is not None:
            sums.send(message, int(contributions.count[row]) if contributions.included[row] else None)
