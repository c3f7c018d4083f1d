"""Samples by a Gaussian process, whose proposal for a trial is not computed twice.

Optuna's sampler keeps a proposal in the storage, and takes those of the trials under way for results to come. A trial
whose process was killed before all of its keys were stored would so be proposed to avoid itself.
"""

from __future__ import annotations

import itertools
import json
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.samplers import GPSampler
from optuna.trial import FrozenTrial

PROPOSAL = "gp:relative_params:"
"""Beginning of the attributes of a trial that hold its proposal, as Optuna names them: a text, in parts."""


class GaussianProcess(GPSampler):
    """Proposes by a Gaussian process; a trial that has a proposal keeps it."""

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose values for the keys of the space."""
        known = trial.system_attrs
        parts = itertools.takewhile(known.__contains__, (f"{PROPOSAL}{part}" for part in itertools.count()))
        if text := "".join(known[part] for part in parts):
            kept: dict[str, Any] = json.loads(text)
            return kept
        return super().sample_relative(study, trial, search_space)
