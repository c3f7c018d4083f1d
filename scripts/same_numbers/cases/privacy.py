"""Cases of privacy: mechanisms, accountants, and the sampler that takes turns."""

from __future__ import annotations

from typing import Any

from .case import Case


def of_privacy() -> dict[str, Case]:
    """Noise is small beside the clip level, so that the model stays finite; Rényi's accountant is the quick one."""
    half: dict[str, Any] = {"cohort.sampler": {"name": "bernoulli", "probability": 0.5}, "cohort.size": None}
    turns: dict[str, Any] = {"cohort.sampler": {"name": "cyclic", "groups": 2, "probability": 0.8}, "cohort.size": None}
    adaptive = {"server.clip": {"initial": 0.5, "quantile": 0.6, "lr": 0.3}}
    quick = {"noise_multiplier": 0.3, "accountant": "rdp", "delta": 0.01}
    parts: dict[str, dict[str, Any]] = {
        "sampler cyclic": turns,
        "gaussian": {**half, "server.privacy": {"name": "gaussian", **quick, "noise_cohort_size": 7}},
        "gaussian losses": {**half, "server.privacy": {**quick, "name": "gaussian", "accountant": "pld"}},
        "gaussian adaptive": {**half, **adaptive, "server.privacy": {"name": "gaussian", **quick, "count_std": 1.5}},
        "gaussian budget": {**half, "server.privacy": {"name": "gaussian", **quick, "epsilon": 400.0}},
        "gaussian silent": {"server.privacy": {"name": "gaussian", "noise_multiplier": 0.0}},
        "tree": {**turns, "server.privacy": {"name": "tree", **quick}, "rounds": 5},
        "banded": {**turns, "server.privacy": {"name": "banded", "bands": 2, **quick}, "rounds": 5},
    }
    fixed = {"server.clip": {"fixed": 0.5}}
    return {
        f"privacy {name}": Case({**(fixed if "server.privacy" in settings else {}), **settings})
        for name, settings in parts.items()
    }
