"""Pachinko allocation: clients that prefer some coarse labels, and in each of them some fine ones."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field as Key

from raysim.config.section import Section
from raysim.data.partitions.cut import even_sizes
from raysim.data.partitions.prior import ClassPiles
from raysim.errors import ExperimentError
from raysim.seeds import Int64s, generator, key


class Pachinko(Section):
    """Every client draws a multinomial over the coarse labels, ~ Dir(alpha), and for each of them one over its fine
    labels, ~ Dir(beta); each example falls through both, without replacement.

    A fine label without examples left is taken out of its multinomial, which is renormalised, and likewise a coarse
    label all of whose fine labels ran out. Sizes differ by at most one: CIFAR-100's 50,000 examples give 500 clients
    100 each. Source: Reddi et al. 2021 (Adaptive Federated Optimization), appendix F, algorithm 8; after Li and
    McCallum 2006.
    """

    name: Literal["pachinko"] = "pachinko"
    alpha: float = Key(0.1, gt=0, description="Concentration of the distribution over coarse labels.")
    beta: float = Key(10.0, gt=0, description="Concentration of the distributions over fine labels.")


def pachinko(
    labels: Int64s, num_clients: int, seed: int, alpha: float, beta: float, coarse_of: Int64s | None
) -> list[Int64s]:
    """See `Pachinko`.

    Args:
        labels: fine labels, (examples,).
        num_clients: how many.
        seed: the data's seed.
        alpha, beta: see `Pachinko`.
        coarse_of: the coarse label of every fine one, (classes,).

    Raises:
        ExperimentError: a source whose labels have no hierarchy.
    """
    if coarse_of is None:
        raise ExperimentError(
            "data.partition 'pachinko' needs coarse and fine labels, which only cifar100 (labels = 'fine') has here"
        )
    fine = np.unique(labels)
    piles = ClassPiles(labels, seed, "partition/pachinko/pile")
    _, parent = np.unique(coarse_of[fine], return_inverse=True)
    num_coarse = int(parent.max()) + 1
    parts = []
    for client, size in enumerate(even_sizes(len(labels), num_clients).tolist()):
        draws = generator(key(seed, "partition/pachinko/client", client))
        top = draws.dirichlet(np.full(num_coarse, alpha))
        below = [draws.dirichlet(np.full(int((parent == c).sum()), beta)) for c in range(num_coarse)]
        wanted = np.zeros(len(fine), np.int64)
        while (missing := size - int(wanted.sum())) > 0:
            # Drawing all at once, dropping what a class does not have and drawing the dropped again is the same law as
            # one by one: see dirichlet.
            weights = _leaves(top, below, parent, piles.remaining - wanted, alpha, beta, draws)
            wanted = np.minimum(wanted + draws.multinomial(missing, weights), piles.remaining)
        parts.append(piles.take(wanted))
    return parts


def _leaves(
    top: npt.NDArray[np.float64],
    below: list[npt.NDArray[np.float64]],
    parent: Int64s,
    left: Int64s,
    alpha: float,
    beta: float,
    draws: np.random.Generator,
) -> npt.NDArray[np.float64]:
    """The probability of each fine label, of those with examples left, (fine labels,)."""
    open_coarse = np.bincount(parent, weights=left > 0, minlength=len(top)) > 0
    upper = _renormalised(top, open_coarse, alpha, draws)
    leaves = np.zeros(len(left))
    for c in np.flatnonzero(open_coarse):
        members = parent == c
        leaves[members] = upper[c] * _renormalised(below[c], left[members] > 0, beta, draws)
    leaves /= leaves.sum()
    return leaves


def _renormalised(
    weights: npt.NDArray[np.float64], there: npt.NDArray[np.bool_], parameter: float, draws: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Weights over what is there; drawn anew where all weight fell on what is not (see prior.renormalise)."""
    kept: npt.NDArray[np.float64] = np.where(there, weights, 0.0)
    if kept.sum() < np.finfo(np.float64).tiny:
        kept[there] = draws.dirichlet(np.full(int(there.sum()), parameter))
    kept /= kept.sum()
    return kept
