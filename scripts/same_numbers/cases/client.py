"""Lists the cases of client optimizers, corrections and personal models."""

from __future__ import annotations

from typing import Any

from .case import Case
from .settings import WIDE, client


def of_clients() -> dict[str, Case]:
    """Client optimizers, corrections, schedules and what else a client does."""
    corrections: dict[str, dict[str, Any]] = {
        "prox": {"mu": 0.3},
        "scaffold": {},
        "scaffold_m": {"exact": False},
        "scaffold_m exact": {"name": "scaffold_m", "exact": True},
        "feddyn": {"mu": 0.1},
        "adabest": {"mu": 0.05, "beta": 0.8},
        "mime sgd": {"name": "mime", "base": "sgd"},
        "mime momentum": {"name": "mime", "base": "momentum", "beta1": 0.8},
        "mime adam": {"name": "mime", "base": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-2},
        "mimelite sgd": {"name": "mimelite", "base": "sgd"},
        "mimelite momentum": {"name": "mimelite", "base": "momentum", "beta1": 0.8},
        "mimelite adam": {"name": "mimelite", "base": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-2},
        "feddane": {"mu": 0.1},
    }
    made = {}
    for name, keys in corrections.items():
        # scaffold_m wants as many local steps of every client.
        settings = {"client.correction": {"name": name, **keys}, "rounds": 4, "model": WIDE, "client.local_steps": 3}
        made[f"correction {name}"] = Case(settings)
        made[f"correction {name} by autograd"] = Case({**settings, "engine.trainer": "one_by_one"})
    made["correction mime examples"] = Case(
        {"client.correction": {"name": "mime", "base": "momentum"}, "server.weighting": "examples"}
    )
    made["correction fedpd"] = Case({"client.correction": {"name": "fedpd", "mu": 0.1}, "cohort.size": 12})
    for trainer in ("one_by_one", "auto"):
        made[f"posterior {trainer}"] = Case(
            {"client.posterior": {"rho": 0.5}, "client.epochs": 4, "model": WIDE, "engine.trainer": trainer}
        )
    for keys in (
        {"penalty": "l1", "strength": 0.05, "groups": ["*"]},
        {"penalty": "l2_ball", "radius": 0.5, "groups": ["*.weight"]},
    ):
        made[f"composite {keys['penalty']}"] = Case({"composite": keys, "client.epochs": 2, "model": WIDE})
    made["posterior steps"] = Case(
        {"client.posterior": {"burn_in": 0, "sample": 2, "from_round": 1}, "client.local_steps": 7}
    )
    made["correction scaffold momentum"] = Case(
        {"client.correction.name": "scaffold", **client(lr=0.1, momentum=0.5), "client.max_grad_norm": 1.0}
    )
    made["correction scaffold glad clip"] = Case(
        {"client.correction.name": "scaffold", "server.glad": {}, "server.clip.fixed": 0.5, "model": WIDE}
    )
    optimizers: dict[str, dict[str, Any]] = {
        "sgd": {"lr": 0.1},
        "sgd momentum": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
        "adam": {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.01},
        "adamw": {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.1},
        "adagrad": {"lr": 0.05, "eps": 1e-8, "v0": 0.1, "weight_decay": 0.01},
    }
    for name, keys in optimizers.items():
        optimizer = {"name": name.split()[0], **keys}
        made[f"client {name}"] = Case({"client.optimizer": optimizer, "client.epochs": 2, "model": WIDE})
        made[f"client {name} prox"] = Case(
            {"client.optimizer": optimizer, "client.correction": {"name": "prox", "mu": 0.2}}
        )
    parts: dict[str, dict[str, Any]] = {
        "work epochs": {"client.epochs": 3, "client.max_local_steps": 5},
        "work steps": {"client.local_steps": 7},
        "work drawn each round": {"client.epochs": {"low": 1, "high": 3, "per": "round"}},
        "work drawn each run": {"client.local_steps": {"low": 2, "high": 9, "per": "run"}},
        "work schedule": {"client.schedule": [{"round": 1, "epochs": 2}, {"round": 2, "local_steps": 1}]},
        "work batch schedule": {
            "client.schedule": [{"round": 1, "batch_size": 7}, {"round": 2, "batch_size": "full", "epochs": 2}],
            "rounds": 4,
        },
        "work full batch": {"client.batch_size": "full", "client.epochs": 2, "model": WIDE},
        "work lr_decay": {"client.lr_decay": 0.5},
        "work not shuffled": {"client.shuffle": False, "client.epochs": 2},
        "work filled": {"client.fill_last_batch": True, "client.epochs": 2},
        "work short left out": {"client.drop_last": True, "client.epochs": 2},
        "work in pieces": {"client.accumulate": 3, "model": WIDE},
        "work clipped": {"client.max_grad_norm": 0.5, "model": WIDE},
        "work departures": {"client.mid_round_dropout": 0.4, "rounds": 5},
        "work departures scaffold": {
            "client.mid_round_dropout": 0.4,
            "client.correction.name": "scaffold",
            "rounds": 5,
        },
        "evaluation splits": {"evaluation.split": ["train", "test", "validation"], "evaluation.every": 1},
        "evaluation sampled": {
            "evaluation.split": "train",
            "evaluation.clients": 4,
            "evaluation.percentiles": [10, 50],
        },
        "evaluation examples": {"evaluation.split": "train", "evaluation.clients": "all", "evaluation.examples": 7},
        "evaluation few at a time": {"evaluation.split": "train", "evaluation.batch_size": 5},
        "evaluation all": {"evaluation.split": "train", "evaluation.clients": "all"},
        "fine_tuning": {"evaluation.fine_tuning": {"steps": 3, "lr": 0.05}, "model": WIDE},
        "fine_tuning on test": {"evaluation.fine_tuning": {"steps": 2, "split": "test"}, "evaluation.every": 1},
    }
    return made | {name: Case(settings) for name, settings in parts.items()}


def of_personal_models() -> dict[str, Case]:
    """Models of the clients' own; groups of WIDE that stay at the client."""
    kinds: dict[str, dict[str, Any]] = {
        "ditto": {"name": "ditto", "lam": 0.5},
        "ditto epochs": {"name": "ditto", "lam": 2.0, "lr": 0.05, "epochs": 2},
        "ditto steps": {"name": "ditto", "lam": 0.0, "local_steps": 3},
        "apfl": {"name": "apfl", "alpha": 0.3},
        "split": {"name": "split", "local": ["fc3.*"]},
        "split rounds": {"name": "split", "local": ["fc3.*"], "local_epochs": 2, "lr": 0.1, "keep": False},
        "maml": {"name": "maml", "alpha": 0.1},
        "maml difference": {"name": "maml", "alpha": 0.1, "hessian": "difference", "delta": 0.01},
        "maml none": {"name": "maml", "alpha": 0.1, "hessian": "none"},
        "clusters": {"name": "clusters", "count": 2},
    }
    return {
        f"personal {name}": Case({"client.personalisation": {**kind, "split": "train"}, "model": WIDE})
        for name, kind in kinds.items()
    }
