"""Centralised training: the upper line that a federated method is compared with."""

from __future__ import annotations

from raysim.cohort.section import CohortSection
from raysim.experiment import Experiment
from raysim.server.section import ServerSection


def centralized(experiment: Experiment) -> Experiment:
    """The experiment without a federation: the same model, trained on the pooled training examples.

    It is federated averaging over one client that has them all, with server learning rate 1: what the client arrives
    at is the next model. A round is therefore `client.epochs` passes over the pooled examples (or `client.local_steps`
    local steps), with the client's optimizer, batch size, learning rate and its decay per round. The optimizer's state
    starts anew in every round, as clients' does: for momentum over the whole run, ask for one round of many epochs.
    Model, data, seeds, evaluation and number of rounds stay. What belongs to the federation goes: cohort, server,
    correction, adversary, clients that leave, simulated devices, and the evaluation of fine-tuned clients.

    Returns:
        An experiment like any other, called `<name>-centralized`.
    """
    client = experiment.client.model_copy(update={"correction": None, "mid_round_dropout": 0.0})
    return experiment.model_copy(
        update={
            "name": f"{experiment.name}-centralized",
            "pooled": True,
            "client": client,
            "cohort": CohortSection(size=1, seed=experiment.cohort.seed),
            "server": ServerSection(),
            "adversary": None,
            "systems": None,
            "evaluation": experiment.evaluation.model_copy(update={"fine_tuning": None}),
        }
    )
