"""Estimates what a choice by few validation clients costs: the choice is repeated on bootstrap samples of them.

A score is a mean over seeds of sum_k a_k / sum_k n_k, with a_k the hits (or summed loss) and n_k the examples of client
k, or its places that count. A sample draws m of the K clients with replacement, the same for all configurations, and
chooses the best configuration by it. Its regret is how much worse the chosen one is than the best, both by all K
clients.

Source: Kuo et al. (2023), who show how the choice becomes worse with fewer validation clients.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tuning.client_sums import ClientSums

DRAWS = 1_000
EQUAL = 1e-12
"""Scores that differ by less, relative to them, are sums of the same in another order."""

SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
"""Numbers of clients of a sample, beside all of them."""


@dataclass(frozen=True)
class Regret:
    """The regret of choices by samples of this many clients.

    mean, high: of the regret: its mean, and what 95 % of the choices stay below. again: the share of the samples that
    choose the study's best, which scores with noise may have chosen.
    """

    clients: int
    mean: float
    high: float
    again: float


def bootstrap(scores: Sequence[Sequence[ClientSums]], is_maximised: bool, best: int | None = None) -> list[Regret]:
    """Return the regret for samples of 1, 2, 5, ... clients, and last for as many as there are.

    Empty if configurations were measured on other clients or examples: then no sample is the same for all.

    Args:
        scores: by configuration, in the order in which equal ones are preferred, and seed. is_maximised: whether a
            score is to be large. best: the place of the study's best; None: of the best by all clients.

    >>> good, bad = {"a": (9.0, 10), "b": (9.0, 10)}, {"a": (1.0, 10), "b": (1.0, 10)}
    >>> bootstrap([[good], [bad]], is_maximised=True)[-1]
    Regret(clients=2, mean=0.0, high=0.0, again=1.0)
    """
    if any(_sizes(of) != _sizes(scores[0]) for of in scores):
        return []
    groups: dict[tuple[str, ...], list[int]] = {}
    for seed, of_seed in enumerate(scores[0]):
        groups.setdefault(tuple(of_seed), []).append(seed)
    number = min(map(len, groups))
    found = []
    for size in (*(size for size in SIZES if size < number), number):
        # Every size has the draws of its own generator, so another number of sizes changes none.
        random = np.random.default_rng([size, DRAWS])
        whole, drawn = np.zeros(len(scores)), np.zeros((len(scores), DRAWS))
        for clients, seeds in groups.items():
            # Seeds that evaluate the same clients share a sample: then its errors do not average out.
            sums = np.array([[sum(of[seed][name][0] for seed in seeds) for name in clients] for of in scores])
            sizes = np.array([scores[0][seeds[0]][name][1] for name in clients], np.float64)
            counts = random.multinomial(size, np.full(len(clients), 1 / len(clients)), DRAWS).T
            whole += sums.sum(axis=1) / sizes.sum()
            drawn += (sums @ counts) / (sizes @ counts)
        sign = 1 if is_maximised else -1
        whole, drawn = sign * whole / len(scores[0]), sign * drawn
        chosen, by_all = _largest(drawn), int(_largest(whole[:, np.newaxis])[0])
        # Differences of equal scores are those of rounding, and are none.
        regrets = np.where(chosen == by_all, 0.0, whole.max() - whole[chosen])
        again = chosen == (by_all if best is None else best)
        found.append(Regret(size, regrets.mean().item(), np.quantile(regrets, 0.95).item(), again.mean().item()))
    return found


def _largest(scores: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Return the place of each column's largest score, of equal ones the first: also of those that rounding parts."""
    largest = scores.max(axis=0)
    places: npt.NDArray[np.int64] = (scores >= largest - EQUAL * np.abs(largest)).argmax(axis=0)
    return places


def _sizes(of: Sequence[ClientSums]) -> list[dict[str, float]]:
    """Return what each client weighs that a configuration was measured on, by seed."""
    return [{client: size for client, (_, size) in of_seed.items()} for of_seed in of]
