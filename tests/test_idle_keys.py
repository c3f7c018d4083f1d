"""Keys that change nothing beside the others are said before the first round, and only those."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim

Make = Callable[..., raysim.Experiment]

SGD = {"optimizer": {"name": "sgd", "lr": 0.3}, "batch_size": 4}
MOMENTUM = {"optimizer": {"name": "sgd", "lr": 0.3, "momentum": 0.5}, "batch_size": 4}
PULL = {**SGD, "correction": {"name": "prox", "mu": 0.5}}
NOVA = {"aggregator": {"name": "fednova", "tau_eff": "sum_p_tau"}}
MEDIAN = {"name": "median"}
TIME = {"time": {"name": "straggler", "alpha": 0.01, "lambda": 0.1}, "min_reports": 5}
ON_TIME = {"time": TIME["time"]}
OVER_SELECTED = {**ON_TIME, "over_selection": 1.5}
NO_NOISE = {"name": "gaussian", "noise_multiplier": 0}

WITHIN: tuple[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any] | None, str], ...] = (
    ("cohort.sampler", {"name": "adafl", "alpha": 1}, {"keep_total": True}, {}, "keep_total = True has no effect"),
    ("server.clip", {"lr": 0, "initial": 0.1}, {"quantile": 0.1}, {}, "quantile = 0.1 has no effect: with lr = 0"),
    ("server.zeroing", {"lr": 0, "initial": 0.01}, {"quantile": 0.1}, {}, "quantile = 0.1 has no effect: with lr = 0"),
    ("cohort.sampler", {"name": "availability", "open": 1}, {"day": 3}, {}, "sampler.day = 3.0 has no effect"),
    ("cohort.sampler", {"name": "availability", "open": 1}, {"spread": 0.1}, {}, "sampler.spread = 0.1 has no effect"),
    ("server.lr_schedule", {"name": "cosine", "final": 1}, {"length": 2}, None, "lr_schedule.length = 2 has no effect"),
    ("server.lr_schedule", {"name": "step", "factor": 1}, {"every": 2}, None, "lr_schedule.every = 2 has no effect"),
    ("cohort.growth", {"factor": 1}, {"every": 2}, None, "cohort.growth.every = 2 has no effect: with factor = 1"),
    (
        "server.aggregator",
        {"name": "geometric_median", "iterations": 0},
        {"nu": 0.5},
        {},
        "server.aggregator.nu = 0.5 has no effect: with iterations = 0 no step is taken",
    ),
    ("server.optimizer", {"name": "momentum", "beta1": 0}, {"dampened": True}, {}, "dampened = True has no effect"),
    ("server.privacy", NO_NOISE, {"delta": 1e-3}, {}, "server.privacy.delta = 0.001 has no effect: with noise_mul"),
    ("server.privacy", NO_NOISE, {"accountant": "rdp"}, {}, "accountant = 'rdp' has no effect: with noise_multi"),
    (
        "client.compression",
        {"name": "random_k", "fraction": 1},
        {"scale": "least"},
        {},
        "client.compression.scale = 'least' has no effect: with fraction = 1",
    ),
)
"""Section, values that leave other keys without effect, such a key, what is left without it (None: nothing of the
section), and what is said."""

ACTING: dict[str, dict[str, Any]] = {
    "adafl": {"alpha": 0.5},
    "availability": {"open": 0.5},
    "cohort.growth": {"factor": 2.0},
    "cosine": {"final": 0.5},
    "gaussian": {"noise_multiplier": 0.5},
    "geometric_median": {"iterations": 1},
    "momentum": {"beta1": 0.5},
    "random_k": {"fraction": 0.5},
    "server.clip": {"lr": 0.1},
    "server.zeroing": {"lr": 0.1},
    "step": {"factor": 0.5},
}
"""With these the same keys have an effect."""

RATES = {"split": "train", "configs": [{"optimizer.lr": 0.1}, {"optimizer": {"name": "sgd", "lr": 0.5}}]}


def name_of(section: str, off: dict[str, Any]) -> str:
    """Return the choice's name, or the section where it has none."""
    return str(off.get("name", section))


def _at(section: str, values: dict[str, Any] | None) -> dict[str, Any]:
    """Return the sections with these values at a dotted key, beside what the key needs."""
    table, key = section.split(".")
    private: dict[str, Any] = {"clip": {"fixed": 0.1}, "weighting": "uniform"}
    all_beside: dict[str, dict[str, Any]] = {
        "cohort": {"size": 7},
        "server": private if key == "privacy" else {},
        "client": SGD,
    }
    beside = all_beside[table]
    return {table: {**beside, **({} if values is None else {key: values})}}


