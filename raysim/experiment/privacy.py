"""Checks what privacy is defined with: each broken rule yields a sentence. compatibility.py asks."""

from __future__ import annotations

from collections.abc import Iterator

from raysim.client.corrections.feddualavg import Composite
from raysim.client.corrections.prox import Prox
from raysim.client.personalisation.clusters import Clusters
from raysim.client.section import ClientSection
from raysim.cohort.sampler import Sampler
from raysim.cohort.section import CohortSection
from raysim.experiment.leaving import leaving
from raysim.server.clipping import AdaptiveClip
from raysim.server.privacy.banded import Banded
from raysim.server.privacy.distributed import Distributed
from raysim.server.privacy.gaussian import Gaussian
from raysim.server.privacy.local import Local
from raysim.server.privacy.section import PrivacySection
from raysim.server.privacy.tree import Tree
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection

COUNTED = ("server.privacy", "server.clip", "cohort.")
"""How keys begin by which all rounds of a run are counted, and by which past noise is drawn again."""


def refusals(
    client: ClientSection, server: ServerSection, cohort: CohortSection, systems: SystemsSection | None
) -> Iterator[str]:
    """Yield a sentence for each broken rule, with the given and the allowed values."""
    yield from _secure_sum(client, server)
    section = server.privacy
    if section is None:
        return
    name = f"server.privacy.name = {section.name!r}"
    yield from _clip(section, name, server)
    yield from _min_reports(section, name, systems)
    for key, why in _without(client, server, cohort, systems):
        yield f"{name} is defined without {key}, {why}: remove one of them"
    if server.aggregator.name != "mean":
        yield f"{name} noises a mean, so server.aggregator.name must be 'mean', but got {server.aggregator.name!r}"
    if server.weighting_name != "uniform":
        yield (
            f"{name} bounds what each client adds, so server.weighting must be 'uniform', but got "
            f"{server.weighting_name!r}"
        )
    if isinstance(section, Distributed):
        for key, value in leaving(client, systems).items():
            yield f"{name} adds up the noise of all clients of a round, but they leave by {key} = {value}: remove it"
    if section.noised:
        yield from _sampler(section, name, cohort.rule)


def _secure_sum(client: ClientSection, server: ServerSection) -> Iterator[str]:
    if server.secure_sum is None:
        return
    premise = "server.secure_sum adds w_i h_i, w_i = n_i or 1"
    if server.aggregator.name != "mean":
        yield f"{premise}: server.aggregator.name must be 'mean', but got {server.aggregator.name!r}"
    if server.weighting_name not in ("examples", "uniform"):
        yield f"{premise}: server.weighting must be 'examples' or 'uniform', but got {server.weighting_name!r}"
    for key, value in (
        ("server.fairness", server.fairness),
        ("client.compression", client.compression),
        ("server.compression", server.compression),
    ):
        if value is not None:
            yield f"{premise}, and {key} sends or weighs other vectors: remove one of them"


def _clip(section: PrivacySection, title: str, server: ServerSection) -> Iterator[str]:
    if server.clip is None:
        yield f"{title} adds noise in proportion to a clip level: give server.clip, such as {{ fixed = 1.0 }}"
    elif isinstance(server.clip, AdaptiveClip) and not isinstance(section, Gaussian):
        quantile = f"{{ quantile = {server.clip.quantile:g} }}"
        yield f"{title} is defined with a fixed clip level: server.clip must be {{ fixed = ... }}, but got {quantile}"
    elif isinstance(section, Gaussian) and section.count_std is not None:
        if not isinstance(server.clip, AdaptiveClip):
            yield (
                f"server.privacy.count_std = {section.count_std:g} noises the counts of an adaptive clip, but "
                f"server.clip is {{ fixed = {server.clip.fixed:g} }}: remove count_std"
            )
        elif section.noise_multiplier and 2 * section.count_std <= section.noise_multiplier:
            yield (
                f"server.privacy: 2 count_std > noise_multiplier must hold, but got count_std = {section.count_std:g} "
                f"and noise_multiplier = {section.noise_multiplier:g}"
            )


def _min_reports(section: PrivacySection, title: str, systems: SystemsSection | None) -> Iterator[str]:
    if systems is None or systems.min_reports == 1 or isinstance(section, Local):
        return
    yield (
        f"{title} bounds what one client changes of a sum, but without one report systems.min_reports = "
        f"{systems.min_reports} leaves out all others: remove it"
    )


def _without(
    client: ClientSection, server: ServerSection, cohort: CohortSection, systems: SystemsSection | None
) -> Iterator[tuple[str, str]]:
    """Yield keys that privacy is not defined with, with reasons."""
    correction = client.correction
    values = {
        "server.zeroing": (server.zeroing, "whose level follows exact counts"),
        "server.glad": (server.glad, "whose factors follow the updates themselves"),
        "server.secure_sum": (server.secure_sum, "whose integers have other noise (take 'distributed')"),
        "server.fairness": (server.fairness, "which weighs clients by their losses"),
        "server.diagnostics.labels": (server.diagnostics.labels or None, "which counts the clients' labels"),
        "server.diagnostics.probe": (server.diagnostics.probe, "which trains all clients without noise"),
        "client.compression": (client.compression, "which no accountant here knows"),
        "server.compression": (server.compression, "which no accountant here knows"),
        "cohort.growth": (cohort.growth, "which changes the cohort that the accountant knows"),
        "composite": (
            client.correcting if isinstance(client.correcting, Composite) else None,
            "whose server takes the cohort's local steps",
        ),
        "client.correction": (
            None if correction is None or isinstance(correction, Prox | Composite) else correction,
            "whose states are not noised (except 'prox')",
        ),
        "client.personalisation.name = 'clusters'": (
            client.personalisation if isinstance(client.personalisation, Clusters) else None,
            "whose clients choose a model",
        ),
        "systems.over_selection": (
            None if systems is None or systems.over_selection == 1 else systems,
            "which lets the fastest of a cohort count",
        ),
    }
    for key, (value, why) in values.items():
        if value is not None:
            yield key, why


def _sampler(section: PrivacySection, title: str, sampler: Sampler) -> Iterator[str]:
    drawn = sampler.drawn
    if isinstance(section, Tree | Banded):
        if drawn is None or drawn.groups is None:
            yield (
                f"{title} is accounted for where clients take turns, so cohort.sampler.name must be 'cyclic', but got "
                f"{sampler.name!r}"
            )
        elif isinstance(section, Banded) and section.bands > drawn.groups:
            yield (
                f"{title} correlates the noise of so many rounds between which no client comes twice: bands <= "
                f"cohort.sampler.groups must hold, but got bands = {section.bands} and groups = {drawn.groups}"
            )
    elif isinstance(section, Distributed):
        if drawn is None or drawn.probability is not None:
            yield (
                f"{title} needs as many clients in every round, so cohort.sampler.name must be 'uniform', but got "
                f"{sampler.name!r}"
            )
    elif isinstance(section, Local):
        if sampler.repeats:
            yield f"{title} lets a client report once, but cohort.sampler.name = {sampler.name!r} may draw it twice"
    elif isinstance(section, Gaussian) and (drawn is None or drawn.groups is not None):
        yield (
            f"{title} has an accountant for cohort.sampler.name 'bernoulli' and 'uniform', but got {sampler.name!r}; "
            f"noise_multiplier = 0 trains with any"
        )
