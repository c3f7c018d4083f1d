"""A pool of simulated clients on one device: trains chunks and scores evaluation slices. Knows nothing of Ray."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import torch

from raysim import evaluate
from raysim.algorithm import Broadcast
from raysim.client.chunk import ClientFailure
from raysim.client.forms.make import make
from raysim.engine.job import Kind
from raysim.engine.plan import Plan
from raysim.errors import ClientError
from raysim.models.model import Weights, bind
from raysim.server.sums import Sums


class Pool:
    """Everything a worker keeps between calls: the form with its buffers, and a module for evaluation.

    Args:
        plan: the run.
        device: where clients are trained.
        worker: how errors name this pool.
    """

    def __init__(self, plan: Plan, device: torch.device, worker: str) -> None:
        self._plan = plan
        self._device = device
        self._worker = worker
        self._local = plan.algorithm().local
        self._loaded = _to(plan.initial, device, copy=True)
        self._form = make(
            plan.way, plan.model, self._loaded, plan.task, plan.experiment.client, plan.experiment.engine.precision
        )
        self._module = bind(plan.model, self._loaded, device).eval()
        self._runners: dict[Kind, Callable[[Broadcast, Any], Any]] = {"train": self._train, "evaluate": self._evaluate}

    def run(self, kind: Kind, broadcast: Broadcast, index: int, unit: Any) -> Any:
        """Carry out one unit.

        Raises:
            ClientError: user code failed; says where, with its traceback.
        """
        try:
            # Modules draw from torch's generator: theirs is put back, so a script's own draws are not disturbed.
            with torch.random.fork_rng(devices=[]):
                return self._runners[kind](broadcast, unit)
        except ClientFailure as failure:
            raise ClientError(self._describe(kind, failure, broadcast.round, index, unit)) from failure.__cause__

    def _train(self, broadcast: Broadcast, chunk: tuple[int, ...]) -> Sums:
        sent = Broadcast(broadcast.round, _to(broadcast.weights, self._device), broadcast.lr)
        return self._local(self._form, self._plan.dataset, sent, chunk)

    def _evaluate(self, broadcast: Broadcast, unit: evaluate.Unit) -> evaluate.ClientScores:
        for own, sent in zip(_vectors(self._loaded), _vectors(broadcast.weights), strict=True):
            own.copy_(sent)
        return evaluate.evaluate(self._module, self._plan.task, self._plan.dataset, unit, self._loaded.params)

    def _describe(self, kind: Kind, failure: ClientFailure, round_index: int, index: int, unit: Any) -> str:
        split = self._plan.dataset.train if kind == "train" else self._plan.dataset.split(unit[0])
        doing = "Training" if kind == "train" else "Evaluating"
        cause = failure.__cause__
        trace = "".join(traceback.format_exception(cause)) if cause else ""
        return (
            f"{doing} client {split.id_of(failure.position)!r} failed in round {round_index}, chunk {index}, "
            f"on {self._worker}: {cause!r}\n{trace}"
        )


def _vectors(weights: Weights) -> tuple[torch.Tensor, ...]:
    return weights.params, weights.buffers, weights.counters


def _to(weights: Weights, device: torch.device, copy: bool = False) -> Weights:
    return Weights(*(vector.to(device, copy=copy) for vector in _vectors(weights)))
