"""Decides which runs go in lockstep: a worker trains their clients in one stack, each with its run's model and rate.

Runs in lockstep differ only in client learning rates, in the server, or in weights. In a round with equal chunks, the
same batches go through all their models (client/trainers/stacked.py, compiled.py).
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from raysim.algorithm import local_adaptivity
from raysim.client.corrections import choice as corrections
from raysim.client.optimizers import choice as optimizers
from raysim.client.trainers.construction import rule_for
from raysim.client.trainers.trainer_table import STACK_NUMBERS
from raysim.engine.numerics import choose_device
from raysim.engine.plan.plan import Plan

_OWN = ("name", "rounds", "trials", "server", "stop", "report", "tuning")
"""Keys in which runs in lockstep may differ."""


def lockstep_key(plan: Plan, exact: bool = False) -> Hashable | None:
    """Return a key that is equal for runs that may go in lockstep; None for a run that goes alone.

    With `exact`, a run in lockstep has the bits that it has alone, on every processor: the kernel trains each client
    independently, while the bits of a product over a stack may depend on the number of clients.

    A run goes alone if its clients keep state, train something for themselves or draw a configuration, if it has
    several phases, if it keeps updates, or if its sampler learns. It also goes alone if its trainer cannot train a
    client from several starts, or if its client optimizer is not a built-in one, because that may not accept a rate for
    each row.
    """
    e, algorithm = plan.experiment, plan.algorithm()
    plain = rule_for(e.client, sums_gradients=False, product_makes_step=True).plain
    alone = (
        not (plan.choice.trainer == "stacked" or (plan.choice.trainer == "compiled" and plain))
        or not corrections.make(e.training.correcting).only_pulls
        or not optimizers.OPTIMIZERS.is_built_in(e.client.optimizer)
        or local_adaptivity.sums_inverses(e.client, e.server)
        or algorithm.state_vectors
        or len(algorithm.phases) > 1
        or algorithm.personal is not None
        or plan.keeps_updates
        or plan.learns
        or e.fedex is not None
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
    """Return the number of runs whose models a stack should hold, with this number of clients of each."""
    numbers = STACK_NUMBERS[choose_device(plan.experiment.engine.gpus_per_worker).type]
    return max(1, numbers // (max(1, clients) * plan.initial.params.numel()))
