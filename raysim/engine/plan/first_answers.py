"""Computes what the code of a script answers to a client's first examples, by which a run that goes on knows it again.

A module, a loss and an objective are code, of which a folder has no digest. Their answers tell most others apart.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysim.config.global_draws import draws
from raysim.engine.plan import first_examples, first_objective
from raysim.engine.plan.plan import Plan
from raysim.models.model import bind
from raysim.run_folder.passed_parts import Answers

MOST_NUMBERS = 16
"""Of outputs; losses are as many as the examples."""

TOLD_APART = ("model", "loss", "objective")
"""The keywords of parts that these answers are of."""


def answers(plan: Plan) -> Answers:
    """Return outputs and losses of the plan's initial model, by the keyword of the part; empty if none was passed.

    An answer that is not finite is left out.
    """
    passed = [name for name in TOLD_APART if name in plan.passed.names]
    if not passed:
        return {}
    x, y = first_examples.load(plan.experiment, plan.dataset, plan.initial)
    module = bind(plan.model, plan.initial.clone(), x.device).eval()
    with draws(), torch.no_grad():
        outputs = module(x)
        found = {"model": outputs.reshape(-1)[:MOST_NUMBERS], "loss": plan.task.losses(outputs, y)}
    if (objective := plan.minimised.objective) is not None and "objective" in passed:
        train, seed = plan.dataset.train, plan.experiment.seed
        found["objective"] = first_objective.losses(objective, plan.model, plan.initial, (x, y), seed, train.id_of)
    numbers = {name: _numbers(found[name]) for name in passed if name in found}
    return {name: each for name, each in numbers.items() if each}


def _numbers(tensor: Tensor) -> tuple[float, ...]:
    numbers = tensor.detach().to(torch.float64)
    return tuple(numbers.tolist()) if bool(numbers.isfinite().all()) else ()
