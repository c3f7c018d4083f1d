"""Keeps what a worker needs for FedEx: a trainer of each configuration, and where clients' own examples are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property

from raysim.algorithm.local_context import LocalContext, OwnError
from raysim.client.section import ClientSection
from raysim.client.trainer import Trainer
from raysim.data.on_device import Examples
from raysim.engine.plan.plan import Plan
from raysim.evaluation import own_examples, scores
from raysim.evaluation.personalised import Bench
from raysim.models.model import Weights
from raysim.server.fedex import FedEx

OF_LOCAL_STEPS = ("optimizer", "correction", "max_grad_norm", "batch_size", "schedule")
"""Keys of [client] that change how a configuration's trainer computes local steps."""


class Configurations:
    """The configurations of one run.

    Args:
        plan: the run.
        fedex: its section.
        make: makes a trainer of a section.
        bench: scores models.
    """

    def __init__(self, plan: Plan, fedex: FedEx, make: Callable[[ClientSection], Trainer], bench: Bench) -> None:
        self._plan, self._split, self._make = plan, fedex.split, make
        self._bench = replace(bench, metrics=scores.NONE)
        self._trainers: dict[str, Trainer] = {}

    def with_trainers(self, context: LocalContext, examples: Examples) -> LocalContext:
        """Return the context with the trainers and the errors."""

        def own_error(weights: Weights, position: int, is_finite: bool) -> OwnError | None:
            return self._own_error(examples, weights, position, is_finite)

        return context._replace(trainer_of=self._trainer_of, own_error=own_error)

    def _trainer_of(self, config: int) -> Trainer:
        """Return the trainer of a configuration; those whose local steps differ only in the learning rate share one."""
        section = self._plan.configurations[config]
        # A trainer may depend on a pull's product with the rate.
        without = {"optimizer": {"lr"}} if section.correction is None else None
        steps = section.model_dump_json(include=set(OF_LOCAL_STEPS), exclude=without)
        if steps not in self._trainers:
            self._trainers[steps] = self._make(section)
        return self._trainers[steps]

    def _own_error(self, examples: Examples, weights: Weights, position: int, is_finite: bool) -> OwnError | None:
        place = self._places.get(position)
        if place is None:
            return None
        scored = self._bench.score(examples, weights, self._split, (position, *place))
        error = own_examples.error(scored, is_finite)
        return None if error is None else OwnError(place.examples, error)

    @cached_property
    def _places(self) -> Mapping[int, own_examples.OwnExamples]:
        return own_examples.places(self._plan.dataset, self._split, "fedex")
