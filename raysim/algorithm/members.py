"""Builds the clients of a chunk, with their data, batches and keys, alike in every phase of a round."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from raysim.algorithm.broadcast import Broadcast
from raysim.arrays import Int64s
from raysim.client import local_training
from raysim.client.adversary import flip
from raysim.client.augmentations import augment
from raysim.client.chunk_clients import ChunkClients
from raysim.client.section import ClientSection
from raysim.cohort.chunks import Chunk
from raysim.data.on_device import Examples


@dataclass(frozen=True)
class Members:
    """Builds the clients of a chunk, alike in every phase of a round.

    client: local training. seed: addresses the clients' draws. flipped: positions of the adversaries whose labels are
    flipped.
    """

    client: ClientSection
    seed: int
    flipped: frozenset[int]

    def training_by(self, client: ClientSection) -> Members:
        """Return what builds the same clients for other local training."""
        return replace(self, client=client)

    def of(self, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> ChunkClients:
        """Return the chunk's clients with their data, except those that an earlier phase rejected."""
        positions = taking_part(broadcast, chunk)
        if not len(positions):
            return ChunkClients.none()
        members = local_training.members(
            examples, positions, self.client, self.seed, broadcast.round, broadcast.weights.params
        )
        if self.flipped.isdisjoint(positions.tolist()):
            return members
        each = zip(positions.tolist(), members.y.split_with_sizes(members.num_examples.tolist()), strict=True)
        return replace(members, y=torch.cat([self._labels(examples, position, y) for position, y in each]))

    def held(self, examples: Examples, broadcast: Broadcast, chunk: Chunk) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield position, x and y of the same clients, as an evaluation sees their examples: nothing is drawn."""
        positions = taking_part(broadcast, chunk)
        if not len(positions):
            return
        sizes, *whole = local_training.load_clients(examples, positions, broadcast.weights.params)
        each = (rows.split_with_sizes(sizes.tolist()) for rows in whole)
        for position, x, y in zip(positions.tolist(), *each, strict=True):
            yield position, augment.for_evaluation(self.client.augment, x), self._labels(examples, position, y)

    def _labels(self, examples: Examples, position: int, y: Tensor) -> Tensor:
        classes, padding = examples.dataset.num_classes, examples.dataset.y.padding
        return flip(y, classes, padding) if classes is not None and position in self.flipped else y


def taking_part(broadcast: Broadcast, chunk: Chunk) -> Int64s:
    """Return the positions of the chunk that have a part in the phase and were not rejected."""
    if not broadcast.left_out and not broadcast.elsewhere:
        return np.array(chunk, np.int64)
    return np.array([p for p in chunk if p not in broadcast.left_out and p not in broadcast.elsewhere], np.int64)
