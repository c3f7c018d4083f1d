"""Puts client and server together: one round of federated averaging, and of every method built on it, as functions.

    for phase in algorithm.phases:
        broadcast = phase.broadcast(state, ..., sums)    what the cohort receives
        sums     += phase.local(context, ..., chunk)     each chunk: trained -> uploads -> contributions -> sums
    state = algorithm.step(state, sums)                  the server's step

Most algorithms have one phase, in which clients train; Mime, MimeLite and FedDANE first take full gradients. Sums of
different chunks add (server/sums.py) in the order of a fixed tree (cohort/tree.py), wherever they were computed.

Source: Reddi et al. (2021), algorithm 1; docs/algorithms.md, section 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from raysim.algorithm import gradient_phase, local_adaptivity
from raysim.algorithm.client_state import LocalStates
from raysim.algorithm.phase import Broadcast, LocalContext, LocalResult, Members, Phase
from raysim.algorithm.transforming import Transforming, transformed
from raysim.algorithm.uploads import Attack, attacked, contribution_rule, empty_sums, uploads
from raysim.client import local_training
from raysim.client import transform as transforms
from raysim.client.adversary import Adversary
from raysim.client.corrections import make as corrections
from raysim.client.corrections.correction import ServerStepped
from raysim.client.local_training import Trained, with_windows
from raysim.client.section import ClientSection
from raysim.client.state_vectors import state_vectors
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.config.user_call import called
from raysim.data.on_device import Examples
from raysim.models.model import Model, Weights
from raysim.server import manifest
from raysim.server import step as server_step
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums


class Algorithm(NamedTuple):
    """An algorithm as functions: all state enters and leaves through their arguments.

    `step` takes the sums of every phase and, if a rule needs every update, the vector that replaces the mean; it also
    returns the round's metrics. `average`: the weights to evaluate beside the state's. `state_vectors`: the number of
    vectors (P,) that a client keeps between rounds. `traffic`: numbers of vectors of the model's size that a client
    receives and sends beside the model. `members`: the clients of a chunk.
    """

    init: Callable[[Weights, State], ServerState]
    phases: tuple[Phase, ...]
    step: Callable[[ServerState, Sequence[Sums], Tensor | None], tuple[ServerState, Metrics]]
    average: Callable[[ServerState], Weights | None]
    state_vectors: int
    traffic: tuple[int, int]
    members: Members


def federated(
    client: ClientSection,
    server: ServerSection,
    model: Model,
    seed: int,
    cohort_size: Callable[[int], float],
    population: int,
    label_population: Tensor | None = None,
    adversary: Adversary | None = None,
    adversaries: frozenset[int] = frozenset(),
    notes_clients: bool = False,
    counts: bool = True,
) -> Algorithm:
    """Generalised federated averaging: corrected local training, weighted mean, server optimizer.

    Args:
        client, server: their sections of the experiment.
        model: layouts.
        seed: addresses the clients' draws.
        cohort_size: the configured size of the cohort after t finished rounds.
        population: N, the number of training clients.
        label_population: label counts of all training clients, for the comparison with the cohort's; or None.
        adversary, adversaries: the attack, and the positions of its clients.
        notes_clients: the sums list the facts of every client.
        counts: whether the task counts correct predictions.
    """
    correction = corrections.make(client.correcting)
    said = "" if client.correcting is None else corrections.CORRECTIONS.title(client.correcting)
    server_side = server_step.make(server, model.params, cohort_size, label_population, counts)
    num_labels = 0 if label_population is None else len(label_population)
    members = Members(client, seed, adversary, adversaries)
    attack = None if adversary is None else Attack(adversary, adversaries, seed)
    contribution = contribution_rule(client, server, correction, num_labels)
    divide = local_adaptivity.division(server, model.params)
    transforming = Transforming(transforms.make(client.transform), model.params, seed)
    vectors = state_vectors(correction, transforming.transforms)

    def init(weights: Weights, sampler: State) -> ServerState:
        state = server_side.init(weights, sampler)
        clients = manifest.empty() if vectors.num else {}
        return replace(state, correction=correction.server.init(weights.params), clients=clients)

    def received(state: ServerState) -> Weights:
        origin = correction.server.origin
        return state.weights if origin is None else replace(state.weights, params=state.correction[origin])

    def plain_broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        lr, limits = client.lr_at(state.round), server_side.limits(state)
        return Broadcast(state.round, received(state), lr, limits, repeats, phase=len(sums))

    def broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        mean = gradient_phase.mean(sums, state.weights.params)
        return replace(
            plain_broadcast(state, repeats, positions, sums),
            beside=called(f"{said}: Sent.down, in round {state.round},", correction.sent.down, state.correction, mean),
            places=manifest.places(state.clients, positions) if vectors.num else {},
            left_out=frozenset(position for earlier in sums for position in earlier.rejected),
        )

    def local(context: LocalContext, examples: Examples, sent: Broadcast, chunk: Chunk) -> LocalResult:
        states = LocalStates(correction, vectors, model.params, context, sent, chunk)
        padding, id_of = examples.dataset.y.padding, examples.dataset.train.id_of
        num_shares = local_adaptivity.num_shares(client, server, sent.weights.params)
        sums, kept = empty_sums(model, server, correction, num_labels, sent.weights, num_shares), list[Tensor]()
        notes = notes_clients and not sent.measures
        for position in chunk:
            if position in sent.left_out:
                sums.reject(position)
        for computed in local_training_of(states, examples):
            outgoing = states.outgoing(computed)
            trained, of_transforms = transformed(transforming, sent, outgoing, states.read_of_transforms, id_of)
            received = uploads(trained, states.write_after(computed, of_transforms))
            if attack is not None:
                trained, received = attacked(attack, model.params, sent.round, trained, received)
            contributions = [contribution(one, sent, padding, id_of) if one.finite else None for one in received]
            for row, (one, included) in enumerate(zip(received, contributions, strict=True)):
                if included is None:
                    sums.reject(one.client.position)
                    continue
                if one.change is not None:
                    sums.change(one.change)
                if context.keeps_updates:
                    kept.extend([one.delta * included.judged.scale] * included.count)
                    sums.note(one.client.position, included, trained.squared_norms[row])
                elif notes:
                    sums.note(one.client.position, included, None)
            made, squares = trained.updates, trained.squared_norms
            divided = divide(trained)
            sums.include(contributions, made.delta, squares, made.buffers, made.counters, divided)
        return LocalResult(sums.total(), tuple(kept))

    def local_training_of(states: LocalStates, examples: Examples) -> Iterable[Trained]:
        context, sent, half = states.context, states.sent, correction.client
        if context.trained is not None:
            return [context.trained]
        clients = members.of(examples, sent, states.chunk)
        if half.bend is not None or half.point is not None:
            clients = [replace(member, sent=sent.beside) for member in clients]
        if half.windows is not None:
            clients = [with_windows(half.windows, client.work_at(sent.round), sent.round, member) for member in clients]
        prepared = states.prepared if states.prepares else None
        start = None if half.start is None else half.start(sent.beside)
        return local_training.train(context.train, sent.weights, clients, sent.lr, model.params, prepared, start)

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        gradient, settle = gradient_phase.mean(sums[:-1], state.weights.params), correction.server.settle

        def corrected(before: ServerState, made: Sums, params: Tensor, g: Tensor) -> tuple[Tensor, Tensors]:
            assert settle is not None
            lr, tau = client.lr_at(before.round), made.steps / made.clients
            server_lr = server.lr_at(cohort_size(before.round), before.round)
            stepped = ServerStepped(
                state=before.correction,
                params=params,
                g=g,
                clients=made.clients,
                population=population,
                lr=lr,
                tau=tau,
                changes=made.changes,
                gradient=gradient,
                layout=model.params,
                weighted_tau=made.weighted_steps / made.weight,
                server_lr=server_lr,
            )
            after = called(f"{said}: ServerHalf.settle, in round {before.round},", settle, stepped)
            return after.params, after.state

        seen_before = sum(made.seen for made in sums[:-1])
        before = replace(state, weights=received(state))
        after, metrics = server_side.step(
            before, sums[-1], aggregate, None if settle is None else corrected, seen_before
        )
        if not sums[-1].clients:
            after = replace(after, weights=state.weights)
        if correction.server.figures is not None:
            metrics = {**metrics, **correction.server.figures(after.weights.params, model.params)}
        return after, metrics

    def average(state: ServerState) -> Weights | None:
        name = correction.server.average
        return None if name is None else replace(state.weights, params=state.correction[name])

    phases = [Phase(broadcast, local)]
    if correction.sent.full_gradients:
        phases.insert(0, Phase(plain_broadcast, gradient_phase.make(server, model.params, members)))
    zeros = torch.zeros(model.params.size)
    sent_down = correction.sent.down(correction.server.init(zeros), zeros)
    down = sum(vector.numel() == model.params.size for vector in sent_down.values())
    traffic = down, correction.sent.sums_changes + correction.sent.full_gradients
    return Algorithm(init, tuple(phases), step, average, vectors.num, traffic, members)
