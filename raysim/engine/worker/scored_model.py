"""Defines the module with which a worker scores models, on its device."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from raysim.client.augmentations import augment
from raysim.client.trainers import side_effects
from raysim.data.on_device import Examples
from raysim.engine.plan.plan import Plan
from raysim.evaluation import scores
from raysim.evaluation.personalised import Bench
from raysim.models.model import Weights, bind


class ScoredModel:
    """A module for evaluation, into which weights are loaded.

    Args:
        plan: the run.
        loaded: the module's weights, on the device; written to.
        device: of the module.
    """

    def __init__(self, plan: Plan, loaded: Weights, device: torch.device) -> None:
        self._loaded, self._task = loaded, plan.task
        self._augment = partial(augment.for_evaluation, plan.experiment.client.augment)
        self.metrics = plan.metrics()
        self.module = bind(plan.model, loaded, device).eval()
        self.put_back = side_effects.restorer_with_contents(self.module.modules(), loaded.vectors)
        """Undoes what earlier forwards have done to the module beside its weights."""
        self._batch_size = plan.experiment.evaluation.batch_size
        self.bench = Bench(self.module, loaded, plan.task, self._augment, self.metrics, self._batch_size)
        """Scores models of their own."""

    def scores(self, weights: Weights, examples: Examples, unit: scores.Unit) -> scores.ClientScores:
        """Score the clients of a slice of an evaluation."""
        self._load(weights)
        params, size = self._loaded.params, self._batch_size
        return scores.evaluate(self.module, self._task, examples, unit, params, size, self._augment, self.metrics)

    def loss(self, weights: Weights, x: Tensor, y: Tensor) -> float:
        """Return the sum of the losses of these examples."""
        self._load(weights)
        return scores.summed_loss(self.module, self._task, x, y, self._batch_size)

    def _load(self, weights: Weights) -> None:
        for loaded, sent in zip(self._loaded.vectors, weights.vectors, strict=True):
            loaded.copy_(sent)
