"""Puts a mechanism of privacy together with how clients are drawn, and counts what its rounds tell of a client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from raysim.algorithm.algorithm import Algorithm
from raysim.client.personalisation import choice as personalisations
from raysim.client.section import ClientSection
from raysim.cohort.section import CohortSection
from raysim.config.own_figures import joined
from raysim.models.layout import Layout
from raysim.server.privacy import choice
from raysim.server.privacy.accountant import Accountant, ahead, along, is_rounded
from raysim.server.privacy.mechanism import Mechanism, Sampling
from raysim.server.section import ServerSection
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums

NOT_PRIVATE = (
    "figures of rounds (loss, accuracy, norms, clipped_fraction, signal_to_noise and others) have no noise",
    "scores of evaluations, and the rows of clients, have no noise",
    "the ids of clients in records and messages",
    "whatever was chosen by runs on the same clients, such as learning rates",
)
"""What a run writes that the guarantee does not cover."""


class Private(NamedTuple):
    """mechanism: what the server knows of a round. accountant: of its noise; None: there is none.

    spent: from the number of finished rounds to the metrics of what they told.
    """

    mechanism: Mechanism
    accountant: Accountant | None
    spent: Callable[[int], dict[str, float | None]]

    def record(self, rounds: int) -> dict[str, Any]:
        """Return what experiment.json says of the guarantee of so many rounds."""
        accountant = self.accountant
        if accountant is None:
            return {"event": None, "neighbours": None, "private": [], "not_private": ["updates have no noise"]}
        _, event, count = accountant.best(rounds)
        return {
            "event": f"{count} x {event.text}",
            "neighbours": accountant.neighbours,
            "accountant": accountant.name,
            "delta": accountant.delta,
            "noise_multiplier": accountant.noise_multiplier,
            "private": [accountant.released],
            "not_private": list(NOT_PRIVATE),
        }


def make(
    client: ClientSection,
    server: ServerSection,
    cohort: CohortSection,
    population: int,
    rounds: int,
    layout: Layout,
    dtype: torch.dtype,
    seed: int,
) -> Private | None:
    """Return the mechanism of `server.privacy`; None: there is none.

    Args:
        client, server, cohort: their sections of the experiment.
        population: N, the number of training clients.
        rounds: of the run.
        layout, dtype: of the model.
        seed: addresses the noise.
    """
    section, clip = server.privacy, server.clip
    if section is None:
        return None
    assert clip is not None
    drawn, size_at = cohort.rule.drawn, cohort.size_at(population)
    sampling = Sampling(population, size_at, *(drawn or ()))
    kind = personalisations.make(client, layout)
    sent_groups = layout.only(set(layout.names) - set(() if kind is None else kind.unsent))
    mechanism = choice.make(section, sampling, clip, sent_groups, dtype, seed)
    if not section.noised:
        return Private(mechanism, None, lambda rounds: {"epsilon": None})
    accountant = choice.accountant(section, sampling, mechanism)
    is_smooth = _is_smooth(accountant, rounds)
    after = ahead(along(accountant.epsilon, rounds) if is_smooth else accountant.epsilon)

    def spent(done: int) -> dict[str, float | None]:
        epsilon: dict[str, float | None] = {"epsilon": after(done)}
        return epsilon if section.epsilon is None else {**epsilon, "epsilon_next": after(done + 1)}

    return Private(mechanism, accountant, spent)


def with_privacy_account(base: Algorithm, private: Private) -> Algorithm:
    """Return the algorithm with the metrics of what all rounds so far told."""

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        return after, joined(metrics, private.spent(state.round + 1))

    return base._replace(step=step)


def _is_smooth(accountant: Accountant, rounds: int) -> bool:
    """Whether each round adds one more of the same sampled event, so that epsilon has no steps; and is slow to compute.

    Epsilon of banded noise rises in one round of each `groups`, and that of a tree with the nodes that it uses.
    """
    z = accountant.noise_multiplier
    if z is None or accountant.name == "rdp" or is_rounded(rounds, accountant.delta):
        return False
    event = accountant.events(z, 1)[0][0]
    return event.probability is not None and all(accountant.events(z, n) == ((event, n),) for n in (1, 2, rounds))
