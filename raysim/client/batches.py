"""Which examples a client sees in which local step (algorithms.md section 0, "local batches").

Each epoch is a fresh permutation, addressed by (seed, round, client, epoch), cut into slices of B, the short last slice
kept: E epochs are E * ceil(n / B) local steps. With `local_steps = K` epochs repeat and are cut after exactly K steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from raysim import seeds
from raysim.client.section import ClientSection

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Batches:
    """Local step k trains on examples `order[bounds[k]:bounds[k + 1]]` of the client."""

    order: Int64s
    bounds: tuple[int, ...]

    @property
    def num_steps(self) -> int:
        """Local steps of the round, tau."""
        return len(self.bounds) - 1


def num_local_steps(section: ClientSection, num_examples: int) -> int:
    """tau of a client with that many examples."""
    if section.local_steps is not None:
        return section.local_steps
    batch = num_examples if section.batch_size == "full" else section.batch_size
    return (section.epochs or 1) * math.ceil(num_examples / batch)


def draw(section: ClientSection, num_examples: int, seed: int, round_index: int, client: int) -> Batches:
    """The batches of one client (its position) with n >= 1 examples in one round."""
    batch = num_examples if section.batch_size == "full" else section.batch_size
    steps = num_local_steps(section, num_examples)
    per_epoch = math.ceil(num_examples / batch)
    orders: list[Int64s] = []
    lengths: list[int] = []
    for epoch in range(math.ceil(steps / per_epoch)):
        # A full batch is the same set in any order: the stored one saves the gather.
        if section.shuffle and per_epoch > 1:
            order = seeds.permutation(seeds.key(seed, "batches", round_index, client, epoch), num_examples)
        else:
            order = np.arange(num_examples)
        cuts = [batch] * (num_examples // batch)
        if short := num_examples % batch:
            if section.fill_last_batch:
                start = seeds.key(seed, "fill", round_index, client, epoch)
                extra = seeds.stream(start, batch - short) % np.uint64(num_examples)
                order = np.concatenate([order, extra.astype(np.int64)])
                short = batch
            cuts.append(short)
        kept = min(per_epoch, steps - epoch * per_epoch)
        cuts = cuts[:kept]
        orders.append(order[: sum(cuts)])
        lengths += cuts
    return Batches(np.concatenate(orders), (0, *np.cumsum(lengths).tolist()))
