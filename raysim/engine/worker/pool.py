"""Defines a pool of simulated clients on one device: it trains chunks and scores slices of evaluations, without Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from raysim import card
from raysim.algorithm import local_adaptivity
from raysim.algorithm.broadcast import Broadcast
from raysim.algorithm.local_context import ClientStates, LocalContext
from raysim.client import local_training
from raysim.client.augmentations import augment
from raysim.client.local_training import ClientFailure
from raysim.client.personalisation import choice as personalisations
from raysim.client.personalisation.personalisation import StepGradients
from raysim.client.section import ClientSection, fine_tuned
from raysim.client.trainer import LocalStart, LockstepTrainer, Trainer
from raysim.client.trainers import side_effects
from raysim.client.trainers.construction import make
from raysim.cohort.chunks import Chunk
from raysim.config.own_generators import OwnGenerators
from raysim.config.user_call import there_is, trace
from raysim.data.on_device import Examples
from raysim.engine.job import DOING, UNITS, Kind, Part, RunStates, Shard, UpdateQuery
from raysim.engine.plan.plan import Plan
from raysim.engine.worker.configurations import Configurations
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.errors import ClientError
from raysim.evaluation import personalised
from raysim.evaluation import scores as evaluate
from raysim.models.model import Weights, bind
from raysim.server.aggregators import own_rule as rules
from raysim.server.aggregators import updates
from raysim.server.aggregators.updates import Bounds
from raysim.server.sums import Sums

log = logging.getLogger("raysim")

Result = TypeVar("Result")

BATCH_OF_ONE = "Expected more than 1 value per channel when training"
"""torch's words."""


