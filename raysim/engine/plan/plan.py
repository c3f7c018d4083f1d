"""Defines a resolved run: experiment, data, model, task and initial weights, checked before the first round."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from raysim.algorithm import private
from raysim.algorithm.algorithm import Algorithm
from raysim.algorithm.clustered import join, with_clusters
from raysim.algorithm.federated import federated
from raysim.algorithm.participants import Participants
from raysim.arrays import Int64s
from raysim.client import batches
from raysim.client.adversary import positions
from raysim.client.personalisation.clusters import Clusters
from raysim.client.section import ClientSection
from raysim.client.trainers.minimised_loss import Minimised
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.cohort import chunks
from raysim.cohort.cohorts import Cohorts
from raysim.cohort.section import cohorts
from raysim.config.section import replaced
from raysim.config.torch_settings import as_on_workers
from raysim.data.dataset import FederatedDataset
from raysim.data.optimum import Optimum
from raysim.engine.plan.label_similarity import LabelSimilarity
from raysim.evaluation.metric import METRICS, Metrics
from raysim.experiment import metric_columns
from raysim.experiment.experiment import Experiment
from raysim.models import linear
from raysim.models.model import Model, Weights
from raysim.models.task import Task, squared_error
from raysim.run_folder.client_states import ClientStore
from raysim.run_folder.part_code import FunctionCode
from raysim.run_folder.passed_parts import NOTHING, Passed
from raysim.server import fedex
from raysim.server.state import ServerState, Tensors


class CohortWork(NamedTuple):
    """Of each client in a round: its local steps tau, tau batches in examples, the examples that it processes, and how
    many of them are ordered at once."""

    steps: Int64s
    visits: Int64s
    examples: Int64s
    ordered: Int64s


@dataclass(frozen=True)
class Plan:
    """The record from which driver and pools build all their objects; it is sent to them."""

    experiment: Experiment
    dataset: FederatedDataset
    model: Model
    initial: Weights
    task: Task
    """Losses and hits of evaluation."""
    minimised: Minimised
    choice: TrainerChoice
    label_population: torch.Tensor | None = None
    states: Path | None = None
    """Folder in which client states are written, if clients keep any."""
    older_states: Path | None = None
    """Folder in which missing client states are read."""
    others: tuple[Weights, ...] = ()
    """The first models of the other clusters, if there are any."""
    states_of: str = ""
    """Whose client states these are: see `owner`."""
    passed: Passed = NOTHING
    """What a script passed beside the experiment."""
    hashing: tuple[str, ...] = ()
    """Keywords of the parts that call `hash`, of a process in which it gives texts other numbers than in the next."""
    code: Mapping[str, Mapping[str, FunctionCode]] = field(default_factory=dict)
    """The code of what a script passed, in the script's process; see sent_code.py."""

    @property
    def fingerprint(self) -> str:
        """Digest of everything that determines the numbers, except the code that a script passes.

        It contains the resolved trainer and chunk size, because "auto" depends on the kind of device.
        """
        choice = self.choice
        meant = f"{choice.trainer} {choice.usual} {choice.most} {choice.least_chunks} {choice.overhead}"
        if choice.call:
            meant += f" {choice.call}"
        if choice.records:
            # Most earlier versions recorded each length of short batches.
            meant += {"by autograd": " full batches", "recorded": "", "resized": " resized"}[choice.short_batches]
        if choice.kernels.winograd:
            meant += " minimal filtering"
        if choice.kernels.lstm:
            meant += " compiled LSTMs"
        if choice.kernels.depthwise:
            meant += " compiled gradients of depthwise kernels"
        if choice.kernels.classes:
            meant += " compiled cross entropy"
        if choice.kernels.counted:
            meant += " of places that count"
        if choice.from_outputs:
            meant += " from outputs"
        meant += self.model.digest_of_frozen
        if self.experiment.model is not None and self.experiment.model.init is not None:
            meant += f" begins {self.initial.digest()}"
        return self.experiment.fingerprint(f"{self.dataset.fingerprint} {meant}")

    @property
    def owner(self) -> str:
        """Whose the files of a run of this plan are; one that goes on has its folder's, see `opening.owner_of`."""
        return self.passed.owner(self.fingerprint)

    def algorithm(self) -> Algorithm:
        """Return the experiment's algorithm, a record of pure functions."""
        e = self.experiment
        clusters, population = self.clusters, len(self.dataset.train)
        participants = Participants(
            population,
            e.cohort.size_at(population),
            self.label_population,
            e.adversary,
            positions(e.adversary, e.seed, self.dataset.train),
            noted=self.learns,
            chosen=e.cohort.rule.choose is not None,
        )
        one = federated(
            e.training if clusters is None else replaced(e.training, personalisation=None),
            e.server,
            self.model,
            e.seed,
            participants,
            counts=self.task.correct is not None,
            private=self.private(),
            configs=self.configurations,
        )
        return one if clusters is None else with_clusters(one, clusters.count, e.server)

    @property
    def begins(self) -> Weights:
        """The weights of the state before the first round: of all clusters, if there are any."""
        return self.initial if self.clusters is None else join([self.initial, *self.others])

    @property
    def stated(self) -> Model:
        """The model as the layout of the state's weights."""
        if self.clusters is None:
            return self.model
        model, count = self.model, self.clusters.count
        return replace(
            model,
            params=model.params.copies(count),
            buffers=model.buffers.copies(count),
            counters=model.counters.copies(count),
        )

    @property
    def clusters(self) -> Clusters | None:
        """The clusters of clients, each with a model; None: there is one model."""
        section = self.experiment.client.personalisation
        return section if isinstance(section, Clusters) else None

    def metrics(self) -> Metrics:
        """Return the user-defined metrics, by the names of their columns."""
        return {metric_columns.column(section): METRICS.make(section) for section in self.experiment.evaluation.metrics}

    def client_store(self) -> ClientStore:
        """Return the store of client states in the folder `states`."""
        assert self.states is not None
        return ClientStore(self.states, self.older_states, self.dataset.train.id_of, self.states_of)

    def cohorts(self) -> Cohorts:
        """Return the cohorts of the run's rounds."""
        e = self.experiment
        seed = e.seed if e.cohort.seed is None else e.cohort.seed
        train, systems = self.dataset.train, e.systems
        if systems is None:
            return cohorts(e.cohort, seed, e.rounds, train)
        return cohorts(e.cohort, seed, e.rounds, train, lambda size: systems.asked(size, len(train)))

    def private(self) -> private.Private | None:
        """Return the mechanism of privacy and its accountant, if there are any."""
        e, layout, dtype = self.experiment, self.model.params, self.initial.params.dtype
        return private.make(e.client, e.server, e.cohort, len(self.dataset.train), e.rounds, layout, dtype, e.seed)

    @cached_property
    def keeps_updates(self) -> bool:
        """Whether workers keep a round's updates for a rule or a sampler."""
        return self.experiment.server.rule is not None or (self.learns and self.experiment.cohort.rule.needs_distances)

    @cached_property
    def learns(self) -> bool:
        """Whether the sampler learns from a round's clients."""
        return self.experiment.cohort.rule.learn is not None

    @cached_property
    def optimum(self) -> Callable[[], Optimum] | None:
        """Returns the best model, if the data know the one of this kind, with this loss."""
        fits = self.task.losses is squared_error and linear.is_without_bias(self.model.module())
        return self.dataset.optimum if fits else None

    @cached_property
    def label_similarity(self) -> LabelSimilarity:
        """How like clients' labels are to those of all training clients."""
        return LabelSimilarity(self.dataset)

    @property
    def kept_bytes(self) -> int:
        """Memory of the updates of the largest cohort: M models."""
        e, params = self.experiment, self.initial.params
        size_at = e.cohort.size_at(len(self.dataset.train))
        largest = max(int(size_at(t)) for t in range(e.rounds))
        return largest * params.numel() * params.element_size()

    @as_on_workers()
    def initial_state(self) -> ServerState:
        """Return the state before the first round."""
        return self.algorithm().init(self.begins, self.cohorts().init())

    @cached_property
    def configurations(self) -> tuple[ClientSection, ...]:
        """The local trainings of which each client draws one in a round; none without FedEx."""
        return self.experiment.configurations

    def work(self, clients: Int64s, round_index: int, theta: Tensors | None = None) -> CohortWork:
        """Return the work of each of these clients in a round.

        `theta`: the state of FedEx; absent: as before the first round.
        """
        e, sizes = self.experiment, self.dataset.train.sizes(clients)
        sections, drawn = self.configurations or (e.client,), np.zeros_like(sizes)
        if self.configurations:
            drawn = fedex.draw_configs(theta or fedex.init(len(sections)), e.seed, round_index, clients)
        total = CohortWork(*(np.zeros_like(sizes) for _ in CohortWork._fields))
        for j, section in enumerate(sections):
            own, work = drawn == j, section.work_at(round_index)
            total.steps[own] = steps = work.steps(sizes[own], e.seed, round_index, clients[own])
            total.visits[own] = steps * np.minimum(sizes[own], work.epoch(sizes[own])[0])
            total.examples[own] = work.examples(sizes[own], steps)
            total.ordered[own] = batches.ordered(work, sizes[own], steps)
        return total

    def chunks(
        self, cohort: Int64s, round_index: int, theta: Tensors | None = None
    ) -> tuple[tuple[chunks.Chunk, ...], list[int]]:
        """Return the cohort's chunks, and the cost of each one, in examples to train on; `theta`: see `work`."""
        steps, work, _, ordered = self.work(cohort, round_index, theta)
        choice, num = self.choice, len(cohort)
        if not choice.together:
            num_chunks = choice.num_chunks(num)
            if choice.call and num and not choice.is_given:
                num_chunks = chunks.enough(int(work.sum()), choice.call, num_chunks)
            planned = chunks.level(cohort, work, num_chunks)
        elif choice.is_given:
            planned = chunks.plan(cohort, steps, work, choice.chunk_size(num))
        else:
            planned = chunks.stacks(cohort, steps, work, choice.overhead, choice.num_chunks(num), choice.most)
        if ordered.sum() > batches.MOST_ORDERED:
            amounts = dict(zip(cohort.tolist(), ordered.tolist(), strict=True))
            planned = chunks.within(planned, amounts, batches.MOST_ORDERED)
        steps_of, work_of = (dict(zip(cohort.tolist(), of.tolist(), strict=True)) for of in (steps, work))
        longest = [max(steps_of[member] for member in chunk) for chunk in planned]
        return planned, [
            choice.overhead * most + sum(work_of[member] for member in chunk)
            for most, chunk in zip(longest, planned, strict=True)
        ]


def evaluated_splits(plan: Plan) -> tuple[str, ...]:
    """Return the splits that the experiment evaluates; by default the test split, if the data have one."""
    return splits_of(plan.experiment, plan.dataset)


def splits_of(experiment: Experiment, dataset: FederatedDataset) -> tuple[str, ...]:
    """Return the splits that an experiment with these data evaluates."""
    split = experiment.evaluation.split
    if split is None:
        return ("test",) if dataset.test is not None else ()
    return (split,) if isinstance(split, str) else split
