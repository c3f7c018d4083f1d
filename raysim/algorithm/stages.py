"""Makes the stages between local training and the sums that FedAvg itself does not have: functions of groups.

A stage replaces what it changes of a group (group.py). Only `written` has an effect.
"""

from __future__ import annotations

from collections.abc import Callable

from raysim.algorithm import encodings
from raysim.algorithm.compressing import Compress
from raysim.algorithm.group import Group
from raysim.algorithm.transforming import Transforming, transformed
from raysim.algorithm.uploads import Attack, attacked
from raysim.models.layout import Layout
from raysim.server.accumulator import Accumulator
from raysim.server.encoding import Encoding

Stage = Callable[[Group], Group]


def transforming(how: Transforming) -> Stage:
    """Return the stage of transforms: the updates that they make, and what clients keep for them."""

    def stage(group: Group) -> Group:
        read = group.states.read_of_transforms
        trained, kept = transformed(how, group.sent, group.trained, read, group.id_of)
        return group._replace(trained=trained, of_transforms=kept)

    return stage


def attacking(attack: Attack, layout: Layout) -> Stage:
    """Return the stage in which adversaries replace their updates."""

    def stage(group: Group) -> Group:
        trained, uploads = attacked(attack, layout, group.sent.round, group.trained, list(group.uploads))
        return group._replace(trained=trained, uploads=uploads)

    return stage


def compressing(compress: Compress) -> Stage:
    """Return the stage of compression: what is sent in place of the updates, and what clients keep of the rest."""

    def stage(group: Group) -> Group:
        compressed, rests = compress(group.sent, group.trained, group.contributions, group.states.read_rest)
        return group._replace(compressed=compressed, rests=rests)

    return stage


def written(group: Group) -> Group:
    """Stage: write the clients' states."""
    group.states.write(group.computed, group.of_correction, group.of_transforms, group.rests)
    return group


def encoding(by: Encoding, layout: Layout) -> Stage:
    """Return the stage in which clients encode what they send."""

    def stage(group: Group) -> Group:
        messages, decoded = encodings.encoded(by, layout, group.sent, group.uploads, group.contributions)
        return group._replace(messages=messages, compressed=decoded)

    return stage


def with_messages(sums: Accumulator, group: Group) -> None:
    """Add the clients' messages; of one that is rejected, what it sends all the same."""
    for message, contribution in zip(group.messages, group.contributions, strict=True):
        if message is not None:
            sums.send(message, None if contribution is None else contribution.count)
