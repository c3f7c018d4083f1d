"""Puts a run's algorithm together: FedAvg (fedavg.py), and around it what the experiment adds to it.

An addition has two sides. On workers it is a stage of a chunk's clients (stages.py), or an entry of their sums. For the
server and the broadcasts it is a function from an algorithm to an algorithm. Both are lists, in the order in which they
apply; an experiment without an addition does not meet it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce

from raysim.algorithm import compressing, encodings, fedex, local_adaptivity, stages
from raysim.algorithm.algorithm import Algorithm, Traffic
from raysim.algorithm.chunk_training import ChunkTraining
from raysim.algorithm.client_state import with_states
from raysim.algorithm.configuration import configure
from raysim.algorithm.corrected import add_changes, correct_updates, with_correction, with_correction_figures
from raysim.algorithm.fair import with_fair_objective
from raysim.algorithm.fedavg import (
    Adding,
    OnWorkers,
    add_updates,
    fedavg,
    keep_vectors,
    make_contributions,
    make_uploads,
    record_facts,
)
from raysim.algorithm.members import Members
from raysim.algorithm.participants import Participants
from raysim.algorithm.personal import Personal, with_personal_models
from raysim.algorithm.private import Private, with_privacy_account
from raysim.algorithm.stages import Stage
from raysim.algorithm.start_losses import with_start_losses
from raysim.algorithm.transforming import Transforming
from raysim.algorithm.uploads import Attack
from raysim.client import transform as transforms
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import Correction
from raysim.client.personalisation import choice as personalisations
from raysim.client.section import ClientSection
from raysim.client.state_vectors import StateVectors, state_vectors
from raysim.models.layout import Layout
from raysim.models.model import Model, Weights
from raysim.server import step as server_step
from raysim.server.accumulator import Accumulator, Sizes
from raysim.server.encoding import Encoding
from raysim.server.fairness import choice as fair_objectives
from raysim.server.fairness.fairness import Fairness
from raysim.server.section import ServerSection
from raysim.server.step import Server

Addition = Callable[[Algorithm], Algorithm]


@dataclass(frozen=True)
class _Built:
    """What the experiment's sections build.

    layout: of the parameters. sent_groups: of those that clients send; unsent: of the others. members: builds the
    clients of a chunk. correction: all None where there is none. personal: a personalisation. vectors: those that
    clients keep. encoding: what clients send in place of updates. objective: of fairness. configs: those of FedEx.
    """

    client: ClientSection
    server: ServerSection
    server_side: Server
    participants: Participants
    layout: Layout
    sent_groups: Layout
    unsent: Layout
    members: Members
    correction: Correction
    personal: Personal | None
    transforming: Transforming
    vectors: StateVectors
    encoding: Encoding | None
    objective: Fairness | None
    private: Private | None
    configs: Sequence[ClientSection]
    seed: int


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
    members = Members(client, seed, participants.flipped)
    kind, correction = personalisations.make(client, layout), corrections.make(client.correcting)
    unsent = layout.only(() if kind is None else kind.unsent)
    sent_groups = layout.only(set(layout.names) - set(unsent.names))
    releasing, encoding = encodings.make(server, private, sent_groups)
    transforming = Transforming(transforms.make(client.transform), layout, sent_groups, seed)
    keeps_rest = client.compression is not None and client.compression.error_feedback
    keeps_own = kind is not None and kind.after is not None
    vectors = state_vectors(correction, transforming.transforms, keeps_own, keeps_rest)
    labels = participants.labels
    built = _Built(
        client=client,
        server=server,
        server_side=server_step.make(server, layout, participants.cohort_size, labels, counts, releasing),
        participants=participants,
        layout=layout,
        sent_groups=sent_groups,
        unsent=unsent,
        members=members,
        correction=correction,
        personal=None if kind is None else Personal(kind, client, layout, members, correction, vectors),
        transforming=transforming,
        vectors=vectors,
        encoding=encoding,
        objective=fair_objectives.make(server.fairness),
        private=private,
        configs=configs,
        seed=seed,
    )
    base = fedavg(client, built.server_side, members, _on_workers(built, model))._replace(traffic=_traffic(built))
    return reduce(lambda algorithm, add: add(algorithm), _additions(built), base)


def _on_workers(built: _Built, model: Model) -> OnWorkers:
    """Return how workers compute the sums of a chunk."""
    labels = built.participants.labels
    num_labels = 0 if labels is None else len(labels)
    sizes = replace(
        Sizes.of(model),
        labels=num_labels,
        shares=local_adaptivity.num_shares(built.client, built.server, built.layout.size),
        encoded=0 if built.encoding is None else built.encoding.length,
        configs=len(built.configs),
        units=built.server.diagnostics.sums_units(built.layout.size),
        changes=built.correction.exchange.sums_changes,
    )

    def empty(weights: Weights) -> Accumulator:
        return Accumulator(sizes, weights.params.device, weights.params.dtype)

    configs = built.configs or (built.client,)
    training = configure(configs, built.server, built.members, built.layout, num_labels)
    train = ChunkTraining(training, built.correction, built.vectors, built.layout, built.personal).train
    return OnWorkers(train, [*_stages(built)], [*_entries(built)], empty, keep_vectors)


def _stages(built: _Built) -> Iterator[Stage]:
    """Yield what workers do with clients that were measured together, in this order."""
    client, participants = built.client, built.participants
    if client.correcting is not None:
        yield correct_updates
    if built.transforming.transforms:
        yield stages.transform_stage(built.transforming)
    yield make_uploads
    if participants.adversary is not None:
        attack = Attack(participants.adversary, participants.adversaries, built.sent_groups, built.seed)
        yield stages.attack_stage(attack, built.layout)
    yield make_contributions
    if client.compression is not None:
        compress = compressing.update_compressor(client.compression, built.layout, built.sent_groups, built.seed)
        yield stages.compression_stage(compress)
    if built.vectors.num:
        yield stages.write_states
    if built.encoding is not None:
        yield stages.encoding_stage(built.encoding, built.layout)


def _entries(built: _Built) -> Iterator[Adding]:
    """Yield what adds the clients to the sums of the chunk, in this order."""
    if built.client.correcting is not None:
        yield add_changes
    if built.encoding is not None:
        yield stages.add_messages
    if built.configs:
        yield fedex.add_config_errors
    if built.participants.noted or built.objective is not None:
        yield record_facts
    yield add_updates


def _additions(built: _Built) -> Iterator[Addition]:
    """Yield what the server and the broadcasts know of each addition, the outermost last."""
    client, server, layout = built.client, built.server, built.layout
    if built.objective is not None or built.participants.chosen:
        yield partial(with_start_losses, server=server)
    if client.correcting is not None:
        yield partial(
            with_correction,
            client=client,
            server=server,
            server_side=built.server_side,
            participants=built.participants,
            layout=layout,
        )
    if built.personal is not None:
        yield partial(with_personal_models, personal=built.personal, unsent=built.unsent)
    if built.vectors.num:
        yield partial(with_states, num=built.vectors.num)
    if client.compression is not None:
        yield partial(compressing.with_compression_figures, section=client.compression)
    if server.compression is not None:
        yield partial(
            compressing.with_compressed_broadcast,
            section=server.compression,
            sent_groups=built.sent_groups,
            unsent=built.unsent,
            seed=built.seed,
        )
    if built.correction.server.figures is not None:
        assert client.correcting is not None
        title = corrections.CORRECTIONS.title(client.correcting)
        yield partial(with_correction_figures, figures=built.correction.server.figures, title=title, layout=layout)
    if built.private is not None:
        yield partial(with_privacy_account, private=built.private)
    if built.configs:
        yield partial(fedex.with_drawn_configs, num=len(built.configs), seed=built.seed)
    if built.objective is not None:
        yield partial(with_fair_objective, objective=built.objective, population=built.participants.population)


def _traffic(built: _Built) -> Traffic:
    """Return what FedAvg's clients transfer: vectors 1 / a_i, which are of the model's size, and compressed updates."""
    if built.encoding is not None:
        update_bytes = encodings.num_bytes(built.encoding)
    elif built.client.compression is not None:
        update_bytes = compressing.num_bytes(built.client.compression, built.sent_groups)
    else:
        update_bytes = transforms.num_bytes(built.transforming.transforms, built.sent_groups)
    shares = local_adaptivity.num_shares(built.client, built.server, built.layout.size)
    # A number is not a vector.
    return Traffic(up=shares // built.layout.size, update_bytes=update_bytes)
