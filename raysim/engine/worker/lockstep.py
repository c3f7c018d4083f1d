"""Decides which runs go in lockstep: their clients are trained in one stack, each from its run's model and at its rate.

Runs in lockstep differ in learning rates of their clients, in what their servers do, or in nothing but weights. In a
round in which they have the same chunks, the same batches go through all their models (client/trainers/stacked.py,
compiled.py).
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from raysim.client.corrections import make as corrections
from raysim.client.optimizers import choice as optimizers
from raysim.client.trainers.choose import STACK_NUMBERS
from raysim.client.trainers.make import rule_for
from raysim.engine.numerics import choose_device
from raysim.engine.plan.plan import Plan

_OWN = ("name", "rounds", "trials", "server", "tuning")
"""Keys in which runs in lockstep may differ."""


def lockstep_key(plan: Plan, exact: bool = False) -> Hashable | None:
    """Equal for runs that may go in lockstep; None for a run that goes by itself.

    With `exact`, such runs have the bits that each has alone on every processor: the kernel trains a client without a
    look at the others, while products of a stack of clients may be cut up by how many there are.

    Clients that remember, passes before training, updates that are looked at again, and samplers that learn keep a run
    by itself; and so do a trainer that cannot train a client from several starts, and a client optimizer that is no
    built-in one, which may not take a rate for each row.
    """
    e = plan.experiment
    plain = rule_for(e.client, sums_gradients=False, product_makes_step=True).plain
    alone = (
        not (plan.choice.trainer == "stacked" or (plan.choice.trainer == "compiled" and plain))
        or not corrections.make(e.client.correction).only_pulls
        or not optimizers.OPTIMIZERS.is_built_in(e.client.optimizer)
        or plan.algorithm().remembers
        or plan.keeps_updates
        or plan.learns
        or e.engine.cuda_graphs
    )
    if exact:
        on_card = choose_device(e.engine.gpus_per_worker).type != "cpu"
        alone |= plan.choice.trainer != "compiled" or on_card
    if alone:
        return None
    record = json.loads(e.to_json())
    shared = {name: section for name, section in record.items() if name not in _OWN}
    del shared["client"]["optimizer"]["lr"]
    if shared["model"]:
        del shared["model"]["seed"]
    return (
        json.dumps(shared, sort_keys=True),
        plain,
        plan.model.params,
        plan.dataset.fingerprint,
        plan.choice,
    )


def starts_at_once(plan: Plan, clients: int) -> int:
    """How many runs' models a stack of so many clients of each should hold."""
    numbers = STACK_NUMBERS[choose_device(plan.experiment.engine.gpus_per_worker).type]
    return max(1, numbers // (max(1, clients) * plan.initial.params.numel()))
