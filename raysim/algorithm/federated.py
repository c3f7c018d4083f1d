"""Puts client and server together: one round of federated averaging, and of every method built on it, as functions.

    for phase in algorithm.phases:
        broadcast = phase.broadcast(state, ..., sums)    what the cohort receives
        sums     += phase.local(context, ..., chunk)     each chunk: trained -> uploads -> contributions -> sums
    state = algorithm.step(state, sums)                  the server's step

Most algorithms have one phase, in which clients train; Mime, MimeLite and FedDANE first take full gradients, and what
weighs or chooses clients by their losses of the model first takes these. Sums of
different chunks add (server/sums.py) in the order of a fixed tree (cohort/tree.py), wherever they were computed.

Source: Reddi et al. (2021), algorithm 1; docs/algorithms.md, section 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from raysim.algorithm import compressing, encodings, gradient_phase, local_adaptivity, start_losses
from raysim.algorithm.algorithm import Algorithm, PersonalModels, Traffic
from raysim.algorithm.client_state import X0
from raysim.algorithm.configured import ChunkTraining, configured, own_error
from raysim.algorithm.personal import Personal, holding, x0
from raysim.algorithm.phase import Broadcast, LocalContext, LocalResult, Members, Phase
from raysim.algorithm.private import Private
from raysim.algorithm.transforming import Transforming, transformed
from raysim.algorithm.uploads import Attack, attacked, empty_sums, uploads
from raysim.client import transform as transforms
from raysim.client.adversary import Adversary
from raysim.client.corrections import make as corrections
from raysim.client.corrections.correction import ServerStepped
from raysim.client.personalisation import choice as personalisations
from raysim.client.section import ClientSection
from raysim.client.state_vectors import state_vectors
from raysim.cohort.chunks import Chunk
from raysim.cohort.sampler import State
from raysim.config.user_call import called
from raysim.data.on_device import Examples
from raysim.models.model import Model, Weights
from raysim.models.vectors import squared_norm
from raysim.server import fedex, manifest
from raysim.server import step as server_step
from raysim.server.fairness import choice as fair_objectives
from raysim.server.fairness import fairness
from raysim.server.section import ServerSection
from raysim.server.state import ServerState, Tensors
from raysim.server.step import Metrics
from raysim.server.sums import Sums


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
    chooses_clients: bool = False,
    counts: bool = True,
    private: Private | None = None,
    configs: Sequence[ClientSection] = (),
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
        chooses_clients: the sampler chooses by losses the clients that train.
        counts: whether the task counts correct predictions.
        private: the mechanism of privacy and its accountant, if there are any.
        configs: the configurations of FedEx, changes of `client`; none without it.
    """
    correction = corrections.make(client.correcting)
    said = "" if client.correcting is None else corrections.CORRECTIONS.title(client.correcting)
    num_labels = 0 if label_population is None else len(label_population)
    members = Members(client, seed, adversary, adversaries)
    kind = personalisations.make(client, model.params)
    unsent = model.params.only(() if kind is None else kind.unsent)
    sent_groups = model.params.only(set(model.params.names) - set(unsent.names))
    releasing, encoding = encodings.made(server, private, sent_groups)
    server_side = server_step.make(server, model.params, cohort_size, label_population, counts, releasing)
    attack = None if adversary is None else Attack(adversary, adversaries, sent_groups, seed)
    transforming = Transforming(transforms.make(client.transform), model.params, sent_groups, seed)
    compress = compressing.sending(client.compression, model.params, sent_groups, seed)
    downlink = compressing.downlink(server.compression, sent_groups, unsent, seed)
    keeps_rest = client.compression is not None and client.compression.error_feedback
    own = kind is not None and kind.after is not None
    vectors = state_vectors(correction, transforming.transforms, own, keeps_rest)
    personal = None if kind is None else Personal(kind, client, model.params, members, correction, vectors)
    each = configured(configs or (client,), server, members, model.params, num_labels)
    training = ChunkTraining(each, correction, vectors, model.params, personal)
    fair = fair_objectives.make(server.fairness)
    takes_losses = fair is not None or chooses_clients

    def init(weights: Weights, sampler: State) -> ServerState:
        state = server_side.init(weights, sampler)
        clients = manifest.empty() if vectors.num else {}
        half = correction.server.init(weights.params)
        if kind is not None and kind.begins_at_x0:
            half = {**half, X0: weights.params}
        state = replace(state, correction=half, clients=clients, fairness=fair.init(population) if fair else {})
        state = replace(state, fedex=fedex.init(len(configs)) if configs else {})
        return replace(state, received=downlink.init(origin(state)))

    def of_gradients(earlier: Sequence[Sums]) -> Sums | None:
        return earlier[-1] if correction.sent.full_gradients and len(earlier) > takes_losses else None

    def origin(state: ServerState) -> Tensor:
        """Return the vector that clients are to start at."""
        name = correction.server.origin
        return state.weights.params if name is None else state.correction[name]

    def received(state: ServerState) -> Tensor:
        return downlink.received(state, origin(state))

    def plain_broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        lr, limits = client.lr_at(state.round), server_side.limits(state)
        left_out = frozenset(position for earlier in sums for position in earlier.rejected)
        fair_weights = {}
        if fair is not None and sums:
            wanted = set(positions) - left_out
            told = [one for one in start_losses.taken(sums) if one.position in wanted]
            each = zip(told, fair.weigh(state.fairness, told, lr), strict=True)
            fair_weights = {one.position: one_weight for one, one_weight in each}
        drawn: dict[int, int] = {}
        if configs:
            drawn = dict(zip(positions, fedex.drawn(state.fedex, seed, state.round, positions).tolist(), strict=True))
        return Broadcast(
            state.round,
            replace(state.weights, params=received(state)),
            lr,
            limits,
            repeats,
            len(sums),
            left_out=left_out,
            fair_weights=fair_weights,
            configs=drawn,
        )

    def of_losses(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        sent = plain_broadcast(state, repeats, positions, sums)
        # Of the model, where clients start from another vector.
        return sent if correction.server.origin is None else replace(sent, weights=state.weights)

    def broadcast(
        state: ServerState, repeats: Mapping[int, int], positions: Sequence[int], sums: Sequence[Sums]
    ) -> Broadcast:
        mean = gradient_phase.mean(of_gradients(sums), state.weights.params)
        beside = called(f"{said}: Sent.down, in round {state.round},", correction.sent.down, state.correction, mean)
        return replace(
            plain_broadcast(state, repeats, positions, sums),
            beside={**beside, **x0(state)},
            places=manifest.places(state.clients, positions) if vectors.num else {},
        )

    def local(context: LocalContext, examples: Examples, sent: Broadcast, chunk: Chunk) -> LocalResult:
        padding, id_of = examples.dataset.y.padding, examples.dataset.train.id_of
        num_shares = local_adaptivity.num_shares(client, server, sent.weights.params)
        num_encoded = 0 if encoding is None else encoding.length
        sums = empty_sums(model, server, correction, num_labels, sent.weights, num_shares, num_encoded, len(configs))
        kept = list[Tensor]()
        notes = (notes_clients or fair is not None) and not sent.measures
        for position in chunk:
            if position in sent.left_out:
                sums.reject(position)
        for its, states, computed in training.train(context, examples, sent, chunk):
            # With the learning rate of these clients.
            sent = states.sent
            outgoing = states.outgoing(computed)
            trained, of_transforms = transformed(transforming, sent, outgoing, states.read_of_transforms, id_of)
            of_correction, changes = states.after(computed)
            received = uploads(trained, changes)
            if attack is not None:
                trained, received = attacked(attack, model.params, sent.round, trained, received)
            contributions = [its.contribution(one, sent, padding, id_of) if one.finite else None for one in received]
            compressed, rests = compress(sent, trained, contributions, states.read_rest)
            states.write(computed, of_correction, of_transforms, rests)
            messages: list[Tensor | None] = [None] * len(received)
            if encoding is not None:
                messages, compressed = encodings.encoded(encoding, model.params, sent, received, contributions)
            made, squares = trained.updates, trained.squared_norms
            for row, (one, included) in enumerate(zip(received, contributions, strict=True)):
                message = messages[row]
                if (scored := own_error(context, sent, computed, row)) is not None:
                    sums.score(its.number, *scored, sent.repeats.get(one.client.position, 1))
                if included is None:
                    sums.reject(one.client.position, message)
                    continue
                if message is not None:
                    sums.send(message, included.count)
                if one.change is not None:
                    sums.change(one.change)
                if context.keeps_updates:
                    scale = included.judged.scale
                    vector, norms = one.delta * scale, squares[row] * scale**2
                    if compressed is not None:
                        vector, norms = compressed.vectors[row], compressed.squared_norms[row]
                    kept.extend([vector] * included.count)
                    sums.note(one.client.position, included, norms)
                elif notes:
                    sums.note(one.client.position, included, None)
            divided = its.divide(trained)
            sums.include(contributions, made.delta, squares, made.buffers, made.counters, divided, compressed)
        return LocalResult(sums.total(), tuple(kept))

    def step(state: ServerState, sums: Sequence[Sums], aggregate: Tensor | None) -> tuple[ServerState, Metrics]:
        *earlier, last = sums
        gradient, settle = gradient_phase.mean(of_gradients(earlier), state.weights.params), correction.server.settle

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

        seen_before = sum(made.seen for made in earlier)
        adjusted = last if fair is None else fairness.divided(last)
        before = replace(state, weights=replace(state.weights, params=origin(state)))
        stepped, metrics = server_side.step(
            before, adjusted, aggregate, None if settle is None else corrected, seen_before
        )
        stayed = stepped.weights is before.weights
        stepped = holding(unsent, state, stepped)
        if unsent.names and not stayed:
            metrics = {**metrics, "params_norm": math.sqrt(squared_norm(stepped.weights.params))}
        if stayed:
            stepped = replace(stepped, weights=state.weights)
        if client.compression is not None:
            metrics = {**metrics, **compressing.figures(client.compression, last)}
        if not stayed:
            stepped = replace(stepped, received=downlink.after(state, origin(stepped)))
        if correction.server.figures is not None:
            metrics = {**metrics, **correction.server.figures(stepped.weights.params, model.params)}
        if private is not None:
            metrics = {**metrics, **private.spent(state.round + 1)}
        if configs:
            shares, figures = fedex.step(state.fedex, state.round, last.scored)
            stepped, metrics = replace(stepped, fedex=shares), metrics | figures
        if fair is None:
            return stepped, metrics
        after, figures = told(state, earlier, last)
        return replace(stepped, fairness=after), metrics | figures

    def told(state: ServerState, earlier: Sequence[Sums], last: Sums) -> tuple[Tensors, Metrics]:
        """The fair objective's next state, and its figures of the clients that were not rejected."""
        assert fair is not None
        weights = {fact.position: fact.weight for fact in last.facts}
        rows = [one for one in start_losses.taken(earlier) if one.position in weights]
        figures = fairness.figures(rows, [fairness.FairWeight(weights[one.position]) for one in rows])
        return (fair.learn(state.fairness, rows) if fair.learn and rows else state.fairness), figures

    def average(state: ServerState) -> Weights | None:
        name = correction.server.average
        return None if name is None else replace(state.weights, params=state.correction[name])

    phases = [Phase(broadcast, local)]
    if correction.sent.full_gradients:
        phases.insert(0, Phase(plain_broadcast, gradient_phase.make(server, model.params, members), "gradients"))
    if takes_losses:
        phases.insert(0, Phase(of_losses, start_losses.make(server, members), "losses"))
    if encoding is not None:
        update_bytes = encodings.num_bytes(encoding)
    elif client.compression is not None:
        update_bytes = compressing.num_bytes(client.compression, sent_groups)
    else:
        update_bytes = transforms.num_bytes(transforming.transforms, sent_groups)
    zeros = torch.zeros(model.params.size)
    sent_down = correction.sent.down(correction.server.init(zeros), zeros)
    down = sum(vector.numel() == model.params.size for vector in sent_down.values())
    # A vector 1 / a_i is of the model's size; a number is none.
    shares = local_adaptivity.num_shares(client, server, zeros) // len(zeros)
    up = correction.sent.sums_changes + correction.sent.full_gradients + shares
    traffic = Traffic(
        down,
        up,
        unsent.num_values,
        compressing.num_bytes(server.compression, sent_groups),
        update_bytes,
    )

    models = None if personal is None else PersonalModels(personal.scored, personal.of_client, vectors.own)
    return Algorithm(init, tuple(phases), step, average, vectors.num, traffic, members, received, models)
