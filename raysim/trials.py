"""Trials: several seeds of one experiment.

Trial i is the experiment with `seed + i`, an experiment like any other: running it by itself gives the same bits. Two
algorithms with the same seeds meet the same cohorts, trial by trial, so that their results can be compared in pairs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from pydantic import BeforeValidator, PositiveInt

from raysim.section import Section

if TYPE_CHECKING:
    from raysim.experiment import Experiment

Varied = Literal["data", "model", "cohort"]


class TrialsSection(Section):
    """How many seeds, and what moves with them.

    count: trial i has the seed `seed` + i.
    vary: "data" is what is drawn in making and dealing out the data, "model" the initial weights, "cohort" who is
        sampled; what is left out keeps the seed of the first trial. What clients draw (batches, dropout) always moves.
    """

    count: PositiveInt = 1
    vary: tuple[Varied, ...] = get_args(Varied)


def _counted(given: Any) -> Any:
    return {"count": given} if isinstance(given, int) and not isinstance(given, bool) else given


Trials = Annotated[TrialsSection, BeforeValidator(_counted)]
"""`trials = 5` is `trials = { count = 5 }`."""


def trials_of(experiment: Experiment) -> tuple[Experiment, ...]:
    """The trials, in order, each an experiment with one trial."""
    return tuple(_trial(experiment, i) for i in range(experiment.trials.count))


def _trial(experiment: Experiment, i: int) -> Experiment:
    changed: dict[str, Any] = {"seed": experiment.seed + i, "trials": TrialsSection()}
    for name in get_args(Varied):
        section = getattr(experiment, name)
        if section is None:
            continue
        if name not in experiment.trials.vary:
            own = experiment.seed if section.seed is None else section.seed
        elif section.seed is not None:
            own = section.seed + i
        else:
            continue
        changed[name] = section.model_copy(update={"seed": own})
    return experiment.model_copy(update=changed)
