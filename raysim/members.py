"""Who the clients of a chunk are: their data, batches and keys, and whose labels an adversary flips."""

from __future__ import annotations

from dataclasses import replace

from raysim.broadcast import Broadcast
from raysim.client import chunk as local_training
from raysim.client.adversary import Adversary, LabelFlip, flip
from raysim.client.examples import Examples
from raysim.client.form import Client
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk


class Members:
    """Who the clients of a chunk are, alike in every phase of a round.

    Args:
        client: local training.
        seed: addresses what clients draw.
        adversary, adversaries: what which positions do; here, whose labels are flipped.
    """

    def __init__(
        self, client: ClientSection, seed: int, adversary: Adversary | None, adversaries: frozenset[int]
    ) -> None:
        self._client, self._seed = client, seed
        self._flips = adversaries if isinstance(adversary, LabelFlip) else frozenset()

    def of(self, examples: Examples, sent: Broadcast, chunk: Chunk) -> list[Client]:
        """The chunk's clients with their data, but for those that an earlier phase rejected."""
        positions = [position for position in chunk if position not in sent.left_out]
        if not positions:
            return []
        members = local_training.members(examples, positions, self._client, self._seed, sent.round, sent.weights.params)
        classes = examples.dataset.num_classes
        if classes is None or not self._flips:
            return members
        return [replace(c, y=flip(c.y, classes)) if c.position in self._flips else c for c in members]
