"""The data of an experiment, by themselves: to look at, or to hold clients out of."""

from __future__ import annotations

from raysim.data.dataset import FederatedDataset
from raysim.data.prepare import prepare
from raysim.errors import ExperimentError
from raysim.experiment import Experiment


def dataset_of(experiment: Experiment) -> FederatedDataset:
    """The dataset that the experiment's `[data]` section asks for, made on first use and opened from the cache then.

    Raises:
        ExperimentError: there is no such section: the data come from a script. Or the division is not defined.
        DataError: a file of the source is missing or damaged.
    """
    if experiment.data is None:
        raise ExperimentError("The experiment has no [data] section, so dataset= must be passed.")
    return prepare(experiment.data, experiment.seed)
