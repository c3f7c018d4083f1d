"""Finds the state from which a run goes on that takes over another run's, and refuses settings that it does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from raysim.api.preflight import other_tensors
from raysim.engine.plan.plan import Plan
from raysim.errors import ExperimentError
from raysim.experiment import differences, privacy
from raysim.experiment.experiment import Experiment
from raysim.run_folder import experiment_record, kept_checkpoints, lost_checkpoint
from raysim.server import levels
from raysim.server.state import ServerState

_OF_METHODS = ("sampler", "ledger", "correction", "fairness", "received", "fedex")
"""Parts of a state that a method carries on from round to round; what it begins with is in its initial state."""


def state_to_go_on(plan: Plan, origin: Path) -> ServerState | None:
    """Return the newest state in the folder, with the plan's levels of clipping; None: there is none.

    Raises:
        ExperimentError: the rounds of both cannot be counted together; or the state is of another module or server
            optimizer, which may have vectors of the same length; or of a method that carries on other things; or keys
            differ that only say how a run begins.
    """
    before = experiment_record.stored_experiment(origin)
    _check_counted_alike(before, plan.experiment)
    if tensors := other_tensors(plan, origin):
        raise ExperimentError(f"No run can go on from another one's state with another module: {tensors}.")
    if other := differences.of_the_start(before, plan.experiment):
        raise ExperimentError(
            f"No run can go on from another one's state with these settings, which only say how a run begins: "
            f"{'; '.join(other)}. Leave them as they were."
        )
    state = kept_checkpoints.newest_state(origin, experiment_record.stored_owner(origin))
    if state is None:
        return None
    lost_checkpoint.warn(origin, state)
    begins, server = plan.initial_state(), plan.experiment.server
    state = replace(state, levels=levels.going_on(before.server.limiting, state.levels, server.limiting))
    if lacking := begins.optimizer.keys() - state.optimizer.keys():
        raise ExperimentError(
            f"No run can go on from another one's state with another server.optimizer: that of {origin} has no "
            f"{', '.join(sorted(lacking))}."
        )
    if (was := before.server.optimizer.name) != server.optimizer.name:
        raise ExperimentError(
            f"No run can go on from another one's state with another server.optimizer: it was {was!r}, and is "
            f"{server.optimizer.name!r}."
        )
    scopes = [each.glad.scope for each in (before.server, server) if each.glad is not None]
    if len(set(scopes)) == 2:
        raise ExperimentError(
            f"No run can go on from another one's state with another server.glad.scope, by which the state has its "
            f"baselines: it was {scopes[0]!r}, and is {scopes[1]!r}."
        )
    for part in _OF_METHODS:
        own, others = getattr(begins, part), getattr(state, part)
        for name, tensor in own.items():
            if name not in others or others[name].shape != tensor.shape:
                kind = "no" if name not in others else "another form of"
                raise ExperimentError(
                    f"No run can go on from another one's state with another method: that of {origin} has {kind} "
                    f"{part}.{name}, which the rounds of this one would carry on. Take the same sampler, correction, "
                    f"fairness, compression and diagnostics, and the same clients."
                )
    return state


def _check_counted_alike(before: Experiment, after: Experiment) -> None:
    """Refuse to go on where the accountant would count the rounds before as those that follow."""
    if before.server.privacy is None and after.server.privacy is None:
        return
    if other := [line for line in differences.settings(before, after) if line.startswith(privacy.COUNTED)]:
        raise ExperimentError(
            f"No run can go on from another one's state with these settings: server.privacy counts all rounds of a run "
            f"alike, but {'; '.join(other)}. Leave them as they were."
        )
