"""Finds training clients' own examples in a split, and the error of a model on them: e_i of FedEx (server/fedex.py)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from raysim.data.dataset import FederatedDataset
from raysim.errors import ExperimentError
from raysim.evaluation.scores import ClientScores


class OwnExamples(NamedTuple):
    """Where a training client's examples are in a split: its position there, and their number."""

    position: int
    examples: int


def places(dataset: FederatedDataset, name: str, key: str) -> Mapping[int, OwnExamples]:
    """Return the place of each training client with examples in a split, by its position in the training split.

    `key`: that of the experiment which asks for it.

    Raises:
        DataError, ExperimentError: there is no such split, or no such client.
    """
    split, train = dataset.split(name), dataset.train
    sizes = split.sizes().tolist()
    known = {train.id_of(position): position for position in range(len(train))}
    ids = ((split.id_of(position), OwnExamples(position, size)) for position, size in enumerate(sizes) if size)
    found = {known[client_id]: place for client_id, place in ids if client_id in known}
    if not found:
        raise ExperimentError(
            f"{key} scores clients on their own examples in the split {name!r}, but no training client has any there: "
            f"its ids must be those of training clients, such as {train.id_of(0)!r}."
        )
    return found


def error(scores: ClientScores, is_finite: bool) -> float | None:
    """Return 1 - accuracy of one client, or its loss where no predictions are counted.

    A model that is not finite predicts nothing: 1, or an infinite loss. None where no place of the client's examples
    counts, as of texts of padding or unknown words alone.
    """
    if not scores.counted[0]:
        return None
    if math.isnan(scores.correct[0]):
        loss = float(scores.loss[0] / scores.examples[0])
        return loss if is_finite and math.isfinite(loss) else math.inf
    return float(1 - scores.accuracies()[0]) if is_finite else 1.0
