"""Checks that all training clients take part in every round, for methods that are defined with all of them."""

from __future__ import annotations

from collections.abc import Iterator

from raysim.client.corrections import choice as corrections
from raysim.engine.plan.plan import Plan
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment
from raysim.server.fairness import choice as fair_objectives


def check(plan: Plan) -> None:
    """Refuse cohorts that may lack a client, if a method needs all.

    Raises:
        ExperimentError: names the method, and the key that lets clients stay away.
    """
    for who in _methods(plan.experiment):
        _check(plan, f"{who} is defined with every client in every round")


def _methods(e: Experiment) -> Iterator[str]:
    """Yield the key, with its value, of each method that needs all clients."""
    section = e.server.fairness
    fair = fair_objectives.make(section)
    if section is not None and fair is not None and fair.everyone:
        yield f"server.fairness.name = {section.name!r}"
    correction = e.client.correction
    if correction is not None and corrections.make(correction).requires.every_client:
        yield f"client.correction.name = {correction.name!r}"


def _check(plan: Plan, needs: str) -> None:
    e, population = plan.experiment, len(plan.dataset.train)
    sampler, size_at = e.cohort.rule, e.cohort.size_at(population)
    if sampler.varies or sampler.repeats:
        raise ExperimentError(
            f"{needs}, but cohorts of cohort.sampler.name = {sampler.name!r} vary: take 'uniform' with cohort.size = "
            f"{population}."
        )
    for t in range(e.rounds):
        if (size := int(size_at(t))) != population:
            raise ExperimentError(
                f"{needs}, but the cohort of round {t} has {size} of {population} training clients: set cohort.size = "
                f"{population}."
            )
    losing = {
        "client.mid_round_dropout": e.client.mid_round_dropout or None,
        "systems.deadline_s": e.systems and e.systems.deadline_s,
        "systems.session_s": e.systems and e.systems.session_s,
    }
    for key, value in losing.items():
        if value is not None:
            raise ExperimentError(f"{needs}, but {key} lets clients leave: remove it.")