class Pool:
    """The objects that a worker keeps between calls: the trainer with its buffers, and a module for evaluation.

    Args:
        plan: the run.
        device: where clients are trained.
        worker: the name of this pool in errors.
        memory: the examples of this process; the first unit loads them, because this may take a while.
        partner: the pool of another run in lockstep with this one: they share a trainer.
    """

    def __init__(
        self, plan: Plan, device: torch.device, worker: str, memory: ExampleMemory, partner: Pool | None = None
    ) -> None:
        self._plan = plan
        self._memory = memory
        self._device = device
        self._worker = worker
        self._algorithm = plan.algorithm()
        self._augment = partial(augment.for_evaluation, plan.experiment.client.augment)
        # Without their folder no client trains: a recorded model is scored.
        self._store = plan.client_store() if self._algorithm.state_vectors and plan.states is not None else None
        self._loaded = _to(plan.initial, device, copy=True)
        self._last_received: tuple[Broadcast | None, Broadcast | None] = (None, None)
        self._kind = personalisations.make(plan.experiment.client, plan.model.params)
        self._trainer: Trainer = self._make_trainer() if partner is None else partner._trainer
        self._own = self._make_own_trainer()
        self._gradients, pieces = None, plan.experiment.client.accumulate
        if any(phase.of == "gradients" for phase in self._algorithm.phases) or (
            self._kind is not None and self._kind.needs_gradient
        ):
            self._gradients = self._trainer_for(ClientSection(accumulate=pieces), sums_gradients=True)
        self._metrics = plan.metrics()
        self._module = bind(plan.model, self._loaded, device).eval()
        self._put_back = side_effects.restorer_with_contents(self._module.modules(), self._loaded.vectors)
        self._batch_size = plan.experiment.evaluation.batch_size
        self._bench = personalised.Bench(
            self._module, self._loaded, plan.task, self._augment, self._metrics, self._batch_size
        )
        self._fine_tuner = self._make_fine_tuner()
        fedex = plan.experiment.fedex
        self._configurations = None if fedex is None else Configurations(plan, fedex, self._trainer_for, self._bench)
        # What a script's parts draw from generators of their own depends on the unit then, and not on the worker.
        self._generators_of_parts = OwnGenerators(
            *(self._algorithm, self._trainer, self._own, self._gradients, self._metrics, self._module),
            *(plan.minimised, plan.task.losses, plan.experiment),
        )
        self._runners: dict[Kind, Callable[[Any, Any], Any]] = {
            "evaluate": self._evaluate,
            "fine_tune": self._fine_tune,
            "personal": self._personal,
            "gram": lambda query, shard: updates.gram(_rows(shard)),
            "combine": lambda query, shard: updates.combine(_rows(shard), query.vector),
            "coordinatewise": self._coordinatewise,
            "distances": lambda query, shard: updates.squared_distances(
                _rows(shard), query.vector[shard.start : shard.stop]
            ),
        }

    def run(
        self,
        kind: Kind,
        broadcast: Broadcast | UpdateQuery | RunStates,
        index: int,
        unit: Any,
        kept: list[Tensor] | None,
    ) -> Any:
        """Carry out one unit; a training unit appends its updates to the list `kept`, unless that is None.

        Raises:
            ClientError: user code failed; names the place, with its traceback.
        """

        def work() -> Any:
            # What a forward keeps in evaluation must not depend on which units came before.
            self._put_back()
            # Modules draw from torch's generators: these are restored, so the script's draws do not change.
            with card.same_draws(self._device), self._generators_of_parts.as_they_stood():
                if kind == "train":
                    assert isinstance(broadcast, Broadcast)
                    if kept is not None:
                        kept.clear()
                    return self._train(broadcast, index, unit, kept)
                return self._runners[kind](broadcast, unit)

        try:
            return self._retry_without_examples(work)
        except ClientFailure as failure:
            raise ClientError(self._describe(kind, failure, broadcast.round, index, unit)) from None

    def train_with(
        self, pools: Sequence[Pool], broadcasts: Sequence[Broadcast], index: int, chunk: Chunk
    ) -> list[Sums]:
        """Train a chunk of all runs in lockstep, whose pools share this one's trainer; returns their sums, in order.

        Args:
            pools: of the runs; this pool is the first.
            broadcasts: of the runs, of the same round.
            index: of the chunk, in all runs.
            chunk: its clients.

        Raises:
            ClientError: see `run`.
        """
        assert isinstance(self._trainer, LockstepTrainer)
        received = [replace(each, weights=_to(each.weights, self._device)) for each in broadcasts]
        starts = [LocalStart(broadcast.weights, broadcast.lr) for broadcast in received]
        trainer = self._trainer

        def work() -> list[local_training.Trained]:
            clients = self._algorithm.members.of(self._examples, received[0], chunk)
            with self._generators_of_parts.as_they_stood():
                return local_training.train_each(trainer, starts, clients, self._plan.model.params)

        try:
            each = self._retry_without_examples(work)
            return [
                pool._algorithm.phases[broadcast.phase]
                .local(LocalContext(self._trainer, trained=trained), pool._examples, broadcast, chunk)
                .sums
                for pool, broadcast, trained in zip(pools, received, each, strict=True)
            ]
        except ClientFailure as failure:
            raise ClientError(self._describe("train", failure, received[0].round, index, chunk)) from None

    @cached_property
    def _examples(self) -> Examples:
        return self._memory.of(self._plan, self._device)

    def _retry_without_examples(self, work: Callable[[], Result]) -> Result:
        """Call `work`; if memory runs out while examples are on the device, remove them and call it again."""
        try:
            return work()
        except torch.OutOfMemoryError as error:
            # Do not read the property if no unit has: that would upload the examples.
            if "_examples" not in vars(self) or not self._examples.let_go():
                raise
            log.warning("%s: examples leave the device, and are sent chunk by chunk: %s", self._worker, error)
        card.release_memory()
        return work()

    def _make_trainer(self) -> Trainer:
        e, kind = self._plan.experiment, self._kind
        inverses = local_adaptivity.sums_inverses(e.client, e.server)
        held, several = ((), None) if kind is None else (kind.held, kind.step)
        return self._trainer_for(e.training, held=held, several=several, sums_inverses=inverses)

    def _make_own_trainer(self) -> Trainer | None:
        own = None if self._kind is None else self._kind.own
        return None if own is None else self._trainer_for(own.section, held=own.held)

    def _trainer_for(
        self,
        section: ClientSection,
        sums_gradients: bool = False,
        held: Sequence[str] = (),
        several: StepGradients | None = None,
        sums_inverses: bool = False,
    ) -> Trainer:
        plan, minimised = self._plan, self._plan.minimised
        return make(
            plan.choice,
            plan.model,
            self._loaded,
            minimised.task,
            section,
            plan.experiment.engine.precision,
            sums_gradients=sums_gradients,
            cuda_graphs=plan.experiment.engine.cuda_graphs is not False,
            objective=minimised.objective,
            sums_inverses=sums_inverses,
            held=held,
            several=several,
        )

    def _make_fine_tuner(self) -> personalised.FineTuner | None:
        plan, tuning = self._plan, self._plan.experiment.evaluation.fine_tuning
        if tuning is None:
            return None
        section = fine_tuned(plan.experiment.client, tuning)
        return personalised.FineTuner(self._trainer_for(section), section, plan.model.params, plan.experiment.seed)

    def _train(self, broadcast: Broadcast, index: int, chunk: Chunk, kept: list[Tensor] | None) -> Sums:
        received = self._received(broadcast)
        phase = self._algorithm.phases[received.phase]
        with self._states(received, index, chunk) as states:
            context = self._context(states)._replace(keeps_updates=kept is not None)
            result = phase.local(context, self._examples, received, chunk)
        if kept is not None:
            kept.extend(result.updates)
        return result.sums

    def _received(self, broadcast: Broadcast) -> Broadcast:
        """The broadcast on the device; the chunks of a round, which have one, send it to a card once."""
        sent, received = self._last_received
        if sent is not broadcast:
            beside = {name: vector.to(self._device) for name, vector in broadcast.beside.items()}
            received = replace(broadcast, weights=_to(broadcast.weights, self._device), beside=beside)
            if self._device.type != "cpu":
                self._last_received = broadcast, received
        assert received is not None
        return received

    def _context(self, states: ClientStates | None) -> LocalContext:
        context = LocalContext(self._trainer, self._gradients, states, loss=self._loss, own=self._own)
        return context if self._configurations is None else self._configurations.with_trainers(context, self._examples)

    def _states(self, broadcast: Broadcast, index: int, chunk: Chunk) -> AbstractContextManager[ClientStates | None]:
        if self._store is None or broadcast.phase + 1 < len(self._algorithm.phases):
            return nullcontext()
        if broadcast.measures:
            return nullcontext(self._reader(broadcast))
        return self._store.chunk(broadcast.round, index, chunk, broadcast.places, self._like_a_state(broadcast))

    def _reader(self, broadcast: Broadcast) -> ClientStates | None:
        return None if self._store is None else self._store.reader(broadcast.places, self._like_a_state(broadcast))

    def _like_a_state(self, broadcast: Broadcast) -> Tensor:
        params = broadcast.weights.params
        # Only its length and dtype are used.
        return torch.empty(self._algorithm.state_vectors * len(params), dtype=params.dtype, device="meta")

    def _evaluate(self, broadcast: Broadcast, unit: evaluate.Unit) -> evaluate.ClientScores:
        self._load(broadcast.weights)
        task, params = self._plan.task, self._loaded.params
        return evaluate.evaluate(
            self._module, task, self._examples, unit, params, self._batch_size, self._augment, self._metrics
        )

    def _loss(self, weights: Weights, x: Tensor, y: Tensor) -> float:
        self._load(weights)
        return evaluate.summed_loss(self._module, self._plan.task, x, y, self._batch_size)

    def _load(self, weights: Weights) -> None:
        for loaded, sent in zip(self._loaded.vectors, weights.vectors, strict=True):
            loaded.copy_(sent)

    def _fine_tune(self, broadcast: Broadcast, unit: personalised.Unit) -> personalised.BeforeAndAfter:
        assert self._fine_tuner is not None
        weights = _to(broadcast.weights, self._device)
        tuned = self._fine_tuner.models(self._examples, weights, broadcast.lr, broadcast.round, unit)
        return self._bench.scores(self._examples, weights, unit, tuned)

    def _personal(self, broadcast: Broadcast, unit: personalised.Unit) -> personalised.BeforeAndAfter:
        personal = self._algorithm.personal
        assert personal is not None
        received = self._received(broadcast)
        context, weights = self._context(self._reader(received)), received.weights
        models = (
            replace(weights, params=personal.model(context, self._examples, received, client[0])) for client in unit[1]
        )
        return self._bench.scores(self._examples, weights, unit, models, received.places)

    def _coordinatewise(self, query: UpdateQuery, shard: Shard) -> Tensor:
        rule = self._plan.experiment.server.rule
        assert rule is not None
        return rules.result_of(
            rule, _rows(shard)[query.order], query.vector, f"in round {query.round} on {self._worker}"
        )

    def _describe(self, kind: Kind, failure: ClientFailure, round_index: int, index: int, unit: Any) -> str:
        split = self._plan.dataset.split(unit[0]) if kind == "evaluate" else self._plan.dataset.train
        doing = DOING[kind]
        cause = failure.__cause__
        raised = f"{cause!r}{there_is(cause)}" if cause else repr(cause)
        lines = trace(cause) if cause else ""
        others = f" or one of {failure.others} others that were with it" if failure.others else ""
        advice = _advice(self._plan.experiment.client) if BATCH_OF_ONE in str(cause) else ""
        return (
            f"{doing} client {split.id_of(failure.position)!r}{others} failed in round {round_index}, "
            f"{UNITS[kind]} {index}, on {self._worker}: {raised}{advice}\n{lines}"
        )


