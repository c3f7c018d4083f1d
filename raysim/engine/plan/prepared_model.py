"""Prepares the model that a run begins with: it is drawn from the seed, then takes the values that were given."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from raysim.client.augmentations import augment
from raysim.data.dataset import FederatedDataset
from raysim.data.section import AnyData
from raysim.engine.plan import copied_modules, first_clusters, first_examples, first_module, initial_values, text_model
from raysim.engine.plan.first_clusters import Named
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.models import holdable, size
from raysim.models import section as models
from raysim.models.model import Model, ModuleFactory, Weights, create, replace_frozen, replace_params
from raysim.models.other_names import under_first_names
from raysim.models.own_module import Own

_DTYPES = MappingProxyType({"float32": torch.float32, "float64": torch.float64})

log = logging.getLogger("raysim")

MOST_NAMED = 3
"""Parameters in a message."""


@dataclass(frozen=True)
class DrawnModel:
    """A model with the weights that its seed draws.

    factory: makes a module.
    is_own: whether a script passed the factory.
    """

    factory: ModuleFactory
    is_own: bool
    seed: int
    dtype: torch.dtype
    model: Model
    weights: Weights

    def weights_of(self, cluster: int) -> Weights:
        """Return the weights that another cluster draws; the first one has those of the model."""
        return create(self.factory, self.seed + cluster, self.dtype)[1]


@dataclass(frozen=True)
class FirstModel:
    """The model with the weights that the run begins with.

    params_of_others: for each further cluster, the values that a script passes; None: its seed draws them.
    """

    drawn: DrawnModel
    model: Model
    weights: Weights
    params_of_others: tuple[Named | None, ...]

    def of_other_clusters(self) -> tuple[Weights, ...]:
        """Return the weights that each further cluster begins with."""
        return tuple(
            self.drawn.weights_of(cluster) if params is None else replace_params(self.model, self.drawn.weights, params)
            for cluster, params in enumerate(self.params_of_others, start=1)
        )


def draw_model(
    experiment: Experiment, dataset: FederatedDataset, data: AnyData | None, own: ModuleFactory | None
) -> DrawnModel:
    """Make the script's model, or else that of `[model]`.

    Args:
        experiment: with the section of the model.
        dataset: examples have its shapes.
        data: the section that the dataset is of; None: a script passed it.
        own: the factory that a script passes, if any.

    Raises:
        ExperimentError, ModelError: there is no model, or it does not fit the data.
    """
    section, dtype = experiment.model, _DTYPES[experiment.engine.dtype]
    factory = own if own is not None else _built_in(experiment, dataset, data, dtype)
    seed = experiment.seed
    if section is not None:
        seed = seed if section.seed is None else section.seed
        factory = models.with_adapters(factory, section)
    model, weights = create(factory, seed, dtype, experiment.client.hold_frozen_norms)
    return DrawnModel(factory, own is not None, seed, dtype, model, weights)


def _built_in(
    experiment: Experiment, dataset: FederatedDataset, data: AnyData | None, dtype: torch.dtype
) -> ModuleFactory:
    if experiment.model is None or isinstance(experiment.model, Own):
        has = "has no [model] section" if experiment.model is None else "has model.name = 'own'"
        raise ExperimentError(
            f"The experiment {has}, so model= must be passed, from a script: raysim.run(experiment, model=...), "
            f"raysim.resume(path, model=...)."
        )
    outputs = dataset.num_classes if dataset.num_classes is not None else math.prod(dataset.y.shape)
    x_shape = augment.seen_shape(experiment.client.augment, dataset.x.shape)
    section = text_model.fit_vocabulary(experiment.model, data)
    size.check(section, x_shape, outputs, dtype)
    return models.factory(section, x_shape, outputs, text_model.vectors(section, data))


def give_values(
    experiment: Experiment, dataset: FederatedDataset, drawn: DrawnModel, params: Named | Sequence[Named] | None
) -> FirstModel:
    """Give the drawn model the values of `model.init`, then those that a script passes.

    Raises:
        ExperimentError, ModelError, CheckpointError: values that do not fit; or a script's module breaks a rule.
    """
    given = first_clusters.params_of(experiment, dataset, drawn.model, params)
    passed, *of_others = (_by_first_names(drawn.model, each) for each in given)
    model, weights = initial_values.read(experiment.model, drawn.model, drawn.weights)
    if passed is not None:
        if not of_others:
            named = passed
            model, passed = replace_frozen(model, named)
            _warn_of_forgotten(model, named)
        weights = replace_params(model, weights, passed)
    # A factory may freeze a mask of infinite numbers.
    frozen = {} if passed is None else model.constants
    holdable.check_initial({**frozen, **model.params.views(weights.params)})
    if drawn.is_own:
        x, _ = first_examples.load(experiment, dataset, weights)
        first_module.check(drawn.model, drawn.weights, None if weights is drawn.weights else weights, x)
    model = copied_modules.with_copies(model, weights, experiment, dataset)
    return FirstModel(drawn, model, weights, tuple(of_others))


def _warn_of_forgotten(model: Model, passed: Named) -> None:
    """Warn of frozen parameters that `params=` does not name, although it names others: the factory's values stay."""
    persistent = model.module().state_dict().keys()
    forgotten = [name for name in model.constants if name not in passed and name in persistent]
    if forgotten and any(name in passed for name in model.constants):
        more = f" and {len(forgotten) - MOST_NAMED} more" if len(forgotten) > MOST_NAMED else ""
        log.warning(
            "params= names some frozen parameters, but not %s%s: what the factory of the model gave them stays",
            ", ".join(map(repr, forgotten[:MOST_NAMED])),
            more,
        )


def _by_first_names(model: Model, given: Named | None) -> Named | None:
    """Return a script's values by the model's own names; what is no mapping, for others to refuse, as it is."""
    known = {*model.params.names, *model.buffers.names, *model.counters.names, *model.constants}
    if not isinstance(given, Mapping) or given.keys() <= known:
        return given
    return under_first_names(model.module(), given)
