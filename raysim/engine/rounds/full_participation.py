"""Computes the full-participation probe: index and norm of all training clients' updates from a round's model.

Source: Yang et al. (2023), App. C (figure 8) and O. Clients make the same draws as in the cohort, so members of the
cohort send the same updates. Only figures are kept: no model, state or level depends on the probe.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from raysim.algorithm.algorithm import Algorithm
from raysim.engine.job import Executor, Job
from raysim.engine.plan.plan import Plan
from raysim.server.agreement import agreement, similarity
from raysim.server.state import ServerState
from raysim.server.step import Metrics
from raysim.server.sums import Sums


def submit(plan: Plan, algorithm: Algorithm, executor: Executor, state: ServerState) -> int:
    """Submit the training of all training clients; returns the job's ticket."""
    everyone = np.arange(len(plan.dataset.train))
    (phase,) = algorithm.phases
    broadcast = replace(phase.broadcast(state, {}, everyone.tolist(), ()), measures=True)
    return executor.submit(Job("train", broadcast, *plan.chunks(everyone, state.round, state.fedex)))


def read(plan: Plan, sums: Sums) -> Metrics:
    """Return `probe/clients`, `mean_norm_all_clients`, `probe/gsi` and `probe/gsi/<group>`; the first alone if every
    update was rejected."""
    metrics: Metrics = {"probe/clients": sums.clients}
    if sums.clients:
        metrics["mean_norm_all_clients"] = sums.norm / sums.clients
        metrics |= similarity(plan.model.params, agreement(plan.model.params, sums), prefix="probe/")
    return metrics
