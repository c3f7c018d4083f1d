"""Says how short batches are, and counts the local steps of short ones that a round is expected to have.

Clients' last batches are short, and a local step is recorded once for each length. So what a recording of a short
length is worth depends on how often the length comes. The count follows from experiment and data alone, never from
workers, time or the number of rounds: whether a local step is recorded decides its last digits.
"""

from __future__ import annotations

import numpy as np

from raysim.arrays import Int64s
from raysim.client.section import ClientSection
from raysim.client.work import RoundWork
from raysim.data.dataset import FederatedDataset
from raysim.experiment.experiment import Experiment

MOST_CLIENTS = 10_000
"""Clients whose sizes stand for those of all."""


def steps_of_each(experiment: Experiment, dataset: FederatedDataset) -> float:
    """Return the local steps that the first round is expected to have of each short length, the mean over the lengths.

    Every client counts as equally likely to be drawn. 0 where no batch is short.
    """
    population = len(dataset.train)
    clients = np.arange(0, population, max(1, -(-population // MOST_CLIENTS)))
    sizes = dataset.train.sizes(clients)
    sections = experiment.configurations or (experiment.training,)
    each = [_short(section, sizes, experiment.seed, clients) for section in sections]
    lengths, steps = (np.concatenate(column) for column in zip(*each, strict=True))
    if not steps.any():
        return 0.0
    drawn = experiment.cohort.size_at(population)(0) / (len(clients) * len(sections))
    return float(drawn * steps.sum() / len(np.unique(lengths[steps > 0])))


def shortest(experiment: Experiment, dataset: FederatedDataset) -> int:
    """Return the fewest examples that a local batch of a training client may have, in any round."""
    sizes = dataset.train.sizes()
    sections = experiment.configurations or (experiment.training,)
    works = (
        section.work_at(index) for section in sections for index in {0, *(change.round for change in section.schedule)}
    )
    return min(int(_last(work, sizes).min()) for work in works)


def _short(section: ClientSection, sizes: Int64s, seed: int, clients: Int64s) -> tuple[Int64s, Int64s]:
    """Return the length of each client's last batch of an epoch, and how many such local steps it takes, where that is
    short."""
    work = section.work_at(0)
    batch, steps_an_epoch, _ = work.epoch(sizes)
    length = _last(work, sizes)
    epochs = work.steps(sizes, seed, 0, clients) // steps_an_epoch
    return length, np.where(length < batch, epochs, 0)


def _last(work: RoundWork, sizes: Int64s) -> Int64s:
    """Return the length of each client's last batch of an epoch."""
    batch, steps_an_epoch, an_epoch = work.epoch(sizes)
    length: Int64s = an_epoch - batch * (steps_an_epoch - 1)
    return length