def _advice(section: ClientSection) -> str:
    why = ". BatchNorm has no statistics of a batch of one"
    if section.batch_size == 1:
        return f"{why}: client.batch_size must be 2 or more"
    if section.drop_last:
        return f"{why}, and client.drop_last = true keeps the only batch of a client with one example: leave it out"
    return (
        f"{why}, such as an epoch's last: client.fill_last_batch = true tops it up, client.drop_last = true leaves it "
        f"out"
    )


def _to(weights: Weights, device: torch.device, copy: bool = False) -> Weights:
    return Weights(*(vector.to(device, copy=copy) for vector in weights.vectors))


def _rows(shard: Shard) -> Tensor:
    """Return the rows (M, P_s) in the order of units, which is the order of the sums' facts."""
    parts = [part for part in shard.parts if isinstance(part, Mapping)]
    assert len(parts) == len(shard.parts)
    by_unit = {unit: rows for part in parts for unit, rows in part.items()}
    return torch.cat([by_unit[unit] for unit in sorted(by_unit)])


def cut_into_shards(rows: Mapping[int, Sequence[Tensor]], bounds: Sequence[Bounds]) -> list[Part]:
    """Cut updates by unit into one part per shard, each in separate memory."""
    stacked = {unit: torch.stack(list(updates)).cpu() for unit, updates in rows.items() if updates}
    return [{unit: matrix[:, a:b].contiguous() for unit, matrix in stacked.items()} for a, b in bounds]
