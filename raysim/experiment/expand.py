"""Derives from an experiment its dataset, its trials, and its centralised counterpart.

Trial i is the experiment with `seed + i`; run alone, it has the same bits. Two algorithms with the same seeds have the
same cohorts, trial by trial, so their results can be compared in pairs.
"""

from __future__ import annotations

from typing import Any, get_args

from raysim.cohort.section import CohortSection
from raysim.config.section import replaced
from raysim.config.values import LAST_SEED
from raysim.data.dataset import FederatedDataset
from raysim.data.prepare import prepare
from raysim.errors import ExperimentError
from raysim.experiment.experiment import Experiment, TrialsSection, Varied, check_kind
from raysim.server.section import ServerSection


def dataset_of(experiment: Experiment) -> FederatedDataset:
    """Open the dataset of the experiment's `[data]` section; the first use prepares it and stores it in the cache.

    Raises:
        ExperimentError: there is no such section, because a script passes the data; or the partition is not defined.
        DataError: a file of the source is missing or damaged.
    """
    check_kind(experiment)
    if experiment.data is None:
        raise ExperimentError(
            "The experiment has no [data] section, so dataset= must be passed, from a script: "
            "raysim.run(experiment, dataset=...), raysim.resume(path, dataset=...)."
        )
    return prepare(experiment.data, experiment.seed)


def trials_of(experiment: Experiment) -> tuple[Experiment, ...]:
    """Return the trials, in order, each an experiment with one trial.

    Raises:
        ExperimentError: the seed of a trial would be beyond 64 bits.

    Examples:
        >>> experiment = Experiment.model_validate({"seed": 7, "trials": 2, "cohort": {"size": 1, "seed": 3}})
        >>> [(trial.seed, trial.cohort.seed) for trial in trials_of(experiment)]
        [(7, 3), (8, 4)]
    """
    check_kind(experiment)
    return tuple(_trial(experiment, i) for i in range(experiment.trials.count))


def _trial(experiment: Experiment, i: int) -> Experiment:
    changed: dict[str, Any] = {"seed": _moved("seed", experiment.seed, i), "trials": TrialsSection()}
    for name in get_args(Varied):
        section = getattr(experiment, name)
        if section is None:
            continue
        if name not in experiment.trials.vary:
            own = experiment.seed if section.seed is None else section.seed
        elif section.seed is not None:
            own = _moved(f"{name}.seed", section.seed, i)
        else:
            continue
        changed[name] = replaced(section, seed=own)
    return replaced(experiment, **changed)


def _moved(key: str, seed: int, i: int) -> int:
    if seed + i > LAST_SEED:
        raise ExperimentError(
            f"{key} = {seed}: trial {i} would have the seed {key} + {i}, which must be at most {LAST_SEED} (64 bits, "
            f"sign included): take a smaller one."
        )
    return seed + i


def centralized(experiment: Experiment) -> Experiment:
    """Return the centralized experiment: the same model, trained on the pooled training examples.

    It is federated averaging over one client with all examples, with server learning rate 1: the client's model is the
    next model. A round is `client.epochs` passes over the pooled examples (or `client.local_steps` local steps), with
    the client's optimizer, batch size, learning rate and its decay per round. The optimizer's state starts anew in
    every round, like a client's: for momentum over the whole run, use one round of many epochs. Model, data, seeds,
    evaluation and number of rounds stay. These sections are removed: cohort, server, correction, personalisation,
    transform and compression of updates, fedex, adversary, dropout of clients, simulated devices, and the evaluation of
    fine-tuned clients.

    Returns:
        An experiment with the name `<name>-centralized`.
    """
    check_kind(experiment)
    client = replaced(
        experiment.client,
        correction=None,
        posterior=None,
        personalisation=None,
        transform=(),
        compression=None,
        mid_round_dropout=0.0,
    )
    return replaced(
        experiment,
        name=f"{experiment.name}-centralized",
        pooled=True,
        client=client,
        composite=None,
        fedex=None,
        cohort=CohortSection(size=1, seed=experiment.cohort.seed),
        server=ServerSection(),
        adversary=None,
        systems=None,
        evaluation=replaced(experiment.evaluation, fine_tuning=None),
    )
