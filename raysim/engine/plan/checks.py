"""Everything that is checked of a plan before the first round, in this order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from raysim.arrays import Int64s
from raysim.client import batches
from raysim.client.adversary import LabelFlip, num_attackers
from raysim.client.corrections import choice as corrections
from raysim.client.corrections.feddualavg import unmatched_patterns
from raysim.client.personalisation import choice as personalisations
from raysim.client.work import Between
from raysim.cohort import replay
from raysim.cohort.sampler import Participant
from raysim.config.own_generators import OwnGenerators
from raysim.config.repetition import check_repetition
from raysim.config.user_call import watched_call
from raysim.data.generated_split import GeneratedSplit
from raysim.engine.plan import first_examples, full_cohorts, own_models, own_parts, recorded_metrics, trainer_trials
from raysim.engine.plan.plan import Plan, evaluated_splits
from raysim.errors import DataError, ExperimentError
from raysim.evaluation import own_examples
from raysim.server.aggregators import own_rule as rules
from raysim.server.optimizers import choice as optimizers
from raysim.server.optimizers import step_check
from raysim.server.weighting import ClientFacts, weight

MOST_SIZES = 2**19
"""Generated clients whose sizes are looked at. There may be more, which are drawn alike."""


def check(plan: Plan, own_loss: bool) -> None:
    """Refuse a plan whose parts do not fit together.

    Args:
        plan: as the run would begin.
        own_loss: whether a script passed the loss.

    Raises:
        ExperimentError, DataError, ModelError: the first check that fails; has the given and the allowed value.
    """
    for one in _CHECKS:
        one(plan)
    # The costliest: it trains.
    first_examples.check(plan, own_loss)
    trainer_trials.check_client_axis(plan)
    trainer_trials.check_pieces(plan)


def _check_groups(plan: Plan) -> None:
    """Refuse groups of a composite objective that match no parameter."""
    e, params = plan.experiment, plan.model.params
    if e.composite is not None and (unknown := unmatched_patterns(e.composite, params)):
        raise ExperimentError(
            f"composite.groups must match the model's parameters {list(params.names)}, but {unknown} match none."
        )


def _check_server(plan: Plan) -> None:
    """Make the state before the first round, and try a server optimizer of a script or a package."""
    plan.initial_state()
    section = plan.experiment.server.optimizer
    if not optimizers.OPTIMIZERS.is_built_in(section):
        title = optimizers.OPTIMIZERS.title(section)
        step_check.check_step(optimizers.make(section), title, plan.initial.params, plan.model.params)


def _check_rule(plan: Plan) -> None:
    """Refuse an adversary or a rule that is not defined for these cohorts and data."""
    e = plan.experiment
    if isinstance(e.adversary, LabelFlip) and plan.dataset.num_classes is None:
        raise ExperimentError(
            "adversary.name = 'label_flip' flips labels, but the targets of these data are real numbers."
        )
    fraction = None if e.adversary is None else e.adversary.clients
    if isinstance(fraction, float) and not num_attackers(fraction, population := len(plan.dataset.train)):
        raise ExperimentError(
            f"adversary.clients must be at least one client, but {fraction:g} of {population:,} training clients is "
            f"less, so none would attack."
        )
    if (rule := e.server.rule) is None:
        return
    sampler = e.cohort.rule
    if sampler.varies and rule.fewest > 1:
        raise ExperimentError(
            f"server.aggregator: {rule.name} needs at least {rule.fewest} updates in every round, but cohorts of the "
            f"{sampler.name} sampler have any size."
        )
    size_at = e.cohort.size_at(len(plan.dataset.train))
    smallest = min(int(size_at(t)) for t in range(e.rounds))
    if why := rule.refusal(smallest):
        raise ExperimentError(f"server.aggregator: {why}.")
    if e.server.has_own_rule and smallest:
        rules.check(rule, smallest)


def _check_own_cohorts(plan: Plan) -> None:
    """Try user-defined samplers and weightings: draw a cohort, learn from it, weigh a client."""
    e, train, cohorts = plan.experiment, plan.dataset.train, plan.cohorts()
    if not cohorts.is_built_in:
        state = cohorts.init()
        drawn, own = cohorts.sample(state, 0), OwnGenerators(cohorts.rule)
        again = cohorts.sample(state, 0)
        advice = "Draw by at.rng, and keep what changes in the sampler's state."
        what = f"sampler= ({cohorts.rule.name})"
        check_repetition(what, drawn, again, ExperimentError, advice, own.drew())
        cohort = np.unique(drawn)
        if cohorts.rule.choose is not None:
            cohort = cohorts.choose(cohort, np.zeros(len(cohort)), 0)
        if plan.learns and len(cohort):
            sizes = zip(cohort.tolist(), train.sizes(cohort).tolist(), strict=True)
            cohorts.learn(state, [Participant(p, train.id_of(p), n, 1.0, 1.0, 1, 1.0) for p, n in sizes], 0)
    if (weighting := e.server.weighting_rule) is not None:
        facts = ClientFacts(
            train.id_of(0), int(train.sizes(np.arange(1))[0]), 1.0, 1.0, 1, e.server.weighting_constants
        )
        what = "weighting=, tried before the first round,"
        once, own = watched_call(what, weight, weighting, facts), OwnGenerators(weighting)
        later = watched_call(what, weight, weighting, facts)
        advice = "It must be a function of the client's facts alone."
        check_repetition("weighting=", once, later, ExperimentError, advice, own.drew())


def _check_equal_work(plan: Plan) -> None:
    """A correction may be defined only where all clients take equally many local steps."""
    e, chosen = plan.experiment, plan.experiment.client.correction
    if chosen is None or not corrections.make(chosen).requires.equal_steps:
        return
    needs = f"client.correction.name = {chosen.name!r} needs the same number of local steps of every client"
    changes = e.client.schedule
    epochs_and_steps = [
        e.client.epochs,
        e.client.local_steps,
        *(c.epochs for c in changes),
        *(c.local_steps for c in changes),
    ]
    if any(isinstance(drawn, Between) and drawn.low < drawn.high for drawn in epochs_and_steps):
        raise ExperimentError(
            f"{needs}, but the local work is drawn: set it to a number, or take 'scaffold', which is defined with any."
        )
    all_clients = np.arange(len(plan.dataset.train))
    for t in {0, *(change.round for change in e.client.schedule)}:
        steps = plan.work(all_clients, t).steps
        if steps.min() != steps.max():
            few, many = int(steps.argmin()), int(steps.argmax())
            raise ExperimentError(
                f"{needs}, but in round {t} client {plan.dataset.train.id_of(few)!r} takes {steps[few]} and client "
                f"{plan.dataset.train.id_of(many)!r} takes {steps[many]}: set client.local_steps to a number, or take "
                f"'scaffold', which is defined with any."
            )


def _check_ordered(plan: Plan) -> None:
    """Refuse local work of a client that is too much to be ordered: a run would end when it is first drawn."""
    sizes = np.unique(plan.dataset.train.sizes(_may_train(plan)))
    kind = personalisations.make(plan.experiment.client, plan.model.params)
    own = () if kind is None or kind.own is None else (kind.own.section,)
    for section in (*(plan.configurations or (plan.experiment.client,)), *own):
        batches.check_each(section, sizes, plan.experiment.rounds)


def _may_train(plan: Plan) -> Int64s:
    """Return the positions of the clients that may train; of generated ones so many as tell their sizes."""
    e, train = plan.experiment, plan.dataset.train
    sampler = e.cohort.sampler
    measures_all = e.server.diagnostics.probe is not None or e.client.personalisation is not None
    drawn = replay.all_drawn(sampler, e.rounds) if isinstance(sampler, replay.Replay) and not measures_all else None
    if drawn is None:
        return np.arange(min(len(train), MOST_SIZES) if isinstance(train, GeneratedSplit) else len(train))
    return np.array([train.position_of(client) for client in sorted(drawn)], np.int64)


def _check_splits(plan: Plan) -> None:
    """Refuse data without a split that is evaluated, or without a client's own examples that are scored."""
    e = plan.experiment
    for split in evaluated_splits(plan):
        try:
            plan.dataset.split(split)
        except DataError as error:
            raise DataError(f"evaluation.split: {error}") from None
    for which, split in own_models.splits(e).items():
        own_models.units(plan, which, split)
    if e.fedex is not None:
        own_examples.places(plan.dataset, e.fedex.split, "fedex")


_CHECKS: tuple[Callable[[Plan], None], ...] = (
    _check_groups,
    own_parts.check,
    _check_server,
    _check_rule,
    _check_own_cohorts,
    _check_equal_work,
    _check_ordered,
    full_cohorts.check,
    _check_splits,
    recorded_metrics.check,
)