def said(experiment: raysim.Experiment, data: Any, caplog: pytest.LogCaptureFixture) -> tuple[list[str], Any]:
    """Run; return the warnings of keys without effect, and the last model."""
    caplog.clear()
    last = list(raysim.rounds(experiment, dataset=data))[-1]
    return [each.getMessage() for each in caplog.records if "has no effect" in each.getMessage()], last.params


@pytest.mark.parametrize(
    ("sections", "without", "key"),
    [
        (
            {"client": SGD, "server": NOVA},
            {"server": {"aggregator": {"name": "fednova"}}},
            "server.aggregator.tau_eff = 'sum_p_tau' has no effect: under client.optimizer 'sgd' without momentum",
        ),
        (
            {"client": SGD, "fedex": RATES},
            {"client": {"batch_size": 4}},
            "client.optimizer.lr = 0.3 has no effect: all of fedex.configs set optimizer.lr",
        ),
        (
            {"fedex": {"split": "train", "configs": [{"batch_size": 2}, {"batch_size": 8}]}},
            {"client": {"optimizer": SGD["optimizer"]}},
            "client.batch_size = 4 has no effect: all of fedex.configs set batch_size",
        ),
        *(
            (
                {"client": {**SGD, "batch_size": "full", key: True}},
                {"client": {**SGD, "batch_size": "full"}},
                f"client.{key} = true has no effect: with client.batch_size = 'full' an epoch is one batch",
            )
            for key in ("fill_last_batch", "drop_last")
        ),
        (
            {"systems": TIME},
            {"systems": {"time": TIME["time"]}},
            "systems.min_reports = 5 has no effect: all clients that are asked report",
        ),
        *(
            (
                {"cohort": {"size": 20, **cohort}, **others},
                {"cohort": {"size": 20}, **without},
                f"{key} has no effect: with cohort.size = 20 every round has all 20 training clients",
            )
            for cohort, others, without, key in (
                ({"seed": 3}, {}, {}, "cohort.seed = 3"),
                ({"sampler": {"name": "adafl"}}, {}, {}, "cohort.sampler.name = 'adafl'"),
                ({"growth": {"every": 1}}, {}, {}, "cohort.growth"),
                ({}, {"systems": OVER_SELECTED}, {"systems": ON_TIME}, "systems.over_selection = 1.5"),
            )
        ),
        (
            {"cohort": {"sampler": {"name": "bernoulli", "probability": 1}, "seed": 3}},
            {"cohort": {"sampler": {"name": "bernoulli", "probability": 1}}},
            "cohort.seed = 3 has no effect: with cohort.sampler.probability = 1 every round has all training clients",
        ),
        *(
            (_at(section, {**off, **idle}), _at(section, None if left is None else {**off, **left}), text)
            for section, off, idle, left, text in WITHIN
        ),
        *(
            (
                {"server": {"aggregator": rule, "weighting": "examples"}},
                {"server": {"aggregator": rule}},
                f"server.weighting = 'examples' has no effect: server.aggregator.name = {rule['name']!r} counts all",
            )
            for rule in (
                MEDIAN,
                {"name": "trimmed_mean", "k": 1},
                {"name": "krum", "f": 1},
                {"name": "multi_krum", "f": 1, "m": 3},
            )
        ),
    ],
    ids=[
        "tau_eff",
        "lr",
        "batch size",
        "filled",
        "dropped",
        "min_reports",
        "seed of all clients",
        "attention to all clients",
        "growth of all clients",
        "over-selection of all clients",
        "seed of certain draws",
        *(section for section, *_ in WITHIN),
        "median",
        "trimmed mean",
        "krum",
        "multi-Krum",
    ],
)
def test_a_key_that_changes_nothing_is_said(
    sections: dict[str, Any],
    without: dict[str, Any],
    key: str,
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    warned, params = said(experiment(**sections), dataset, caplog)
    assert len(warned) == 1
    assert key in warned[0]
    none, others = said(experiment(**{**sections, **without}), dataset, caplog)
    assert none == []
    assert all(torch.equal(params[name], others[name]) for name in params)


@pytest.mark.parametrize(
    "sections",
    [
        {"client": MOMENTUM, "server": NOVA},
        {"client": PULL, "server": NOVA},
        {"client": SGD, "fedex": {"split": "train", "configs": [{}, {"optimizer.lr": 0.5}]}},
        {"client": SGD, "fedex": RATES, "evaluation": {"every": 2, "fine_tuning": {"steps": 1, "split": "train"}}},
        {"client": SGD, "server": NOVA, "fedex": {"split": "train", "configs": [{}, {"optimizer.momentum": 0.5}]}},
        {"systems": {**TIME, "deadline_s": 2.0}},
        {"systems": {**TIME, "session_s": 2.0}},
        {"systems": TIME, "client": {**SGD, "mid_round_dropout": 0.5}},
        {"systems": TIME, "cohort": {"size": 7, "sampler": {"name": "md"}}},
        {"client": {**SGD, "drop_last": True}},
        {"client": {"batch_size": "full", "drop_last": True, "schedule": [{"round": 9, "batch_size": 4}]}},
        {
            "client": {"batch_size": "full", "fill_last_batch": True},
            "fedex": {"split": "train", "configs": [{"batch_size": 4}, {"optimizer.lr": 0.1}]},
        },
        {"server": {"weighting": "examples"}},
        {"server": {"weighting": "uniform", "aggregator": MEDIAN}},
        {"server": {"weighting": "examples", "aggregator": {"name": "geometric_median"}}},
        {"server": {"weighting": "ida"}},
        *(_at(section, {**off, **ACTING[name_of(section, off)], **idle}) for section, off, idle, *_ in WITHIN),
        {"cohort": {"size": 19, "seed": 3, "sampler": {"name": "adafl"}, "growth": {"every": 1}}},
        {"cohort": {"size": 20, "seed": 3, "sampler": {"name": "md"}}},
        {"cohort": {"seed": 3, "sampler": {"name": "bernoulli", "probability": 0.9}}},
        {"cohort": {"size": 20, "seed": 0}},
        {"server": {"clip": {"initial": 0.1, "lr": 0, "quantile": 0.8}}},
        # An adaptive clip's counts have noise, too.
        {
            "server": {
                "clip": {"initial": 0.1},
                "privacy": {**NO_NOISE, "noise_cohort_size": 19},
                "weighting": "uniform",
            }
        },
        # Of equals these take the first, and the order is that of drawing.
        {"cohort": {"size": 20, "seed": 3}, "server": {"aggregator": {"name": "krum", "f": 1}}},
        {"cohort": {"size": 20, "sampler": {"name": "adafl"}}, "server": {"aggregator": {"name": "krum", "f": 1}}},
        {"cohort": {"size": 20, "seed": 3}, "server": {"fairness": {"name": "superquantile", "tail": 0.5}}},
    ],
)
def test_nothing_is_said_of_keys_that_may_change_something(
    sections: dict[str, Any],
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert said(experiment(**sections, rounds=1), dataset, caplog)[0] == []


def sayings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "has no effect" in each.getMessage()]


@pytest.mark.parametrize("momenta", [[0.9, 0.0, 0.5], [0.0, 0.9], [0.9, 0.5]])
def test_runs_of_a_sweep_say_it_once_with_the_first_that_has_such_a_key(
    momenta: list[float],
    experiment: Make,
    dataset: raysim.FederatedDataset,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    """Also of trials: a seed is no reason to say it again. A sweep that goes on says it of the runs that go on."""
    exp = experiment(client=SGD, server=NOVA, trials=2, rounds=1)
    swept = {"client.optimizer.momentum": momenta, "client.optimizer.lr": [0.1, 0.2]}
    raysim.run_sweep(exp, swept, dataset=dataset, path=tmp_path / "sweep")
    said = sayings(caplog)
    assert len(said) == (0.0 in momenta)
    if said:
        first = "" if momenta[0] == 0.0 else "client.optimizer.momentum=0.0,client.optimizer.lr=0.1/trial-0: "
        assert said[0].startswith("server." if not first else str(tmp_path))
        assert f"{first}server.aggregator.tau_eff = 'sum_p_tau' has no effect" in said[0]
    caplog.clear()
    raysim.run_sweep(exp, swept, dataset=dataset, path=tmp_path / "sweep", resume=True)
    assert sayings(caplog) == []


def test_runs_that_share_workers_say_what_one_run_says(
    experiment: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Each thing once, with other values too; the data's examples are looked at once, too."""
    x, y = np.ones((6, 5), np.float32), np.arange(6) % 3
    spoilt = raysim.FederatedDataset.from_clients(train={"a": (x * np.nan, y), "b": (x, y)})
    exp = experiment(client=SGD, server=NOVA, cohort={"size": 1}, rounds=1)
    list(raysim.rounds(exp, dataset=spoilt))
    alone = [each.getMessage() for each in caplog.records if not each.getMessage().startswith("round ")]
    assert any("values that are not finite" in each for each in alone)
    assert any("no test split" in each for each in alone)
    assert any("has no effect" in each for each in alone)
    caplog.clear()
    with raysim.Runs(exp, dataset=spoilt) as runs:
        for name in ("one", "two", "three"):
            runs.start([(exp.changed({"seed": len(name)}), tmp_path / name)])
            list(runs.reports())
    assert [each.getMessage() for each in caplog.records if not each.getMessage().startswith("round ")] == alone
