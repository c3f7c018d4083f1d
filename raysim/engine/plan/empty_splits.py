"""Says which splits are to be evaluated and have no examples: nothing tells of them in a run's record."""

from __future__ import annotations

from collections.abc import Iterator

from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.evaluation import scores


def remarks(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each split that the experiment evaluates, and whose evaluated clients have no examples."""
    section = plan.experiment.evaluation
    for name in evaluated_splits(plan):
        split = plan.dataset.split(name)
        if not split.sizes(scores.sample_clients(split, section.clients, plan.experiment.seed)).any():
            yield f"the split {name!r} has no examples, so it is not evaluated"
