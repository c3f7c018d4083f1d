"""Says where runs that advance together pause: what they report is known there."""

from __future__ import annotations

from raysim.experiment.experiment import Experiment


def pauses_after(experiment: Experiment, rounds: int) -> bool:
    """Whether a run pauses after so many rounds: for an evaluation, for a checkpoint, or because it has no more.

    >>> given = {"rounds": 7, "cohort": {"size": 1}, "evaluation": {"every": 3}, "checkpoint": {"every": 4}}
    >>> experiment = Experiment.model_validate(given)
    >>> [rounds for rounds in range(1, 8) if pauses_after(experiment, rounds)]
    [3, 4, 6, 7]
    """
    every = (experiment.evaluation.every, experiment.checkpoint.every)
    return rounds == experiment.rounds or any(rounds % each == 0 for each in every)
