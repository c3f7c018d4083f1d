"""Which runs are mates: their clients may be trained in one stack, each from its own run's model and at its own rate.

Mates differ in learning rates of their clients, in what their servers do, or in nothing but weights. In a round in
which they have the same chunks, the same batches go through all their models (client/forms/stacked.py, compiled.py).
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from raysim.client.forms.choose import STACK_NUMBERS
from raysim.client.forms.make import rule_for
from raysim.engine.numerics import choose_device
from raysim.engine.plan import Plan

_OWN = ("name", "rounds", "trials", "server", "tuning")
"""Keys in which mates may differ."""


def mates_key(plan: Plan) -> Hashable | None:
    """Equal for mates; None for a run that can have none.

    Clients that remember, passes before training, updates that are looked at again, and samplers that learn keep a run
    by itself; and so does a form that cannot train a client from several starts.
    """
    e = plan.experiment
    correction = e.client.correction
    plain = rule_for(e.client, sums_gradients=False, product_makes_step=True).plain
    alone = (
        not (plan.way.form == "stacked" or (plan.way.form == "compiled" and plain))
        or (correction is not None and correction.name != "prox")
        or plan.keeps_updates
        or e.engine.cuda_graphs
    )
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
        plan.way,
    )


def starts_at_once(plan: Plan, clients: int) -> int:
    """How many mates' models a stack of so many clients of each should hold."""
    numbers = STACK_NUMBERS[choose_device(plan.experiment.engine.gpus_per_worker).type]
    return max(1, numbers // (max(1, clients) * plan.initial.params.numel()))
