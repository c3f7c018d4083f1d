"""Scores the models on the line through two models: theta w + (1 - theta) w', their buffers likewise.

Source: McMahan et al. (2017), figure 1: 50 evenly spaced values of theta from -0.2 to 1.2. Integer buffers are w's.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from raysim.algorithm.broadcast import Broadcast
from raysim.engine.in_process import InProcess
from raysim.engine.job import Job
from raysim.engine.numerics import choose_device, fixed
from raysim.engine.plan.plan import Plan
from raysim.errors import DataError
from raysim.evaluation import scores
from raysim.models.model import Weights

THETAS: tuple[float, ...] = tuple((np.linspace(-0.2, 1.2, 50).round(12) + 0.0).tolist())
"""0 and 1, the models themselves, are among them."""


def between(w: Weights, other: Weights, theta: float) -> Weights:
    """Return theta w + (1 - theta) w'; infinity that both have in a buffer, such as a mask's, stays."""
    params, buffers = (
        theta * own + (1 - theta) * others for own, others in ((w.params, other.params), (w.buffers, other.buffers))
    )
    kept = w.buffers.isinf() & (w.buffers == other.buffers)
    return Weights(params, torch.where(kept, w.buffers, buffers), w.counters)


def score_models(
    plan: Plan, w: Weights, other: Weights, split: str, thetas: Sequence[float] = THETAS
) -> list[dict[str, float]]:
    """Return loss and accuracy over the split's examples that the experiment evaluates, a row for each theta.

    Raises:
        DataError: the split has no examples.
    """
    examples = plan.dataset.split(split)
    section, seed = plan.experiment.evaluation, plan.experiment.seed
    clients = scores.sample_clients(examples, section.clients, seed)
    if not (units := scores.plan(split, scores.sample_examples(examples, clients, section.examples, seed))):
        raise DataError(f"The split {split!r} has no examples, so no model can be scored on it.")
    engine, rows = plan.experiment.engine, []
    with fixed(engine.threads, choose_device(engine.gpus_per_worker), engine.precision):
        executor = InProcess(plan)
        for theta in thetas:
            broadcast = Broadcast(0, between(w, other, theta), lr=0.0)
            outcome = executor.result(executor.submit(Job("evaluate", broadcast, units, [1.0] * len(units))))
            assert isinstance(outcome.value, scores.ClientScores)
            metrics = scores.summarise(scores.per_client(outcome.value), split, ())
            named = {name: metrics.get(f"{split}/{name}") for name in ("loss", "accuracy")}
            rows.append({"theta": theta, **{name: value for name, value in named.items() if value is not None}})
    return rows
