"""Lists the cases of server steps, aggregators, weights and fair objectives."""

from __future__ import annotations

from typing import Any

from .case import Case
from .settings import MOMENTUM, WIDE, client


def of_servers() -> dict[str, Case]:
    """Server optimizers, aggregators, weights and fair objectives."""
    optimizers: dict[str, dict[str, Any]] = {
        "sgd": {"lr": 0.8},
        "momentum": {"lr": 0.5, "beta1": 0.8},
        "momentum dampened": {"name": "momentum", "lr": 0.5, "dampened": True},
        "adagrad": {"lr": 0.1, "beta1": 0.5, "eps": 1e-2, "v0": 0.1},
        "adam": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "v0": 0.01},
        "adam epsilon_hat": {"name": "adam", "lr": 0.05, "bias_correction": "epsilon_hat"},
        "adam kingma": {"name": "adam", "lr": 0.05, "bias_correction": "kingma"},
        "yogi": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "v0": 0.01},
        "yogi epsilon_hat": {"name": "yogi", "lr": 0.05, "bias_correction": "epsilon_hat"},
        "yogi kingma": {"name": "yogi", "lr": 0.05, "bias_correction": "kingma"},
        "lars": {"lr": 0.05, "beta1": 0.8, "eps": 1e-2, "weight_decay": 0.01},
        "lamb": {"lr": 0.05, "beta1": 0.8, "beta2": 0.95, "eps": 1e-2, "weight_decay": 0.01},
        "normalized": {"lr": 0.3},
    }
    made = {}
    for name, keys in optimizers.items():
        optimizer = {"name": name, **keys}
        settings = {"server.optimizer": optimizer, "model": WIDE}
        made[f"server {name}"] = Case(settings)
        if name == optimizer["name"]:
            made[f"server {name} with glad"] = Case({**settings, "server.glad": {}})
    aggregators: dict[str, dict[str, Any]] = {
        "fednova sum_p_a": {"name": "fednova"},
        "fednova sum_p_tau": {"name": "fednova", "tau_eff": "sum_p_tau"},
        "median": {"name": "median"},
        "trimmed_mean": {"name": "trimmed_mean", "k": 1},
        "krum": {"name": "krum", "f": 1},
        "multi_krum": {"name": "multi_krum", "f": 1, "m": 2},
        "geometric_median": {"name": "geometric_median", "iterations": 3, "nu": 1e-5},
    }
    for name, keys in aggregators.items():
        made[f"aggregator {name}"] = Case({"server.aggregator": keys, "server.optimizer": MOMENTUM})
    made["aggregator fednova momentum"] = Case(
        {"server.aggregator.name": "fednova", **client(lr=0.1, momentum=0.5), "client.epochs": 2}
    )
    made["aggregator local_adaptivity sgd"] = Case({"server.aggregator.name": "local_adaptivity", "client.epochs": 2})
    for name in ("joint", "local"):
        adaptive = {"server.aggregator": {"name": "local_adaptivity", "correction": name}}
        made[f"aggregator local_adaptivity {name}"] = Case(
            {**adaptive, "client.optimizer": {"name": "adagrad", "lr": 0.05, "eps": 1e-3}, "client.epochs": 2}
        )
    made["aggregator fednova prox"] = Case(
        {"server.aggregator.name": "fednova", "client.correction": {"name": "prox", "mu": 0.1}}
    )
    made["aggregator median clip glad"] = Case(
        {"server.aggregator.name": "median", "server.clip.fixed": 0.3, "server.glad": {}, "model": WIDE}
    )
    parts: dict[str, dict[str, Any]] = {
        "aggregator mean": {"server.aggregator.name": "mean"},
        "weighting uniform": {"server.weighting": "uniform"},
        "weighting ida": {"server.weighting": "ida"},
        "weighting ida clip": {"server.weighting": "ida", "server.clip.initial": 0.3, "rounds": 4},
        "clip adaptive": {"server.clip": {"initial": 0.5, "quantile": 0.5, "lr": 0.3}, "rounds": 5},
        "clip fixed": {"server.clip.fixed": 0.2},
        "zeroing": {"server.zeroing": {"initial": 0.4, "quantile": 0.6, "lr": 0.5}, "rounds": 5},
        "zeroing and clip": {"server.zeroing.initial": 0.5, "server.clip.initial": 0.1},
        "glad group": {"server.glad": {"beta": 0.8, "gamma": 0.1, "scope": "group"}, "model": WIDE, "rounds": 5},
        "glad layer": {"server.glad": {"gamma": "inf", "scope": "layer"}, "model": WIDE, "rounds": 5},
        "glad universal": {"server.glad.scope": "universal", "model": WIDE, "rounds": 5},
        "lr_scaling sqrt": {"server.lr_scaling": {"rule": "sqrt", "reference": 3, "warmup": 2, "from": "zero"}},
        "lr_scaling linear": {"server.lr_scaling": {"rule": "linear", "reference": 3, "warmup": 2, "from": "base"}},
        "lr_scaling none": {"server.lr_scaling": {"rule": "none", "warmup": 2}, "rounds": 4},
        "lr_schedule exponential": {"server.lr_schedule": {"name": "exponential", "decay": 0.9}},
        "lr_schedule step": {"server.lr_schedule": {"name": "step", "factor": 0.5, "every": 2}},
        "lr_schedule cosine": {"server.lr_schedule": {"name": "cosine", "length": 4, "final": 0.1}},
        "diagnostics labels": {"server.diagnostics.labels": True},
        "diagnostics no cosine": {"server.diagnostics.cosine": False},
        "diagnostics cosine": {"server.diagnostics.cosine": True},
        "diagnostics probe": {"server.diagnostics.probe": 2, "model": WIDE},
        "pooled": {"pooled": True, "cohort.size": 1},
        "one round": {"rounds": 1},
        "many small chunks": {"engine.chunk_size": 1, "cohort.size": 11},
        "chunks of three": {"engine.chunk_size": 3, "cohort.size": 11, "model": WIDE},
    }
    return made | {name: Case(settings) for name, settings in parts.items()}
