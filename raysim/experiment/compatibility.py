"""Checks which choices are defined together: corrections, aggregators, optimizers, samplers, simulated devices.

The rules are pure: each broken rule yields a sentence.
"""

from __future__ import annotations

from collections.abc import Iterator

from raysim.client import transform as transforms
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.correction import ClientHalf, Correction
from raysim.client.corrections.feddualavg import Composite
from raysim.client.optimizers.adagrad import ClientAdagrad
from raysim.client.optimizers.sgd import ClientSgd
from raysim.client.personalisation.clusters import Clusters
from raysim.client.section import ClientSection
from raysim.client.state_vectors import state_vectors
from raysim.cohort.section import CohortSection
from raysim.config.own_part import is_unbound
from raysim.config.section import replaced
from raysim.experiment import privacy
from raysim.experiment.leaving import leaving
from raysim.server.aggregators.fednova import FedNova
from raysim.server.aggregators.local_adaptivity import LocalAdaptivity
from raysim.server.fairness import choice as fair_objectives
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection


def refusals(
    client: ClientSection, server: ServerSection, cohort: CohortSection, systems: SystemsSection | None
) -> Iterator[str]:
    """Yield a sentence for each broken rule, with the given and the allowed values."""
    correction = correction_of(client)
    yield from _fednova(correction, client, server)
    yield from _local_adaptivity(correction, client, server)
    yield from _weights(correction, server, cohort)
    yield from _fairness(correction, client, server, cohort)
    yield from _choice(server, cohort)
    yield from _clusters(client, server, cohort)
    yield from privacy.refusals(client, server, cohort, systems)
    yield from _compression(client, server)
    if systems is not None:
        yield from _systems(systems, cohort)
    yield from _client_states(correction, client, cohort)
    if client.correcting is None:
        return
    who = correction_name(client)
    if client.personalisation is not None:
        yield (
            f"client.personalisation.name = {client.personalisation.name!r} is defined without corrections, but got "
            f"{who}: remove one of them"
        )
    if correction.exchange.full_gradients and server.diagnostics.probe is not None:
        yield (
            f"server.diagnostics.probe = {server.diagnostics.probe} measures one pass over all clients, and {who} "
            f"takes two: remove the probe"
        )
    yield from _server(correction, who, server)
    yield from _clients(correction.client, who, client)
    yield from _points(correction.client, who, client)
    if correction.server.origin is not None and cohort.rule.needs_distances:
        yield (
            f"cohort.sampler.name = {cohort.rule.name!r} compares clients' models with the next one, and {who} sends "
            f"other vectors: take another sampler"
        )
    by_losses = server.fairness is not None or cohort.rule.choose is not None
    if by_losses and server.compression is not None and correction.server.origin is not None:
        yield (
            f"server.compression and {who}: clients make their model of a compressed vector, but server.fairness and "
            f"samplers that choose by losses take those of the whole one: remove one of them"
        )
    if correction.requires.every_client:
        for key, value in leaving(client, systems).items():
            yield f"{who} is defined with every client in every round, but clients leave by {key} = {value}: remove it"


def correction_of(client: ClientSection) -> Correction:
    """Return the section's correction; a user-defined one is not known before the script has passed it."""
    section = client.correcting
    return Correction() if is_unbound(section) else corrections.make(section)


def correction_name(client: ClientSection) -> str:
    """Return how messages name what corrects local training."""
    if client.posterior is not None:
        return "client.posterior"
    if isinstance(client.correcting, Composite):
        return "composite"
    return "" if client.correction is None else f"client.correction.name = {client.correction.name!r}"


def _client_states(correction: Correction, client: ClientSection, cohort: CohortSection) -> Iterator[str]:
    known = [each for each in client.transform if not is_unbound(each)]
    personal = client.personalisation
    rest = client.compression is not None and client.compression.error_feedback
    keeping = state_vectors(correction, transforms.make(known), personal is not None and personal.keeps, rest)
    sampler = cohort.rule
    if not keeping.num or not sampler.repeats:
        return
    if keeping.own and personal is not None:
        keeper = f"client.personalisation.name = {personal.name!r}"
    elif keeping.correction and client.correction is not None:
        keeper = f"client.correction.name = {client.correction.name!r}"
    elif keeping.rest:
        keeper = "client.compression.error_feedback = true"
    else:
        keeper = f"client.transform.name = {known[keeping.transforms[0]].name!r}"
    yield (
        f"{keeper} changes a client's state once a round, but cohort.sampler.name = {sampler.name!r} may draw a "
        f"client several times: take another sampler"
    )


