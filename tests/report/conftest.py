"""A sweep with everything that a report can show, recorded and not run."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest

from raysim.report.build import Built, build
from raysim.run_folder.timeline import Span, Timeline
from tests.support.run_folders import write

ROUNDS = 12
SIZES, RATES, SEEDS = (4, 16), (0.1, 0.2), (0, 1)


@pytest.fixture(scope="session")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight runs: two cohort sizes, two learning rates, two seeds; with clipping, FedGLAD and label similarity."""
    folder = tmp_path_factory.mktemp("sweep")
    for size, rate, seed in itertools.product(SIZES, RATES, SEEDS):
        path = write(
            folder / f"cohort.size={size},lr={rate}" / f"trial-{seed}",
            [row(index, size, rate, seed) for index in range(ROUNDS)],
            clients={f"c{i}": min(1.0, 0.4 + 0.01 * size + 0.05 * i) for i in range(8)},
            own_models={
                f"c{i}": {
                    "accuracy": 0.5 + 0.05 * i,
                    "global_accuracy": min(1.0, 0.4 + 0.01 * size + 0.05 * i),
                    "training_examples": 10 * i,
                    "label_similarity": 0.1 * i,
                    "seen": i > 0,
                }
                for i in range(8)
            },
            training_clients=64,
            rounds=ROUNDS,
            seed=seed,
            cohort={"size": size},
            client={"optimizer": {"name": "sgd", "lr": rate}},
            server={"glad": {"gamma": 0.02}, "clip": {"initial": 1.0}},
        )
        timeline = Timeline(path / "timeline.json")
        for index in range(5):
            timeline.add(
                [Span("driver", "step", index, index + 0.1), Span("worker 0", "train 0", index + 0.2, index + 1)]
            )
    return folder


@pytest.fixture(scope="session")
def built(sweep: Path, tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The report of the sweep."""
    return build([sweep], tmp_path_factory.mktemp("report"))


def row(index: int, size: int, rate: float, seed: int) -> dict[str, Any]:
    """A round whose accuracies rise with rounds, size and rate, and whose norm is 2 / sqrt(size)."""
    accuracy = 1 - math.exp(-0.1 * (index + 1) * rate * math.sqrt(size)) + 0.01 * seed
    return {
        "clients": size,
        "loss": 2.0 - accuracy,
        "accuracy": accuracy,
        "examples_so_far": 10 * size * (index + 1),
        "catastrophic_failure": False,
        "pseudo_gradient_norm": 2 / math.sqrt(size),
        "params_norm": 3.0 + 0.1 * index,
        "mean_update_norm": 1.0,
        "mean_norm_all_clients": 1.1,
        "mean_cosine_similarity": 0.1,
        "distance_to_optimum": 0.5,
        "excess_loss": 0.1,
        "clip_level": 1.0 + 0.1 * index,
        "clipped_fraction": 0.5,
        "epsilon": 0.2 * (index + 1) ** 0.5,
        "signal_to_noise": 0.5,
        "secure_sum/wrapped": 0.0,
        "gsi": 1.5 + 0.1 * index,
        **(indices(index) if (size, rate) == (SIZES[0], RATES[0]) else {}),
        "label_similarity": 0.9 - 0.01 * index,
        "bytes_down": 3000 * size,
        "bytes_up": 1000 * size,
        "simulated_time_s": 100.0,
        "wall_time_s": 0.5,
        "idle_fraction": 0.2,
        "eval/test/accuracy": accuracy,
        "eval/test/loss": 2.0 - accuracy,
        "eval/train/accuracy": accuracy + 0.02,
        "eval/train/loss": 1.9 - accuracy,
        **{f"eval/test/p{p}": accuracy * p / 100 for p in (5, 25, 50, 75, 95)},
    }


def indices(index: int) -> dict[str, float]:
    """Figures by parameter group; of one method only, because each has pictures of its own."""
    columns = ("gsi", "probe/gsi", "gsi_baseline", "gsi_unbounded")
    same = {f"{column}/{name}": 1.2 for column in columns for name in ("weight", "bias")}
    return {**same, "probe/gsi": 1.3, "glad_factor/weight": 1 + 0.01 * index, "glad_factor/bias": 1 - 0.01 * index}
