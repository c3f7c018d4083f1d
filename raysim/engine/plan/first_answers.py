"""Computes what the code of a script answers to a client's first examples, by which a run that goes on knows it again.

A module, a loss and an objective are code. A folder's digest of it (`part_code.py`) says whether it was changed, not
whether its numbers are others: these answers tell most of those apart.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from raysim.config.global_draws import draws
from raysim.engine.cores import on_free_cores
from raysim.engine.plan import first_examples
from raysim.engine.plan.first_objective import Trial
from raysim.engine.plan.plan import Plan
from raysim.models.model import bind
from raysim.models.probe import probe
from raysim.run_folder.passed_parts import Answers

MOST_NUMBERS = 16
"""Of outputs, one by one; a sum with unequal factors has all of them. Losses are as many as the examples."""

TOLD_APART = ("model", "loss", "objective")
"""The keywords of parts that these answers are of."""


DROPOUT = "dropout"
"""The keyword of the rates of a module's dropout layers, beside those of parts."""


def answers(plan: Plan) -> Answers:
    """Return outputs and losses by the keyword of the part; empty if none was passed.

    They are of parameters and buffers that no seed, `params=` or `model.init` decides. Values that are not finite count
    as 0. What fails with such numbers has no answers.
    """
    passed = [name for name in TOLD_APART if name in plan.passed.names]
    if not passed:
        return {}
    x, y = first_examples.load(plan.experiment, plan.dataset, plan.initial)
    numbers = probe(plan.model.params, plan.initial.params)
    weights = replace(plan.initial.clone(), params=numbers, buffers=torch.ones_like(plan.initial.buffers))
    module = bind(plan.model, weights, x.device).eval()
    try:
        with on_free_cores(), draws(), torch.no_grad():
            outputs = module(x)
            found = {"model": _of_all(outputs), "loss": plan.task.losses(outputs, y)}
        if (objective := plan.minimised.objective) is not None:
            train, seed = plan.dataset.train, plan.experiment.seed
            found["objective"] = Trial(objective, plan.model, weights, (x, y), seed, train.id_of).called().losses
    except Exception:
        # With the initial numbers all of it has been tried.
        return {}
    told = {name: tuple(_finite(found[name]).tolist()) for name in passed if name in found}
    if "model" in told:
        # The outputs are those of evaluation, in which nothing is dropped.
        told[DROPOUT] = _rates_of_dropout(module)
    return told


def _rates_of_dropout(module: nn.Module) -> tuple[float, ...]:
    return tuple(float(layer.p) for layer in module.modules() if isinstance(layer, nn.modules.dropout._DropoutNd))


def _of_all(outputs: Tensor) -> Tensor:
    """Return the first outputs, and a sum of all of them with unequal factors."""
    flat = _finite(outputs).reshape(-1)
    factors = torch.arange(1, len(flat) + 1, dtype=torch.float64, device=flat.device).sin_()
    return torch.cat([flat[:MOST_NUMBERS], (flat @ factors / math.sqrt(len(flat) or 1)).reshape(1)])


def _finite(tensor: Tensor) -> Tensor:
    return tensor.detach().to(torch.float64).nan_to_num(0.0, 0.0, 0.0)
