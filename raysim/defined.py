"""Which choices are defined together: corrections, aggregators, optimizers, samplers, simulated devices.

Pure: each rule is a sentence where it is broken, and None where it holds.
"""

from __future__ import annotations

from collections.abc import Iterator

from raysim.client.corrections.feddane import FedDane
from raysim.client.corrections.prox import Prox
from raysim.client.section import ClientSection
from raysim.client.sgd import Sgd
from raysim.cohort.section import CohortSection
from raysim.server.fednova import FedNova
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection

SERVER_SGD = ("scaffold", "scaffold_m", "feddyn", "adabest", "mime", "mimelite")
"""Corrections that say themselves what the server remembers."""

BROADCASTS_LESS_H = ("feddyn", "adabest")
REMEMBERS = ("scaffold", "scaffold_m", "feddyn", "adabest")
UNIFORM = (*REMEMBERS, "mime", "mimelite")
"""Corrections that are defined with uniform weights; those of Mime take others too, where they are asked for."""

TWO_PHASES = ("mime", "mimelite", "feddane")
"""Corrections that first take full gradients."""


def refusals(
    client: ClientSection, server: ServerSection, cohort: CohortSection, systems: SystemsSection | None
) -> Iterator[str]:
    """Every rule that is broken, as a sentence with what was given and what is allowed."""
    yield from _fednova(client, server)
    if systems is not None:
        yield from _systems(systems, cohort)
    if client.correction is None:
        return
    name = client.correction.name
    if name in TWO_PHASES and server.diagnostics.probe is not None:
        yield (
            f"server.diagnostics.probe measures one pass over all clients, and client.correction.name = {name!r} takes "
            f"two: remove the probe"
        )
    said = f"client.correction.name = {name!r}"
    yield from _server(name, said, server)
    yield from _clients(name, said, client)
    drawing = cohort.drawing
    if name in REMEMBERS and drawing is not None and drawing.name == "md":
        yield (
            f"{said} changes what a client remembers once a round, but cohort.sampler.name = 'md' may draw a client "
            f"several times: take another sampler"
        )


def _fednova(client: ClientSection, server: ServerSection) -> Iterator[str]:
    if not isinstance(server.aggregator, FedNova):
        return
    if not isinstance(client.optimizer, Sgd):
        yield (
            f"server.aggregator.name = 'fednova' divides by what a client's local steps add up to, which is defined "
            f"for client.optimizer.name = 'sgd', but got {client.optimizer.name!r}"
        )
    elif client.optimizer.weight_decay:
        yield (
            f"server.aggregator.name = 'fednova' has no a_i for weight decay, which shrinks what earlier local steps "
            f"did, but got client.optimizer.weight_decay = {client.optimizer.weight_decay}: set it to 0"
        )
    elif isinstance(client.correction, Prox | FedDane) and client.correction.mu and client.optimizer.momentum:
        yield (
            f"server.aggregator.name = 'fednova' has no a_i for momentum and a pull towards the model together, but "
            f"got client.optimizer.momentum = {client.optimizer.momentum} and client.correction.name = "
            f"{client.correction.name!r}: set one of them to 0"
        )


def _systems(systems: SystemsSection, cohort: CohortSection) -> Iterator[str]:
    drawing = cohort.drawing
    if systems.over_selection > 1:
        said = f"systems.over_selection = {systems.over_selection:g} asks more than cohort.size clients, but "
        if drawing is None:
            yield f"{said}the replay sampler is given who takes part: leave it out"
        elif drawing.name == "bernoulli":
            yield f"{said}the bernoulli sampler has no size: raise its probability, or take another sampler"
        elif drawing.name == "md":
            yield f"{said}the md sampler may draw a client several times, and it reports once: take another sampler"
    if cohort.size is not None and systems.min_reports > cohort.size:
        yield (
            f"systems.min_reports <= cohort.size must hold, but got min_reports = {systems.min_reports} and size = "
            f"{cohort.size}, so every round would be abandoned"
        )


def _server(name: str, said: str, server: ServerSection) -> Iterator[str]:
    optimizer = server.optimizer
    if name in SERVER_SGD and optimizer.name != "sgd":
        yield (
            f"{said} is defined with server.optimizer.name = 'sgd', because it says itself what the server remembers, "
            f"but got {optimizer.name!r}"
        )
    elif name in BROADCASTS_LESS_H:
        scaled = server.lr_scaling.rule != "none" or server.lr_scaling.warmup or server.lr_schedule is not None
        if optimizer.lr != 1 or scaled:
            yield (
                f"{said} broadcasts the clients' mean less h, so server.optimizer.lr must be 1, without lr_scaling and "
                f"lr_schedule, but got lr = {optimizer.lr:g}{' with one of these' if scaled else ''}"
            )
    if name in REMEMBERS and server.weighting != "uniform":
        yield f"{said} is defined with server.weighting = 'uniform', but got {server.weighting!r}"
    if name != "prox" and server.weighting == "ida":
        yield f"{said} is defined with server.weighting 'uniform' or 'examples', but got 'ida'"
    allowed = {"prox": None, "scaffold": ("mean", "fednova"), "feddane": ("mean", "fednova")}.get(name, ("mean",))
    if allowed is not None and server.aggregator.name not in allowed:
        yield f"{said} is defined with server.aggregator.name {' or '.join(map(repr, allowed))}, but got " + repr(
            server.aggregator.name
        )


def _clients(name: str, said: str, client: ClientSection) -> Iterator[str]:
    optimizer = client.optimizer
    if name in ("mime", "mimelite") and not (isinstance(optimizer, Sgd) and optimizer.momentum == 0):
        yield (
            f"{said} puts its base in the place of the client's optimizer, of which only the lr is left: "
            f"client.optimizer must be 'sgd' without momentum, but got {optimizer.name!r}"
            + (f" with momentum = {optimizer.momentum}" if isinstance(optimizer, Sgd) else "")
        )
    if name == "scaffold_m" and not client.is_plain_sgd:
        yield (
            f"{said} takes a client's mean gradient from how far it went, (x - y) / (K lr): client.optimizer must be "
            f"'sgd' without momentum, weight_decay and max_grad_norm; 'scaffold' is defined with all of them"
        )
    divides = name == "scaffold_m" or (name == "scaffold" and client.is_plain_sgd)
    if divides and optimizer.lr == 0:
        yield f"{said} divides by the clients' learning rate: client.optimizer.lr > 0 must hold, but got 0"
