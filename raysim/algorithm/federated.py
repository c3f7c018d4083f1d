"""Puts a run's algorithm together: FedAvg (fedavg.py), and around it what the experiment adds to it.

Each addition is a function from an algorithm to an algorithm, with what only the server and the broadcasts know of it;
what workers do for it is a stage of a chunk's clients (stages.py). An experiment without an addition does not meet it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raysim.algorithm import compressing, encodings, fedex, local_adaptivity, stages
from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.algorithm.chunk_training import ChunkTraining
from raysim.algorithm.client_state import with_states
from raysim.algorithm.configuration import configured
from raysim.algorithm.corrected import corrected, corrected_updates, described, with_changes
from raysim.algorithm.fair import fair
from raysim.algorithm.fedavg import Adding, OnWorkers, contributed, fedavg, included, kept_vectors, noted, uploaded
from raysim.algorithm.participants import Participants
from raysim.algorithm.personal import Personal, personalised
from raysim.algorithm.phase import Members
from raysim.algorithm.private import Private, accounted
from raysim.algorithm.stages import Stage
from raysim.algorithm.start_losses import after_losses
from raysim.algorithm.transforming import Transforming
from raysim.algorithm.uploads import Attack
from raysim.client import transform as transforms
from raysim.client.corrections import choice as corrections
from raysim.client.personalisation import choice as personalisations
from raysim.client.section import ClientSection
from raysim.client.state_vectors import state_vectors
from raysim.models.layout import Layout
from raysim.models.model import Model, Weights
from raysim.server import step as server_step
from raysim.server.accumulator import Accumulator, Sizes
from raysim.server.encoding import Encoding
from raysim.server.fairness import choice as fair_objectives
from raysim.server.section import ServerSection


def federated(
    client: ClientSection,
    server: ServerSection,
    model: Model,
    seed: int,
    participants: Participants,
    counts: bool = True,
    private: Private | None = None,
    configs: Sequence[ClientSection] = (),
) -> Algorithm:
    """Generalised federated averaging: corrected local training, weighted mean, server optimizer.

    Args:
        client, server: their sections of the experiment.
        model: layouts.
        seed: addresses the clients' draws.
        participants: the clients.
        counts: whether the task counts correct predictions.
        private: the mechanism of privacy and its accountant, if there are any.
        configs: the configurations of FedEx, changes of `client`; none without it.
    """
    layout = model.params
    members = Members(client, seed, participants.adversary, participants.adversaries)
    kind, correction = personalisations.make(client, layout), corrections.make(client.correcting)
    unsent = layout.only(() if kind is None else kind.unsent)
    sent_groups = layout.only(set(layout.names) - set(unsent.names))
    releasing, encoding = encodings.make(server, private, sent_groups)
    transforming = Transforming(transforms.make(client.transform), layout, sent_groups, seed)
    keeps_rest = client.compression is not None and client.compression.error_feedback
    keeps_own = kind is not None and kind.after is not None
    vectors = state_vectors(correction, transforming.transforms, keeps_own, keeps_rest)
    personal = None if kind is None else Personal(kind, client, layout, members, correction, vectors)
    objective = fair_objectives.make(server.fairness)
    num_labels = 0 if participants.labels is None else len(participants.labels)
    sizes = replace(
        Sizes.of(model),
        labels=num_labels,
        shares=local_adaptivity.num_shares(client, server, layout.size),
        encoded=0 if encoding is None else encoding.length,
        configs=len(configs),
        units=server.diagnostics.sums_units(layout.size),
        changes=correction.sent.sums_changes,
    )

    def empty(weights: Weights) -> Accumulator:
        return Accumulator(sizes, weights.params.device, weights.params.dtype)

    # What workers do with clients that were trained together, in this order.
    through, adding = list[Stage](), list[Adding]()
    if client.correcting is not None:
        through.append(corrected_updates)
        adding.append(with_changes)
    if transforming.transforms:
        through.append(stages.transforming(transforming))
    through.append(uploaded)
    if participants.adversary is not None:
        through.append(
            stages.attacking(Attack(participants.adversary, participants.adversaries, sent_groups, seed), layout)
        )
    through.append(contributed)
    if client.compression is not None:
        through.append(stages.compressing(compressing.sending(client.compression, layout, sent_groups, seed)))
    if vectors.num:
        through.append(stages.written)
    if encoding is not None:
        through.append(stages.encoding(encoding, layout))
        adding.append(stages.with_messages)
    if configs:
        adding.append(fedex.scored)
    if participants.noted or objective is not None:
        adding.append(noted)
    adding.append(included)
    training = configured(configs or (client,), server, members, layout, num_labels)
    train = ChunkTraining(training, correction, vectors, layout, personal).train

    server_side = server_step.make(server, layout, participants.cohort_size, participants.labels, counts, releasing)
    one = fedavg(client, server_side, members, OnWorkers(train, through, adding, empty, kept_vectors))
    one = one._replace(traffic=_traffic(client, server, layout, sent_groups, encoding, transforming))

    # What the server and the broadcasts know of it, the outermost last.
    if objective is not None or participants.chosen:
        one = after_losses(one, server)
    if client.correcting is not None:
        one = corrected(one, client, server, server_side, participants, layout)
    if personal is not None:
        one = personalised(one, personal, unsent)
    if vectors.num:
        one = with_states(one, vectors.num)
    if client.compression is not None:
        one = compressing.measured(one, client.compression)
    if server.compression is not None:
        one = compressing.received(one, server.compression, sent_groups, unsent, seed)
    if correction.server.figures is not None:
        one = described(one, correction.server.figures, layout)
    if private is not None:
        one = accounted(one, private)
    if configs:
        one = fedex.drawing(one, len(configs), seed)
    if objective is not None:
        one = fair(one, objective, participants.population)
    return one


def _traffic(
    client: ClientSection,
    server: ServerSection,
    layout: Layout,
    sent_groups: Layout,
    encoding: Encoding | None,
    transforming: Transforming,
) -> Traffic:
    """Return what FedAvg's clients transfer: vectors 1 / a_i, which are of the model's size, and compressed updates."""
    if encoding is not None:
        update_bytes = encodings.num_bytes(encoding)
    elif client.compression is not None:
        update_bytes = compressing.num_bytes(client.compression, sent_groups)
    else:
        update_bytes = transforms.num_bytes(transforming.transforms, sent_groups)
    shares = local_adaptivity.num_shares(client, server, layout.size)
    # A number is no vector.
    return Traffic(up=shares // layout.size, update_bytes=update_bytes)
