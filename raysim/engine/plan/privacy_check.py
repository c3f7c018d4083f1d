"""Checks `server.privacy` against clients and model, and finds the noise that keeps to its epsilon."""

from __future__ import annotations

import torch

from raysim.algorithm import private
from raysim.config.section import replaced
from raysim.data.dataset import FederatedDataset
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.models.model import Model
from raysim.server.privacy.accountant import check_installed, least_noise
from raysim.server.privacy.gaussian import Gaussian


def with_noise_multiplier(experiment: Experiment, dataset: FederatedDataset, model: Model) -> Experiment:
    """Return the experiment with a noise multiplier, which its record then has.

    Raises:
        ExperimentError: the model has averaged buffers, the budget does not last for a round, or the simulated cohort
            is larger than all clients; or the accountant is not installed.
    """
    section = experiment.server.privacy
    if section is None:
        return experiment
    population = len(dataset.train)
    if model.buffers.size:
        raise ExperimentError(
            f"server.privacy noises updates of parameters, but the model also averages its buffers "
            f"{', '.join(model.buffers.names)}: take a model without, such as one with group normalisation."
        )
    if isinstance(section, Gaussian) and (size := section.noise_cohort_size) is not None and size > population:
        raise ExperimentError(
            f"server.privacy.noise_cohort_size <= number of training clients must hold, but got {size:,} and "
            f"{population:,} training clients."
        )
    if not section.noised:
        return experiment
    check_installed()
    client, server, cohort, seed = experiment.client, experiment.server, experiment.cohort, experiment.seed
    mechanism = private.make(client, server, cohort, population, experiment.rounds, model.params, torch.float32, seed)
    assert mechanism is not None
    assert mechanism.accountant is not None
    if section.noise_multiplier is None:
        assert section.epsilon is not None
        z = least_noise(mechanism.accountant, experiment.rounds, section.epsilon)
        calibrated = replaced(section, noise_multiplier=z)
        return replaced(experiment, server=replaced(experiment.server, privacy=calibrated))
    if section.epsilon is not None and (first := mechanism.accountant.epsilon(1)) > section.epsilon:
        raise ExperimentError(
            f"server.privacy.epsilon = {section.epsilon:g} is spent before the first round ends: with "
            f"noise_multiplier = {section.noise_multiplier:g} one round makes it {first:.6g}. Raise one of them."
        )
    return experiment
