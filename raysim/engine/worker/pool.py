"""Defines a pool of simulated clients on one device: it trains chunks and scores slices of evaluations, without Ray."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from raysim import card
from raysim.algorithm.broadcast import Broadcast, for_clients
from raysim.algorithm.local_context import ClientStates, LocalContext, LocalResult
from raysim.algorithm.members import taking_part
from raysim.client import local_training
from raysim.client.local_training import ClientFailure
from raysim.client.personalisation import choice as personalisations
from raysim.client.trainer import LocalStart, LockstepTrainer, Trainer
from raysim.client.trainers.compared_trainer import ComparedTrainer, bare
from raysim.cohort.chunks import Chunk
from raysim.config.own_generators import OwnGenerators
from raysim.data.on_device import Examples
from raysim.engine.job import JobBroadcast, Kind, Shard, UpdateQuery
from raysim.engine.plan.plan import Plan
from raysim.engine.worker import shard_work
from raysim.engine.worker.client_failure_text import described, gave_otherwise, place, steps_otherwise
from raysim.engine.worker.configurations import Configurations
from raysim.engine.worker.example_memory import ExampleMemory
from raysim.engine.worker.plan_trainers import PlanTrainers
from raysim.engine.worker.repeated_unit import GaveOtherwise, RepeatedUnit, UnitWork
from raysim.engine.worker.scored_model import ScoredModel
from raysim.errors import ClientError
from raysim.evaluation import personalised, scores
from raysim.models.memory import is_lacking
from raysim.models.model import Weights
from raysim.server.sums import Sums

log = logging.getLogger("raysim")

T = TypeVar("T")
U = TypeVar("U")

Result = Sums | scores.ClientScores | personalised.BeforeAndAfter | Tensor
"""What a unit makes, by the kind of its job."""


class PoolUnit(NamedTuple, Generic[U]):
    """A unit of clients, with the broadcast of its job; keeps_updates: its result holds every update."""

    broadcast: Broadcast
    number: int
    clients: U
    keeps_updates: bool = False


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
        # Without their folder no client trains: a recorded model is scored.
        self._store = plan.client_store() if self._algorithm.state_vectors and plan.states is not None else None
        self._loaded = _to(plan.initial, device, copy=True)
        self._last_received: tuple[Broadcast | None, Broadcast | None] = (None, None)
        personal = personalisations.make(plan.experiment.client, plan.model.params)
        # Partners share a trainer: whose unit is carried out compares its steps.
        compared: list[ComparedTrainer] = [] if partner is None else partner._trainers.compared
        trainers = PlanTrainers(plan, self._loaded, compared)
        self._trainers: PlanTrainers = trainers
        self._trainer: Trainer = trainers.of_cohort(personal) if partner is None else partner._trainer
        self._own = trainers.of_own_models(personal)
        self._gradients = trainers.of_gradients(self._algorithm, personal)
        self._model = ScoredModel(plan, self._loaded, device)
        self._fine_tuner = trainers.fine_tuner()
        fedex = plan.experiment.fedex
        self._configurations = None if fedex is None else Configurations(plan, fedex, trainers.of, self._model.bench)
        # What a script's parts draw from generators of their own depends on the unit then, and not on the worker.
        self._generators_of_parts = OwnGenerators(
            *(self._algorithm, *map(bare, (self._trainer, self._own, self._gradients))),
            *(self._model.metrics, self._model.module),
            *(plan.minimised, plan.task.losses, plan.experiment),
        )
        self._trained_again: RepeatedUnit[PoolUnit[Chunk]] = RepeatedUnit()
        self._scored_again: RepeatedUnit[PoolUnit[scores.Unit]] = RepeatedUnit()

    def run(
        self,
        kind: Kind,
        broadcast: JobBroadcast,
        index: int,
        unit: object,
        kept: list[Tensor] | None,
    ) -> Result:
        """Carry out one unit; a training unit appends its updates to the list `kept`, unless that is None.

        Returns:
            Sums of `train`; scores of `evaluate`; those before and after of `fine_tune` and `personal`; of the others
            a tensor.

        Raises:
            ClientError: user code failed; names the place, with its traceback.
        """

        def work() -> Result:
            with self._alone():
                if isinstance(broadcast, UpdateQuery):
                    assert isinstance(unit, Shard)
                    rule = self._plan.experiment.server.rule
                    return shard_work.carry_out(kind, broadcast, unit, rule, self._worker)
                assert isinstance(broadcast, Broadcast)
                if kind == "train":
                    return self._train(broadcast, index, cast(Chunk, unit), kept)
                if kind == "evaluate":
                    return self._evaluate(broadcast, index, cast(scores.Unit, unit))
                own = self._fine_tune if kind == "fine_tune" else self._personal
                return own(broadcast, cast(personalised.Unit, unit))

        try:
            result = self._retry_without_examples(work)
            if isinstance(broadcast, Broadcast):
                self._compare_steps(kind, broadcast.round, index)
            return result
        except ClientFailure as failure:
            split = cast(scores.Unit, unit)[0] if kind == "evaluate" else "train"
            at = place(kind, broadcast.round, index, self._worker)
            raise ClientError(described(self._plan, kind, failure, at, split)) from None

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
            at = place("train", received[0].round, index, self._worker)
            raise ClientError(described(self._plan, "train", failure, at, "train")) from None

    @cached_property
    def _examples(self) -> Examples:
        return self._memory.of(self._plan, self._device)

    def _retry_without_examples(self, work: Callable[[], T]) -> T:
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

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """What is done in the block does not depend on what was done before."""
        # What a forward keeps in evaluation must not depend on which units came before.
        self._model.put_back()
        # Modules draw from torch's generators: these are restored, so the script's draws do not change.
        with card.same_draws(self._device), self._generators_of_parts.as_they_stood():
            yield

    def _tell(self, kind: Kind, found: GaveOtherwise[PoolUnit[U]]) -> None:
        """Say that a unit gave something else again.

        Raises:
            ClientError: always on a CPU; on a card it may be a kernel without a deterministic version.
        """
        unit = found.unit
        at = place(kind, unit.broadcast.round, unit.number, self._worker)
        if kind == "train":
            split, positions = "train", cast(Chunk, unit.clients)
        else:
            split, segments = cast(scores.Unit, unit.clients)
            positions = tuple(dict.fromkeys(position for position, *_ in segments))
        text = gave_otherwise(self._plan, kind, split, positions, at, found.behind, found.failure)
        if self._device.type == "cpu" or found.failure is not None:
            raise ClientError(text)
        log.warning("%s On a card it may also be a kernel without a deterministic version.", text)

    def _compare_steps(self, kind: Kind, round_index: int, index: int) -> None:
        """Compare local steps of the unit with autograd's, where that is due.

        Raises:
            ClientError: one differs.
            ClientFailure: user code failed.
        """
        try:
            found = self._trainers.difference(self._alone)
        except Exception as error:
            if not (is_lacking(error) or is_lacking(error.__cause__)):
                raise
            # The run itself had room for its work, and goes on.
            card.release_memory()
            return
        if found is not None:
            raise ClientError(steps_otherwise(self._plan, found, place(kind, round_index, index, self._worker)))

    def _train(self, broadcast: Broadcast, index: int, chunk: Chunk, kept: list[Tensor] | None) -> Sums:
        if kept is not None:
            kept.clear()
        unit = PoolUnit(broadcast, index, chunk, kept is not None)
        with self._states(broadcast, index, chunk) as states:
            if broadcast.measures or self._algorithm.phases[broadcast.phase].of != "training":
                result = self._trained(unit, states)
            else:
                tell = partial(self._tell, "train")
                work = UnitWork(self._trained, self._examples_of, self._num_bytes, _kept, self._alone, tell)
                result = self._trained_again.carry_out(work, unit, states)
        if kept is not None:
            kept.extend(result.updates)
        return result.sums

    def _trained(self, unit: PoolUnit[Chunk], states: ClientStates | None) -> LocalResult:
        received = self._received(unit.broadcast)
        context = self._context(states)._replace(keeps_updates=unit.keeps_updates)
        return self._algorithm.phases[received.phase].local(context, self._examples, received, unit.clients)

    def _examples_of(self, unit: PoolUnit[Chunk]) -> int:
        return int(self._plan.dataset.train.sizes(taking_part(unit.broadcast, unit.clients)).sum())

    def _num_bytes(self, unit: PoolUnit[Chunk]) -> int:
        """The bytes of the vectors of a broadcast, and of the states that the chunk's clients have."""
        broadcast, size = unit.broadcast, unit.broadcast.weights.params.nbytes
        states = self._algorithm.state_vectors * sum(position in broadcast.places for position in unit.clients)
        return _bytes_of(broadcast) + states * size

    def _evaluate(self, broadcast: Broadcast, index: int, unit: scores.Unit) -> scores.ClientScores:
        tell = partial(self._tell, "evaluate")
        work = UnitWork(
            self._scores, _examples_in, lambda unit: _bytes_of(unit.broadcast), _kept_scores, self._alone, tell
        )
        return self._scored_again.carry_out(work, PoolUnit(broadcast, index, unit))

    def _scores(self, unit: PoolUnit[scores.Unit], states: ClientStates | None) -> scores.ClientScores:
        return self._model.scores(unit.broadcast.weights, self._examples, unit.clients)

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
        context = LocalContext(self._trainer, self._gradients, states, loss=self._model.loss, own=self._own)
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

    def _fine_tune(self, broadcast: Broadcast, unit: personalised.Unit) -> personalised.BeforeAndAfter:
        assert self._fine_tuner is not None
        weights = _to(broadcast.weights, self._device)
        tuned = self._fine_tuner.models(self._examples, weights, broadcast.lr, broadcast.round, unit)
        return self._model.bench.scores(self._examples, weights, unit, tuned)

    def _personal(self, broadcast: Broadcast, unit: personalised.Unit) -> personalised.BeforeAndAfter:
        personal = self._algorithm.personal
        assert personal is not None
        received = self._received(broadcast)
        context, weights = self._context(self._reader(received)), received.weights
        models = (
            replace(weights, params=personal.model(context, self._examples, received, client[0])) for client in unit[1]
        )
        return self._model.bench.scores(self._examples, weights, unit, models, received.places)


def _to(weights: Weights, device: torch.device, copy: bool = False) -> Weights:
    return Weights(*(vector.to(device, copy=copy) for vector in weights.vectors))


def _kept(unit: PoolUnit[Chunk]) -> PoolUnit[Chunk]:
    return unit._replace(broadcast=for_clients(unit.broadcast, unit.clients))


def _kept_scores(unit: PoolUnit[scores.Unit]) -> PoolUnit[scores.Unit]:
    """The unit without what a broadcast says of the cohort: an evaluation reads the weights alone."""
    return unit._replace(broadcast=for_clients(unit.broadcast, ()))


def _bytes_of(broadcast: Broadcast) -> int:
    return sum(vector.nbytes for vector in (*broadcast.weights.vectors, *broadcast.beside.values()))


def _examples_in(unit: PoolUnit[scores.Unit]) -> int:
    return sum(stop - start for _, start, stop in unit.clients[1])
