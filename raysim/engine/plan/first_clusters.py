"""Checks clusters against clients and model, and finds what each cluster's model starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy.typing as npt

from raysim.client.personalisation.clusters import Clusters
from raysim.data.dataset import FederatedDataset
from raysim.errors import ExperimentError, ModelError
from raysim.experiment.experiment import Experiment
from raysim.models.model import Model

Named = Mapping[str, npt.ArrayLike]


def params_of(
    experiment: Experiment, dataset: FederatedDataset, model: Model, given: Named | Sequence[Named] | None
) -> list[Named | None]:
    """Return the initial values that a script passes for each cluster, or for the only model; None: the seed's.

    Raises:
        ExperimentError, ModelError: clusters that do not fit, or not one mapping for each.
    """
    section = experiment.client.personalisation
    if not isinstance(section, Clusters):
        # replace_params refuses what is not a mapping.
        return [given]  # type: ignore[list-item]
    if experiment.model is not None and experiment.model.init is not None:
        raise ExperimentError(
            "client.personalisation.name = 'clusters' begins with a model for each cluster, and model.init is one: "
            "leave it out, and pass params= with a list of mappings, one for each cluster."
        )
    if section.count > len(dataset.train):
        raise ExperimentError(
            f"client.personalisation.count <= number of training clients must hold, but got count = {section.count} "
            f"and {len(dataset.train)} training clients."
        )
    if model.buffers.names or model.counters.names:
        raise ModelError(
            f"client.personalisation.name = 'clusters' trains models without buffers, but this one has "
            f"{[*model.buffers.names, *model.counters.names]}: take a model with group norm."
        )
    if given is None:
        return [None] * section.count
    if isinstance(given, Mapping) or not isinstance(given, Sequence) or len(given) != section.count:
        raise ModelError(f"params= must be a list of {section.count} mappings, one for each cluster, but is not.")
    return list(given)