def with_usual_weighting(server: ServerSection, client: ClientSection, cohort: CohortSection) -> ServerSection:
    """Return the server's section with the weighting that the choices are defined with, if it says none itself.

    It remains a default: other choices may be made of the section, as when a script's parts are bound.
    """
    usual = _usual_weighting(client, cohort, server)
    if "weighting" in server.model_fields_set or usual in (None, server.weighting):
        return server
    weighted = replaced(server, weighting=usual)
    weighted.model_fields_set.discard("weighting")
    return weighted


def _usual_weighting(client: ClientSection, cohort: CohortSection, server: ServerSection) -> str | None:
    """Return the weighting by which correction, sampler, fair objective or privacy are defined; None: by any."""
    fair = fair_objectives.make(server.fairness)
    if server.privacy is not None:
        return "uniform"
    if cohort.rule.uniform_weights or cohort.rule.uniform_by_default or (fair and fair.uniform_by_default):
        return "uniform"
    return (correction_of(client).requires.weightings or (None,))[0]


def _weights(correction: Correction, server: ServerSection, cohort: CohortSection) -> Iterator[str]:
    sampler, rule, name = cohort.rule, server.rule, server.weighting_name
    if sampler.uniform_weights and name == "examples":
        yield (
            f"the {sampler.name} sampler draws clients in proportion to their examples, and is defined with uniform "
            f"weights, but got server.weighting = 'examples', which would count the examples twice"
        )
    if isinstance(server.weighting, str):
        return
    if sampler.uniform_weights:
        yield f"the {sampler.name} sampler is defined with uniform weights, but got server.weighting = {name!r}"
    if rule is not None and rule.ignores_weights:
        yield f"server.aggregator: {rule.name} ignores weights, but got server.weighting = {name!r}: leave it out"
    if correction.exchange.full_gradients:
        yield (
            f"server.weighting = {name!r} weighs by facts of a client's training, and the pass over full "
            f"gradients comes before that: take 'examples' or 'uniform'"
        )


def _fairness(
    correction: Correction, client: ClientSection, server: ServerSection, cohort: CohortSection
) -> Iterator[str]:
    fair, section = fair_objectives.make(server.fairness), server.fairness
    if fair is None or section is None:
        return
    whose = f"server.fairness.name = {section.name!r}"
    if server.aggregator.name != "mean":
        yield f"{whose} weighs a mean, so server.aggregator.name must be 'mean', but got {server.aggregator.name!r}"
    if server.weighting_name not in ("examples", "uniform"):
        yield (
            f"{whose} needs clients' weights before they train, so server.weighting must be 'examples' or 'uniform', "
            f"but got {server.weighting_name!r}"
        )
    if cohort.rule.repeats:
        yield (
            f"{whose} weighs each client once, but cohort.sampler.name = {cohort.rule.name!r} may draw a client "
            f"several times: take another sampler"
        )
    if server.diagnostics.probe is not None:
        yield (
            f"server.diagnostics.probe = {server.diagnostics.probe} measures one pass over all clients, and {whose} "
            f"takes two: remove the probe"
        )
    weightings = correction.requires.weightings
    if client.correction is not None and weightings is not None and "examples" not in weightings:
        yield (
            f"client.correction.name = {client.correction.name!r} is defined with equal weights, and {whose} changes "
            f"them: remove one"
        )
    if fair.server_sgd and server.optimizer.name != "sgd":
        yield (
            f"{whose} defines the length of the server's step, so server.optimizer.name must be 'sgd', but got "
            f"{server.optimizer.name!r}"
        )
    if fair.divides_by_lr and client.optimizer.lr == 0:
        yield f"{whose} divides by the clients' learning rate: client.optimizer.lr > 0 must hold, but got 0"


def _choice(server: ServerSection, cohort: CohortSection) -> Iterator[str]:
    if cohort.rule.choose is not None and server.diagnostics.probe is not None:
        yield (
            f"server.diagnostics.probe = {server.diagnostics.probe} measures one pass over all clients, and "
            f"cohort.sampler.name = {cohort.rule.name!r} takes a pass of its own to choose from: remove the probe"
        )


