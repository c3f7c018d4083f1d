"""Adds a correction to an algorithm: its vectors beside the model, the server's half, a phase of full gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.algorithm import gradient_phase
from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.outgoing import Outgoing
from raysim.algorithm.participants import Participants
from raysim.algorithm.phase import Phase
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import ServerStepped
from raysim.client.section import ClientSection
from raysim.cohort.sampler import State
from raysim.config.user_call import called
from raysim.models.layout import Layout
from raysim.models.model import Weights
from raysim.server.accumulator import Accumulator
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics, Server, Settle
from raysim.server.sums import Sums


def with_correction(
    base: Algorithm,
    client: ClientSection,
    server: ServerSection,
    server_side: Server,
    participants: Participants,
    layout: Layout,
) -> Algorithm:
    """Return the algorithm with the correction of `client`, which has one.

    Args:
        base: the algorithm; its last phase is training, and what trains there corrects.
        client, server: their sections of the experiment.
        server_side: the functions of `server`.
        participants: the clients.
        layout: of the parameters.
    """
    assert client.correcting is not None
    correction, title = corrections.make(client.correcting), corrections.CORRECTIONS.title(client.correcting)
    half, down = correction.server, correction.exchange.down
    *before_training, training = base.phases

    def init(weights: Weights, sampler: State) -> ServerState:
        return replace(base.init(weights, sampler), correction=half.init(weights.params))

    def origin(state: ServerState) -> Tensor:
        """Return the vector that clients start at."""
        return base.received(state) if half.origin is None else state.correction[half.origin]

    def from_origin(
        broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        return replace(broadcast, weights=replace(broadcast.weights, params=origin(state)))

    def with_vectors(
        broadcast: Broadcast, state: ServerState, positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        mean = mean_gradient(state, sums)
        return replace(
            broadcast, beside=called(f"{title}: Exchange.down, in round {state.round},", down, state.correction, mean)
        )

    def mean_gradient(state: ServerState, earlier: Sequence[Sums]) -> Tensor | None:
        # A round without clients has one phase.
        there = correction.exchange.full_gradients and len(earlier) > len(before_training)
        return gradient_phase.mean(earlier[-1] if there else None, state.weights.params)

    def settling(gradient: Tensor | None) -> Settle | None:
        if half.settle is None:
            return None
        settle = half.settle

        def settled(before: ServerState, made: Sums, params: Tensor, g: Tensor) -> tuple[Tensor, Tensors]:
            stepped = ServerStepped(
                state=before.correction,
                params=params,
                g=g,
                clients=made.clients,
                population=participants.population,
                lr=client.lr_at(before.round),
                tau=made.steps / made.clients,
                changes=made.changes,
                gradient=gradient,
                layout=layout,
                weighted_tau=made.weighted_steps / made.weight,
                server_lr=server.lr_at(participants.cohort_size(before.round), before.round),
            )
            after = called(f"{title}: ServerHalf.settle, in round {before.round},", settle, stepped)
            return after.params, after.state

        return settled

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        *earlier, last = sums
        before = replace(state, weights=replace(state.weights, params=origin(state)))
        settle, seen = settling(mean_gradient(state, earlier)), sum(made.seen for made in earlier)
        after, metrics = server_side.step(before, last, aggregate, settle, seen)
        return (replace(after, weights=state.weights) if after.weights is before.weights else after), metrics

    def average(state: ServerState) -> Weights | None:
        return None if half.average is None else replace(state.weights, params=state.correction[half.average])

    plain = training if half.origin is None else training.sending(from_origin)
    phases = [*before_training, plain.sending(with_vectors)]
    if correction.exchange.full_gradients:
        gradients = gradient_phase.make(server, layout, base.members)
        phases.insert(-1, Phase(plain.broadcast, gradients, "gradients"))
    zeros = torch.zeros(layout.size)
    num_down = sum(vector.numel() == layout.size for vector in down(half.init(zeros), zeros).values())
    num_up = correction.exchange.sums_changes + correction.exchange.full_gradients
    traffic = base.traffic._replace(down=base.traffic.down + num_down, up=base.traffic.up + num_up)
    return base._replace(init=init, phases=tuple(phases), step=step, average=average, traffic=traffic, received=origin)


def with_correction_figures(
    base: Algorithm, figures: Callable[[Tensor, Layout], Mapping[str, float]], layout: Layout
) -> Algorithm:
    """Return the algorithm with a correction's figures of the model after each round."""

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        after, metrics = base.step(state, sums, aggregate)
        return after, {**metrics, **figures(after.weights.params, layout)}

    return base._replace(step=step)


def correct_updates(outgoing: Outgoing) -> Outgoing:
    """Stage: the updates that the correction sends, and the next states of its clients."""
    sent = outgoing.states.with_uploads(outgoing.trained)
    of_correction, changes = outgoing.states.after(outgoing.trained)
    return outgoing._replace(sent=sent, of_correction=of_correction, changes=changes)


def add_changes(sums: Accumulator, outgoing: Outgoing) -> None:
    """Add the changes of the states of clients that are not rejected."""
    assert outgoing.contributions is not None
    for change, included in zip(outgoing.changes, outgoing.contributions.included.tolist(), strict=True):
        if change is not None and included:
            sums.change(change)
