"""From a `[data]` section of a generated source to a dataset; nothing is stored."""

from __future__ import annotations

from collections.abc import Callable

from raysim.data.dataset import FederatedDataset
from raysim.data.fingerprint import address_digest
from raysim.data.generated_split import GeneratedSplit
from raysim.data.holdout import Holdout
from raysim.data.sources.examples import LABEL
from raysim.data.sources.synthetic import CLASSES, FEATURES, Part, Synthetic, SyntheticClients, synthetic_address
from raysim.seeds import Int64s


def generated(section: Synthetic, seed: int) -> FederatedDataset:
    """The section's clients, each computed when it is asked for."""

    def part(name: Part, num_clients: int, members: Callable[[], Int64s] | None = None) -> GeneratedSplit:
        return GeneratedSplit(SyntheticClients(section, seed, name), num_clients, members)

    train, validation = part("train", section.clients), None
    if section.holdout:
        holdout = Holdout(section.clients, section.holdout, seed)
        train = part("train", holdout.num_train, holdout.train)
        validation = part("train", holdout.num_validation, holdout.validation)
    elif section.holdout_examples:
        validation = part("validation", section.clients)
    return FederatedDataset(
        train=train,
        validation=validation,
        test=part("test", section.clients),
        x=FEATURES,
        y=LABEL,
        num_classes=CLASSES,
        fingerprint=address_digest(synthetic_address(section, seed)),
    )
