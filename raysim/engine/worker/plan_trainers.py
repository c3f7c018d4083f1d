"""Builds the trainers of a run on the device of its worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from raysim.algorithm import local_adaptivity
from raysim.algorithm.algorithm import Algorithm
from raysim.client.personalisation.personalisation import Personalisation
from raysim.client.section import ClientSection, fine_tuned
from raysim.client.trainer import LockstepTrainer, Trainer
from raysim.client.trainers.compared_trainer import ComparedLockstep, ComparedTrainer, Differs
from raysim.client.trainers.construction import ONLY_THE_SECTION, Further, make
from raysim.client.trainers.kernel.kernels import NONE_USED
from raysim.client.trainers.trainer_choice import TrainerChoice
from raysim.engine.plan.plan import Plan
from raysim.evaluation.personalised import FineTuner
from raysim.models.model import Weights
from raysim.models.task import squared_error


@dataclass(frozen=True)
class PlanTrainers:
    """Builds trainers of sections for one run.

    like: weights on the device. compared: those that it has built whose local steps are compared with autograd's.
    """

    plan: Plan
    like: Weights
    compared: list[ComparedTrainer] = field(default_factory=list)

    def of(self, section: ClientSection, further: Further = ONLY_THE_SECTION) -> Trainer:
        """Build a trainer of a section, for the run's objective.

        Steps on a card are not compared: some kernels there give other bits each time, and the host would wait. Nor are
        steps that take several gradients.
        """
        plan, choice = self.plan, self.plan.choice
        trainer = self._made(choice, section, further)
        if choice.trainer == "one_by_one" or self.like.params.is_cuda or further.several is not None:
            return trainer
        by_autograd = replace(choice, trainer="one_by_one", kernels=NONE_USED)
        compared = ComparedTrainer(
            trainer,
            lambda: self._made(by_autograd, section, further._replace(sums_gradients=True)),
            plan.model.params,
            plan.experiment.engine.precision,
            plan.minimised.objective is None and plan.minimised.task.losses is squared_error,
        )
        self.compared.append(compared)
        return ComparedLockstep(compared, trainer) if isinstance(trainer, LockstepTrainer) else compared

    def difference(self, alone: Callable[[], AbstractContextManager[object]]) -> Differs | None:
        """Compare what is due of the trainers built so far, each step `alone`; return what is not autograd's, if any.

        Raises:
            ClientFailure: user code raised.
        """
        found = (trainer.difference(alone) for trainer in self.compared)
        return next((each for each in found if each is not None), None)

    def _made(self, choice: TrainerChoice, section: ClientSection, further: Further) -> Trainer:
        plan, minimised = self.plan, self.plan.minimised
        graphs = plan.experiment.engine.cuda_graphs is not False
        further = further._replace(objective=minimised.objective, cuda_graphs=graphs)
        precision = plan.experiment.engine.precision
        return make(choice, plan.model, self.like, minimised.task, section, precision, further)

    def of_cohort(self, personal: Personalisation | None) -> Trainer:
        """Build the trainer of the cohort's clients."""
        e = self.plan.experiment
        inverses = local_adaptivity.sums_inverses(e.client, e.server)
        held: Sequence[str] = () if personal is None else personal.held
        several = None if personal is None else personal.step
        return self.of(e.training, Further(held=held, several=several, sums_inverses=inverses))

    def of_own_models(self, personal: Personalisation | None) -> Trainer | None:
        """Build the trainer of clients' own models; None: they have none, or the cohort's trainer computes them."""
        own = None if personal is None else personal.own
        return None if own is None else self.of(own.section, Further(held=own.held))

    def of_gradients(self, algorithm: Algorithm, personal: Personalisation | None) -> Trainer | None:
        """Build the trainer that sums raw gradients; None: nothing asks for these."""
        in_phase = any(phase.of == "gradients" for phase in algorithm.phases)
        if not in_phase and (personal is None or not personal.needs_gradient):
            return None
        section = ClientSection(accumulate=self.plan.experiment.client.accumulate)
        return self.of(section, Further(sums_gradients=True))

    def fine_tuner(self) -> FineTuner | None:
        """Build what tunes clients before they are scored; None: they are not."""
        experiment, tuning = self.plan.experiment, self.plan.experiment.evaluation.fine_tuning
        if tuning is None:
            return None
        section = fine_tuned(experiment.client, tuning)
        return FineTuner(self.of(section), section, self.plan.model.params, experiment.seed)
