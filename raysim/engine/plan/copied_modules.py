"""Lets processes copy a module with a large frozen base, in place of calling its factory, where copies are like it."""

from __future__ import annotations

import logging
from dataclasses import replace

import torch
from torch import Tensor, nn

from raysim.config.global_draws import draws
from raysim.data.dataset import FederatedDataset
from raysim.engine.cores import on_free_cores
from raysim.engine.plan import first_examples, first_module
from raysim.experiment.experiment import Experiment
from raysim.models import memory
from raysim.models.copies import Copies
from raysim.models.model import Model, Weights, bound

log = logging.getLogger("raysim")


def with_copies(model: Model, initial: Weights, experiment: Experiment, dataset: FederatedDataset) -> Model:
    """Return the model with a factory of copies; as it is, if it has little frozen, or copies would not be like it."""
    if model.constants.num_bytes <= memory.SMALLEST_BYTES:
        return model
    original = model.module()
    if first_module.plain(original) is not original:
        return model
    try:
        copied = replace(model, factory=Copies.of(original))
        x, _ = first_examples.load(experiment, dataset, initial)
        other = first_module.other_values(initial)
        # The original has the initial values while its copy is called: a copy that uses a part of it shows.
        bound(original, model, initial.clone(), x.device)
        by_copy = _outputs(bound(copied.module(), model, other.clone(), x.device), x)
        by_original = _outputs(bound(original, model, other.clone(), x.device), x)
        if not all(map(first_module.is_close, by_copy, by_original)):
            raise ValueError("copies give other outputs")
    except Exception as error:
        log.debug("every process makes the module by its factory: %s", error)
        return model
    return copied


def _outputs(module: nn.Module, x: Tensor) -> list[object]:
    """Return what the module gives in evaluation and in training."""
    outputs: list[object] = []
    with on_free_cores(), draws():
        for training in (False, True):
            torch.default_generator.manual_seed(0)
            outputs.append(module.train(training)(x.clone()))
    return outputs
