"""Lists the cases of samplers, systems, and what ends a run."""

from __future__ import annotations

from typing import Any

from .case import Case


def of_cohorts() -> dict[str, Case]:
    """Samplers, systems, dropout, adversaries and evaluations."""
    rejected = {"name": "scale", "clients": ["c1", "c5"], "factor": 1e38}
    lists = [["c1", "c2"], ["c3"], ["c4", "c5", "c6"]]
    lognormal = {"name": "lognormal", "median": 2e5, "sigma": 0.5, "per": "run"}
    uniform = {"name": "uniform", "low": 1.0, "high": 9.0, "per": "round"}
    exponential = {"name": "exponential", "mean": 20.0, "per": "round"}
    round_time = {"name": "round_time", "seconds_per_example": 0.01}
    parts: dict[str, dict[str, Any]] = {
        "sampler uniform": {"cohort.sampler.name": "uniform", "cohort.seed": 8},
        "sampler md": {"cohort.sampler.name": "md"},
        "sampler adafl": {"cohort.sampler": {"name": "adafl", "alpha": 0.5}, "rounds": 5},
        "sampler adafl kept total": {"cohort.sampler": {"name": "adafl", "keep_total": True}, "rounds": 5},
        "sampler bernoulli": {"cohort.sampler": {"name": "bernoulli", "probability": 0.4}, "cohort.size": None},
        "sampler availability": {
            "cohort.sampler": {"name": "availability", "day": 6.0, "open": 0.8, "spread": 0.5},
            "cohort.size": 2,
        },
        "sampler power_of_choice": {"cohort.sampler": {"name": "power_of_choice", "candidates": 8}},
        "fairness qffl": {"server.fairness": {"name": "qffl", "q": 1.5}},
        "fairness afl": {"server.fairness": {"name": "afl", "lr": 0.05}, "cohort.size": 12},
        "fairness tilt": {"server.fairness": {"name": "tilt", "t": 2.0}},
        "fairness superquantile": {"server.fairness": {"name": "superquantile", "tail": 0.4}},
        "fedex": {"fedex": {"split": "train", "configs": [{}, {"optimizer.lr": 0.01}, {"batch_size": 3}]}},
        "sampler replay": {"cohort.sampler": {"name": "replay", "cohorts": lists}, "cohort.size": None},
        "sampler replay over": {"cohort.sampler": {"name": "replay", "rounds": {"1": lists[0]}, "over.name": "adafl"}},
        "growth": {"cohort.growth": {"every": 1, "factor": 1.5, "max": 8}, "cohort.size": 3, "rounds": 5},
        "growth scaled": {
            "cohort.growth.every": 2,
            "cohort.size": 3,
            "server.lr_scaling": {"rule": "sqrt", "reference": 3},
            "rounds": 5,
        },
        "adversary scale": {"adversary": {"name": "scale", "clients": 0.3, "factor": -4.0}},
        "adversary rejected": {"adversary": rejected, "client.optimizer.lr": 1e3, "rounds": 4},
        "adversary sign_flip": {"adversary": {"name": "sign_flip", "clients": ["c1", "c2", "c3"]}},
        "adversary noise": {"adversary": {"name": "noise", "clients": 0.5, "std": 0.1}},
        "adversary label_flip": {"adversary": {"name": "label_flip", "clients": 0.5}},
        "adversary label_flip krum": {
            "adversary": {"name": "label_flip", "clients": ["c1", "c4"]},
            "server.aggregator": {"name": "krum", "f": 1},
        },
        "systems straggler": {"systems.time": {"name": "straggler", "alpha": 0.1, "lambda": 0.2}},
        "systems over-selection": {
            "systems": {"time": {"name": "straggler", "alpha": 0.1, "lambda": 1.0}, "over_selection": 1.6}
        },
        "systems deadline": {
            "systems": {"time": {**round_time, "overhead_s": exponential}, "deadline_s": 15.0, "min_reports": 2},
            "rounds": 5,
        },
        "systems round_time": {
            "systems.time": {
                **round_time,
                "download_bytes_per_s": lognormal,
                "upload_bytes_per_s": {**lognormal, "per": "round"},
                "slowdown": uniform,
                "overhead_s": {**exponential, "per": "run"},
                "server_s": 1.5,
            }
        },
        "systems session": {
            "systems": {"time": round_time, "session_s": {"name": "uniform", "low": 9.0, "high": 12.0, "per": "run"}},
            "rounds": 4,
        },
    }
    return {name: Case(settings) for name, settings in parts.items()}


def of_ends() -> dict[str, Case]:
    """Runs that know when to stop, and what their best model is."""
    accuracy, loss = "eval/test/accuracy", "eval/test/loss"
    stops: dict[str, dict[str, Any]] = {
        "target": {"target": {"metric": accuracy, "value": 0.4, "last": 2, "maximise": True}},
        "patience": {"patience": {"metric": loss, "evaluations": 2, "min_change": 0.01, "maximise": False}},
        "budget": {"budget": {"rounds": 6, "client_updates": 17, "bytes": 10_000_000, "wall_s": 600.0}},
        "simulated": {"budget": {"simulated_s": 60.0}},
        "divergence": {"divergence": {"metric": "loss", "above": 50.0}},
    }
    made = {f"stop {name}": Case({"stop": keys, "rounds": 12}) for name, keys in stops.items()}
    time = {"name": "round_time", "seconds_per_example": 0.5}
    made["stop simulated"] = Case({"stop": stops["simulated"], "rounds": 12, "systems.time": time})
    style = {"formats": ["png", "svg", "pdf"], "width_cm": 8.0, "font_size": 8.0, "font": "serif", "style": "classic"}
    made["pictures"] = Case({"report": style, "rounds": 1}, kind="run")
    made["best"] = Case({"checkpoint.best": {"metric": accuracy}, "rounds": 5}, kind="run")
    return made
