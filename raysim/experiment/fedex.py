"""Makes the local trainings that FedEx chooses among, and checks what it is defined with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from raysim.client.corrections.feddualavg import Composite
from raysim.client.section import ClientSection
from raysim.cohort.section import CohortSection
from raysim.config import overrides
from raysim.config.own_part import OwnPart
from raysim.config.section import replaced
from raysim.errors import ExperimentError
from raysim.experiment import compatibility
from raysim.server.aggregators.local_adaptivity import LocalAdaptivity
from raysim.server.fairness import choice as fair_objectives
from raysim.server.fedex import FedEx
from raysim.server.section import ServerSection
from raysim.systems.section import SystemsSection

MAY_DIFFER = (
    "optimizer",
    "correction",
    "lr_decay",
    "batch_size",
    "epochs",
    "local_steps",
    "max_local_steps",
    "schedule",
    "shuffle",
    "fill_last_batch",
    "drop_last",
    "max_grad_norm",
)
"""Keys of [client] in which configurations may differ. The others shape examples, module, updates or what clients keep,
or say who leaves a round."""


def configurations(section: FedEx, client: ClientSection) -> tuple[ClientSection, ...]:
    """Return `client` with each of the changes.

    Raises:
        ExperimentError: a change does not lead to a valid section, or changes what all configurations share.
    """
    return tuple(_changed(client, change, f"fedex.configs[{j}]") for j, change in enumerate(section.configs))


def refusals(
    section: FedEx,
    client: ClientSection,
    composite: Composite | None,
    server: ServerSection,
    cohort: CohortSection,
    systems: SystemsSection | None,
) -> Iterator[str]:
    """Yield a sentence for each broken rule, with the given and the allowed values."""
    try:
        sections = configurations(section, client)
    except ExperimentError as error:
        yield str(error).removesuffix(".")
        return
    for key, why in _without(client, composite, server):
        yield f"fedex is defined without {key}, {why}: remove one of them"
    known = set(compatibility.refusals(client, server, cohort, systems))
    for j, one in enumerate(sections):
        broken = compatibility.refusals(one, server, cohort, systems)
        refused = [f"fedex.configs[{j}]: {why}" for why in broken if why not in known]
        if one.correction is not None and not compatibility.correction_of(one).only_pulls:
            refused.append(
                f"fedex is defined with corrections that keep and send nothing, so fedex.configs[{j}] must have "
                f"client.correction.name 'prox' or none, but has {one.correction.name!r}"
            )
        yield from refused
        if refused:
            # The others often break the same rules.
            break
    optimizers = sorted({one.optimizer.name for one in sections})
    if isinstance(server.aggregator, LocalAdaptivity) and len(optimizers) > 1:
        yield (
            f"server.aggregator.name = 'local_adaptivity' divides by what one optimizer sums, so all of fedex.configs "
            f"must have the same client.optimizer.name, but got {' and '.join(map(repr, optimizers))}"
        )


def _without(client: ClientSection, composite: Composite | None, server: ServerSection) -> Iterator[tuple[str, str]]:
    """Yield keys that FedEx is not defined with, with reasons."""
    fair = fair_objectives.make(server.fairness)
    unused = {
        "composite": (composite is not None, "whose server takes one learning rate of all clients"),
        "client.posterior": (client.posterior is not None, "whose updates are not those of the model that is scored"),
        "client.personalisation": (client.personalisation is not None, "which trains models that are not scored"),
        "server.privacy": (server.privacy is not None, "whose accountants do not know the clients' errors"),
        "server.fairness.name = 'qffl'": (
            fair is not None and fair.divides_by_lr,
            "which divides by one learning rate of all clients",
        ),
    }
    for key, (is_given, why) in unused.items():
        if is_given:
            yield key, why


def _changed(client: ClientSection, change: Mapping[str, Any], where: str) -> ClientSection:
    keys = client.model_dump(mode="json", by_alias=True, exclude_unset=True)
    for key in MAY_DIFFER:
        if isinstance(own := getattr(client, key), OwnPart):
            # A part that a script passes may be none of the explicit keys.
            keys[key] = own.model_dump(mode="json")
    try:
        changed = ClientSection.checked(overrides.apply(keys, change, ()), "client")
        same = ClientSection.checked(keys, "client")
    except ExperimentError as error:
        raise ExperimentError(f"{where}: {error}") from None
    differing = [key for key in type(client).model_fields if getattr(changed, key) != getattr(same, key)]
    if shared := [key for key in differing if key not in MAY_DIFFER]:
        raise ExperimentError(
            f"{where} changes client.{shared[0]}, which all configurations share: they may differ in "
            f"{', '.join(MAY_DIFFER)}."
        )
    values = {key: _bound(key, getattr(changed, key), getattr(client, key), where) for key in differing}
    return replaced(client, **values)


def _bound(key: str, part: Any, before: Any, where: str) -> Any:
    """Return a value with what the script passed for the one that it replaces."""
    if not isinstance(part, OwnPart):
        return part
    if not isinstance(before, OwnPart):
        raise ExperimentError(
            f"{where}: a part that a script passes is that of [client]: with {key}.name = 'own' here, "
            f"client.{key}.name must be 'own', too."
        )
    return part.bound(before.passed) if before.is_bound else part