def _clusters(client: ClientSection, server: ServerSection, cohort: CohortSection) -> Iterator[str]:
    if not isinstance(client.personalisation, Clusters):
        return
    fact = "client.personalisation.name = 'clusters' trains several models, each of them the mean of its clients"
    if server.aggregator.name != "mean":
        yield f"{fact}: server.aggregator.name must be 'mean', but got {server.aggregator.name!r}"
    if server.weighting_name == "ida":
        yield f"{fact}, and server.weighting = 'ida' compares the updates of all: take 'examples' or 'uniform'"
    for key, value in (
        ("server.glad", server.glad),
        ("server.fairness", server.fairness),
        ("server.diagnostics.probe", server.diagnostics.probe),
        ("client.transform", client.transform or None),
        ("client.compression", client.compression),
        ("server.compression", server.compression),
        ("cohort.sampler", cohort.rule.learn),
        ("cohort.sampler", cohort.rule.choose),
    ):
        if value is not None:
            what = f"cohort.sampler.name = {cohort.rule.name!r}" if key == "cohort.sampler" else key
            yield f"{fact}, and {what} is defined for one model: remove it"


def _compression(client: ClientSection, server: ServerSection) -> Iterator[str]:
    for key, section in (("client.compression", client.compression), ("server.compression", server.compression)):
        if section is None:
            continue
        if server.weighting_name == "ida":
            yield (
                f"{key} changes the distances of updates, by which server.weighting = 'ida' weighs: take 'examples' or "
                f"'uniform'"
            )
        if isinstance(server.aggregator, LocalAdaptivity):
            yield (
                f"{key} sends one vector, and server.aggregator.name = 'local_adaptivity' divides by another that "
                f"clients send: take another aggregator"
            )


def _fednova(correction: Correction, client: ClientSection, server: ServerSection) -> Iterator[str]:
    if not isinstance(server.aggregator, FedNova):
        return
    if not isinstance(client.optimizer, ClientSgd):
        yield (
            f"server.aggregator.name = 'fednova' divides by a_i, the sum of a client's local steps, which is "
            f"defined only for client.optimizer.name = 'sgd', but got {client.optimizer.name!r}"
        )
    elif client.optimizer.weight_decay:
        yield (
            f"server.aggregator.name = 'fednova' has no a_i for weight decay, which shrinks earlier local steps, "
            f"but got client.optimizer.weight_decay = {client.optimizer.weight_decay}: set it to 0"
        )
    elif correction.client.upload is not None:
        yield (
            f"server.aggregator.name = 'fednova' divides y - x by a_i, the sum of a client's local steps, but "
            f"{correction_name(client)} sends another vector: take another aggregator"
        )
    elif client.correction is not None and correction.client.bend is not None:
        yield (
            f"server.aggregator.name = 'fednova' has no a_i for local gradients that are bent, but got "
            f"client.correction.name = {client.correction.name!r}: take another aggregator"
        )
    elif client.correction is not None and correction.client.pull and client.optimizer.momentum:
        yield (
            f"server.aggregator.name = 'fednova' has no a_i for momentum and a pull towards the model together, but "
            f"got client.optimizer.momentum = {client.optimizer.momentum} and client.correction.name = "
            f"{client.correction.name!r}: set one of them to 0"
        )
    elif (pull := correction.client.pull) * client.optimizer.lr >= 2:
        yield (
            f"server.aggregator.name = 'fednova' divides by a_i = (1 - (1 - lr mu)^tau) / (lr mu), which is 0 or less "
            f"for some tau unless lr mu < 2, but got client.optimizer.lr = {client.optimizer.lr:g} and mu = {pull:g}: "
            f"lower one of them"
        )


def _local_adaptivity(correction: Correction, client: ClientSection, server: ServerSection) -> Iterator[str]:
    if not isinstance(server.aggregator, LocalAdaptivity):
        return
    optimizer = client.optimizer
    fact = (
        "server.aggregator.name = 'local_adaptivity' divides by a_i, the sum of what a client's local steps multiply "
        "gradients with"
    )
    if correction.client.upload is not None:
        yield f"{fact}, but {correction_name(client)} sends another vector than y - x: take another aggregator"
    elif correction.client.optimizer is not None and client.correction is not None:
        yield (
            f"{fact}, and client.correction.name = {client.correction.name!r} replaces the client's optimizer: take "
            f"another aggregator"
        )
    elif not isinstance(optimizer, ClientSgd | ClientAdagrad):
        yield f"{fact}: client.optimizer.name must be 'adagrad', or 'sgd' without momentum, but got {optimizer.name!r}"
    else:
        for key in ("momentum", "weight_decay"):
            if value := getattr(optimizer, key, 0.0):
                yield f"{fact}, which is not defined with {key}: client.optimizer.{key} must be 0, but got {value}"


