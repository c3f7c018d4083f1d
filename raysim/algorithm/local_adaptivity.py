"""Divides trained clients' updates by their a_i, if the aggregator is local_adaptivity (server/aggregators/)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from raysim.client.local_training import Trained
from raysim.client.optimizers import choice as optimizers
from raysim.client.section import ClientSection
from raysim.models.layout import Layout
from raysim.models.squared_norms import squared_norms
from raysim.server.accumulator import Divided
from raysim.server.aggregators.local_adaptivity import LocalAdaptivity
from raysim.server.section import ServerSection


def sums_inverses(client: ClientSection, server: ServerSection) -> bool:
    """Whether a_i is a vector, so that trainers must sum it over local steps."""
    if not isinstance(server.aggregator, LocalAdaptivity):
        return False
    return optimizers.make(client.optimizer).divisor is not None


def num_shares(client: ClientSection, server: ServerSection, num_params: int) -> int:
    """Return how many numbers of a client's 1 / a_i are summed: none, one or (P,)."""
    if not isinstance(server.aggregator, LocalAdaptivity) or server.aggregator.correction == "local":
        return 0
    return num_params if sums_inverses(client, server) else 1


def division(client: ClientSection, server: ServerSection, layout: Layout) -> Callable[[Trained], Divided | None]:
    """Return the function from trained clients to their divided updates; to None, if nothing divides them."""
    aggregator = server.aggregator
    if not isinstance(aggregator, LocalAdaptivity):
        return lambda trained: None
    joint, by_vectors = aggregator.correction == "joint", sums_inverses(client, server)

    def divide(trained: Trained) -> Divided:
        updates = trained.updates
        with torch.inference_mode():
            if not by_vectors:
                taus = torch.as_tensor(trained.clients.batches.steps, dtype=torch.float64).unsqueeze(1)
                shares = taus.reciprocal().to(updates.delta.device)
                deltas = updates.delta * shares.to(updates.delta.dtype)
                squares = trained.squared_norms * shares.to(trained.squared_norms.device).square()
            else:
                assert updates.inverses is not None
                shares = updates.inverses.reciprocal()
                deltas = updates.delta * shares
                squares = squared_norms(layout, deltas)
        return Divided(deltas, squares, shares if joint else None)

    return divide
