"""Lists all kinds of figures, in the order of the page."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from raysim.report.gallery import (
    client_distribution,
    client_gain,
    client_percentiles,
    config_shares,
    failures,
    fairness,
    final_accuracy,
    glad_factors,
    gradient_norm,
    heat_maps,
    label_similarity,
    learning_curves,
    method_panels,
    own_model_gain,
    rounds_heat_maps,
    rounds_table,
    rounds_to_target,
    similarity_index,
    time_ratio,
    time_to_target,
    train_test,
    update_norm,
    worker_timeline,
)
from raysim.report.gallery.curves import EXAMPLES, by_round
from raysim.report.gallery.figure import Kind

LEARNING, TARGETS, COHORTS, SETTINGS = "Learning", "Targets", "Cohort size", "Settings"
CLIENTS, UPDATES, ENGINE = "Clients", "Updates", "Time and workers"

# What several figures require, in the words of the page.
SIZES = "runs that differ in cohort.size"
MANY = "more than 12 methods, which differ in a number and in another key"


def kinds(targets: Sequence[float] = (), monotone: bool = False) -> list[Kind]:
    """Return the kinds.

    Args:
        targets: the accuracies of rounds to target, none for a share of the best.
        monotone: learning curves show the best value so far.
    """
    return [
        *_learning(monotone),
        *_targets(targets),
        *_cohort_size(),
        *_settings(),
        *_clients(),
        *_updates(),
        *_agreement(),
        *_engine(),
    ]


def _learning(monotone: bool) -> list[Kind]:
    return [
        Kind(LEARNING, "Learning curves", "a finished round", partial(learning_curves.make, monotone=monotone)),
        Kind(LEARNING, "Curves of each method", MANY, method_panels.of_headline),
        Kind(
            LEARNING,
            "Curves of each method, against examples",
            MANY,
            partial(method_panels.of_headline, against=EXAMPLES),
        ),
        by_round(
            LEARNING,
            "distance_to_optimum",
            "Distance to the optimum",
            "Of the model to the best one, where the data know that one. A line that levels off ends elsewhere.",
        ),
        by_round(
            LEARNING, "excess_loss", "Excess loss", "Mean loss of all training clients, less that of the best model."
        ),
        by_round(LEARNING, "epsilon", "Epsilon", "What all rounds so far have told of a client, at the run's delta."),
        Kind(LEARNING, "Train against test accuracy", "an evaluation of the test split", train_test.make),
    ]


def _targets(targets: Sequence[float]) -> list[Kind]:
    return [
        Kind(
            TARGETS,
            "Table of rounds to target",
            "several methods that evaluate accuracy",
            partial(rounds_table.make, targets=targets),
        ),
        Kind(
            TARGETS,
            "Rounds to target and speed-up",
            "runs that differ in one number, such as cohort.size, and evaluate accuracy",
            partial(rounds_to_target.make, targets=targets),
        ),
        Kind(
            TARGETS,
            "Heat maps of rounds to target",
            "runs that differ in two keys and evaluate accuracy",
            partial(rounds_heat_maps.make, targets=targets),
        ),
        Kind(
            TARGETS,
            "Simulated time to target",
            f"{SIZES}, have [systems] and evaluate accuracy",
            partial(time_to_target.make, targets=targets),
        ),
        Kind(
            TARGETS,
            "Simulated time against target",
            f"{SIZES}, have [systems] and evaluate accuracy",
            time_ratio.make,
        ),
    ]


def _cohort_size() -> list[Kind]:
    return [
        Kind(COHORTS, "Accuracy against cohort size", SIZES, final_accuracy.by_cohort_size),
        Kind(COHORTS, "Catastrophic failures against cohort size", f"{SIZES} and train", failures.make),
        Kind(COHORTS, "Pseudo-gradient norm against cohort size", SIZES, gradient_norm.make),
        Kind(COHORTS, "Pseudo-gradient norm, recorded and predicted", SIZES, gradient_norm.predicted),
    ]


def _settings() -> list[Kind]:
    return [
        Kind(
            SETTINGS,
            "Accuracy against a key",
            "runs that differ in a number other than cohort.size",
            final_accuracy.by_other_keys,
        ),
        Kind(SETTINGS, "Heat maps", "runs that differ in two keys", heat_maps.make),
        Kind(SETTINGS, "Shares of FedEx's configurations", "fedex", config_shares.make),
    ]


def _clients() -> list[Kind]:
    return [
        Kind(CLIENTS, "Client percentiles", "several evaluated clients", client_percentiles.make),
        Kind(CLIENTS, "Client distribution", "several evaluated clients", client_distribution.make),
        Kind(
            CLIENTS,
            "Mean accuracy against the worst clients",
            "several evaluated clients, and runs that differ in a number of server.fairness",
            fairness.make,
        ),
        Kind(CLIENTS, "Client gain", "two methods with the same seeds and test clients", client_gain.make),
        Kind(
            CLIENTS,
            "Gain by own models",
            "client.personalisation or evaluation.fine_tuning, and accuracy",
            own_model_gain.make,
        ),
    ]


def _updates() -> list[Kind]:
    return [
        by_round(
            UPDATES,
            "pseudo_gradient_norm",
            "Pseudo-gradient norm",
            "The norm of the clients' weighted mean update, before the server's optimizer.",
        ),
        Kind(
            UPDATES,
            "Pseudo-gradient norms of each method",
            MANY,
            partial(method_panels.make, column="pseudo_gradient_norm"),
        ),
        by_round(UPDATES, "params_norm", "Norm of the model", "Of all parameters, after the round."),
        by_round(
            UPDATES,
            "mean_cosine_similarity",
            "Mean cosine similarity of updates",
            "Mean over all pairs of clients of a round; near 0, updates are almost orthogonal.",
        ),
        Kind(
            UPDATES,
            "Cosine similarities of each method",
            MANY,
            partial(method_panels.make, column="mean_cosine_similarity"),
        ),
        by_round(UPDATES, "clip_level", "Clip level", "The norm above which updates were scaled down in a round."),
        by_round(
            UPDATES, "clipped_fraction", "Clipped share", "The share of a round's clients whose update was clipped."
        ),
        by_round(
            UPDATES,
            "signal_to_noise",
            "Signal to noise",
            "The norm of the mean update over that of its noise; far below 1, the model walks at random.",
        ),
        by_round(
            UPDATES,
            "secure_sum/wrapped",
            "Numbers that wrapped around",
            "Numbers of a round whose true sum has no place among the integers of a secure sum.",
        ),
    ]


def _agreement() -> list[Kind]:
    return [
        by_round(
            UPDATES,
            "gsi",
            "Gradients' similarity index",
            "Of the whole model; 1 where all updates agree, larger the less they do.",
        ),
        Kind(UPDATES, "Similarity index of parameter groups", "gsi/...", similarity_index.by_parameters),
        by_round(
            UPDATES,
            "probe/gsi",
            "Similarity index of all clients",
            "Of the whole model, from the updates of all training clients, in the rounds that were probed.",
        ),
        Kind(
            UPDATES,
            "Similarity index, its baseline, and that of all clients",
            "server.glad or server.diagnostics.probe",
            similarity_index.beside_true,
        ),
        Kind(UPDATES, "FedGLAD's factors", "server.glad", glad_factors.make),
        Kind(UPDATES, "FedGLAD's ratio before its bounds", "server.glad", glad_factors.before_bounds),
        Kind(UPDATES, "Norm of all clients' updates", "server.diagnostics.probe", update_norm.make),
        Kind(UPDATES, "Similarity index against label similarity", "server.diagnostics.labels", label_similarity.make),
    ]


def _engine() -> list[Kind]:
    return [
        by_round(
            ENGINE, "idle_fraction", "Idle share of workers", "The share of the workers' time in which they waited."
        ),
        Kind(ENGINE, "Timeline of workers", "a run with --profile", worker_timeline.make),
    ]
