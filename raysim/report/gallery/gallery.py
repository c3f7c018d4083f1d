"""Lists all kinds of figures, in the order of the page."""

from __future__ import annotations

from functools import partial

from raysim.report.gallery import (
    client_distribution,
    client_gain,
    client_percentiles,
    cohort_accuracy,
    glad_factors,
    gradient_norm,
    heat_maps,
    label_similarity,
    learning_curves,
    rounds_to_target,
    time_to_target,
    train_test,
    worker_timeline,
)
from raysim.report.gallery.curves import by_round
from raysim.report.gallery.figure import Kind

LEARNING, COHORTS, SETTINGS = "Learning", "Cohort size", "Settings"
CLIENTS, UPDATES, ENGINE = "Clients", "Updates", "Time and workers"


def kinds(target: float | None = None) -> list[Kind]:
    """Return the kinds; `target`: the accuracy of rounds to target, None for a share of the best."""
    sizes = "runs that differ in cohort.size"
    return [
        Kind(LEARNING, "Learning curves", "a finished round", learning_curves.make),
        Kind(LEARNING, "Train against test accuracy", "an evaluation of the test split", train_test.make),
        Kind(
            COHORTS,
            "Rounds to target and speed-up",
            f"{sizes} and evaluate accuracy",
            partial(rounds_to_target.make, aim=target),
        ),
        Kind(
            COHORTS,
            "Simulated time to target",
            f"{sizes}, have [systems] and evaluate accuracy",
            partial(time_to_target.make, aim=target),
        ),
        Kind(COHORTS, "Accuracy against cohort size", sizes, cohort_accuracy.make),
        Kind(COHORTS, "Pseudo-gradient norm against cohort size", sizes, gradient_norm.make),
        Kind(SETTINGS, "Heat maps", "runs that differ in two keys", heat_maps.make),
        Kind(CLIENTS, "Client percentiles", "several evaluated clients", client_percentiles.make),
        Kind(CLIENTS, "Client distribution", "several evaluated clients", client_distribution.make),
        Kind(CLIENTS, "Client gain", "two methods with the same seeds and test clients", client_gain.make),
        by_round(
            UPDATES,
            "pseudo_gradient_norm",
            "Pseudo-gradient norm",
            "The norm of the clients' weighted mean update, before the server's optimizer.",
        ),
        by_round(
            UPDATES,
            "mean_cosine_similarity",
            "Mean cosine similarity of updates",
            "Mean over all pairs of clients of a round; near 0, updates are almost orthogonal.",
        ),
        by_round(UPDATES, "clip_level", "Clip level", "The norm above which updates were scaled down in a round."),
        by_round(
            UPDATES, "clipped_fraction", "Clipped share", "The share of a round's clients whose update was clipped."
        ),
        by_round(
            UPDATES,
            "gsi",
            "Gradients' similarity index",
            "Of the whole model; 1 where all updates agree, larger the less they do.",
        ),
        Kind(UPDATES, "FedGLAD's factors", "server.glad", glad_factors.make),
        Kind(UPDATES, "Similarity index against label similarity", "server.diagnostics.labels", label_similarity.make),
        by_round(
            ENGINE, "idle_fraction", "Idle share of workers", "The share of the workers' time in which they waited."
        ),
        Kind(ENGINE, "Timeline of workers", "a run with --profile", worker_timeline.make),
    ]