def _systems(systems: SystemsSection, cohort: CohortSection) -> Iterator[str]:
    sampler = cohort.rule
    if systems.over_selection > 1:
        fact = f"systems.over_selection = {systems.over_selection:g} asks more clients than cohort.size, but "
        if sampler.sized_by is not None:
            yield f"{fact}the {sampler.name} sampler has no size, because {sampler.sized_by}: leave it out"
        elif sampler.repeats:
            yield (
                f"{fact}the {sampler.name} sampler may draw a client several times, and it reports once: take another "
                f"sampler"
            )
    if cohort.size is not None and systems.min_reports > cohort.size:
        yield (
            f"systems.min_reports <= cohort.size must hold, but got min_reports = {systems.min_reports} and size = "
            f"{cohort.size}, so every round would be abandoned"
        )


def _server(correction: Correction, title: str, server: ServerSection) -> Iterator[str]:
    optimizer, requires = server.optimizer, correction.requires
    if requires.server_sgd and optimizer.name != "sgd":
        yield (
            f"{title} is defined with server.optimizer.name = 'sgd', because it defines the server's state itself, "
            f"but got {optimizer.name!r}"
        )
    elif correction.server.average is not None or requires.unit_lr:
        scaled = server.lr_scaling.rule != "none" or server.lr_scaling.warmup or server.lr_schedule is not None
        if optimizer.lr != 1 or scaled:
            sends = "the clients' mean" if correction.server.average is None else "the clients' mean minus h"
            yield (
                f"{title} broadcasts {sends}, so server.optimizer.lr must be 1, without lr_scaling "
                f"and lr_schedule, but got lr = {optimizer.lr:g}{' with one of these' if scaled else ''}"
            )
    weighting = server.weighting_name
    if requires.weightings is not None and weighting not in requires.weightings:
        *others, last = sorted(requires.weightings, reverse=True)
        allowed = f"{' or '.join(map(repr, others))} or {last!r}" if others else f"= {last!r}"
        yield f"{title} is defined with server.weighting {allowed}, but got {weighting!r}"
    if requires.aggregators is not None and requires.weightings is None and weighting == "ida":
        yield f"{title} is defined with a mean of sums, but got server.weighting = 'ida'"
    if requires.aggregators is not None and server.aggregator.name not in requires.aggregators:
        yield (
            f"{title} is defined with server.aggregator.name {' or '.join(map(repr, requires.aggregators))}, but got "
            f"{server.aggregator.name!r}"
        )


def _steps(client: ClientSection) -> str:
    """Return what makes local steps other than y - lr grad f: "'sgd', momentum = 0.9"."""
    optimizer = client.optimizer
    values = {
        "momentum": optimizer.momentum if isinstance(optimizer, ClientSgd) else 0,
        "weight_decay": getattr(optimizer, "weight_decay", 0),
        "max_grad_norm": client.max_grad_norm,
    }
    return ", ".join([repr(optimizer.name), *(f"{key} = {value:g}" for key, value in values.items() if value)])


def _points(half: ClientHalf, title: str, client: ClientSection) -> Iterator[str]:
    if half.point is not None and not client.is_plain_sgd:
        yield (
            f"{title} is defined with plain local steps: client.optimizer must be 'sgd' without momentum, weight_decay "
            f"and max_grad_norm, but got {_steps(client)}"
        )


def _clients(half: ClientHalf, title: str, client: ClientSection) -> Iterator[str]:
    optimizer = client.optimizer
    if half.optimizer is not None and not (isinstance(optimizer, ClientSgd) and optimizer.momentum == 0):
        yield (
            f"{title} replaces the client's optimizer by its base, and keeps only the optimizer's lr: "
            f"client.optimizer must be 'sgd' without momentum, but got {optimizer.name!r}"
            + (f" with momentum = {optimizer.momentum}" if isinstance(optimizer, ClientSgd) else "")
        )
    if half.inverts_sgd and not half.sums_gradients and not client.is_plain_sgd:
        yield (
            f"{title} computes a client's mean gradient from its update, (x - y) / (K lr): client.optimizer must be "
            f"'sgd' without momentum, weight_decay and max_grad_norm, but got {_steps(client)}; 'scaffold' is defined "
            f"with all of them"
        )
    if half.inverts_sgd and not half.sums_gradients and half.bend is not None:
        yield f"{title} computes a client's mean gradient from its update, which does not hold where `bend` bends it"
    if half.inverts_sgd and client.is_plain_sgd and optimizer.lr == 0:
        yield f"{title} divides by the clients' learning rate: client.optimizer.lr > 0 must hold, but got 0"
