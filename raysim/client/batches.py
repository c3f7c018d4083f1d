"""Assigns a client's examples to local steps (docs/algorithms.md section 0, "local batches").

Each epoch is a fresh permutation, addressed by (seed, round, client, epoch), cut into slices of B, the short last slice
kept: E epochs are E * ceil(n / B) local steps. With `local_steps = K` epochs repeat and are cut after exactly K steps.
`RoundWork.steps` returns their number. `fill_last_batch` and `drop_last` are other ends of an epoch
(`RoundWork.epoch`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def draw(
    section: ClientSection, sizes: Sequence[int], seed: int, round_index: int, clients: Sequence[int]
) -> list[Batches]:
    """Return the batches of a chunk's clients (positions, with their n >= 1 examples); they are independent."""
    work = section.work_at(round_index)
    taus = work.steps(np.array(sizes), seed, round_index, np.array(clients)).tolist()
    lengths, steps, met = (part.tolist() for part in work.epoch(np.array(sizes)))
    # Number of epochs, the last one perhaps cut.
    epochs = [math.ceil(tau / an_epoch) for tau, an_epoch in zip(taus, steps, strict=True)]
    orders: list[list[Int64s]] = [[] for _ in sizes]
    for epoch in range(max(epochs)):
        at_work = [i for i in range(len(sizes)) if epoch < epochs[i]]
        # A full batch is the same set in any order: the stored one saves the gather.
        shuffled = [i for i in at_work if section.shuffle and lengths[i] < sizes[i]]
        keys = seeds.keys(seed, "batches", round_index, np.array([clients[i] for i in shuffled], dtype=np.int64), epoch)
        permutations = dict(zip(shuffled, seeds.permutations(keys, [sizes[i] for i in shuffled]), strict=True))
        for i in at_work:
            order = permutations.get(i)
            orders[i].append((np.arange(sizes[i]) if order is None else order)[: met[i]])
            if (missing := met[i] - sizes[i]) > 0:
                start = seeds.key(seed, "fill", round_index, clients[i], epoch)
                extra = seeds.stream(start, missing) % np.uint64(sizes[i])
                orders[i].append(extra.astype(np.int64))
    return [_cut(length, batch, tau, own) for length, batch, tau, own in zip(met, lengths, taus, orders, strict=True)]


def whole(num_examples: int) -> Batches:
    """Return one local step on all examples, in stored order."""
    return Batches(np.arange(num_examples), (0, num_examples))


def _cut(length: int, batch: int, steps: int, epochs: list[Int64s]) -> Batches:
    """Cut epochs of `length` visits each into batches, `steps` of them."""
    bounds = [0]
    while len(bounds) <= steps:
        start = bounds[-1]
        bounds += [*range(start + batch, start + length, batch), start + length]
    del bounds[steps + 1 :]
    order = np.concatenate(epochs) if len(epochs) > 1 else epochs[0]
    return Batches(order[: bounds[-1]], tuple(bounds))
