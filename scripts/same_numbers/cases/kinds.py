"""Lists the cases of what carries experiments out: resumed runs, studies, sweeps, and Ray."""

from __future__ import annotations

from collections.abc import Mapping

from .case import Case
from .own_parts import OWN
from .settings import MOMENTUM, WIDE


def of_kinds() -> dict[str, Case]:
    """What carries an experiment out."""
    scaffold = {"client.correction.name": "scaffold", "checkpoint.every": 2, "checkpoint.keep": 1, "rounds": 5}
    adam = {"server.optimizer": {"name": "adam", "lr": 0.05}, "server.glad": {}, "model": WIDE, "rounds": 5}
    adafl = {"cohort.sampler.name": "adafl", "server.clip.initial": 0.4, "rounds": 5, "checkpoint.every": 2}
    grid = {"space": {"client.optimizer.lr": {"grid": [0.05, 0.2]}, "server.optimizer.lr": {"grid": [0.5, 1.0]}}}
    drawn = {
        "space": {"client.optimizer.lr": {"log": [0.01, 1.0]}},
        "sampler": {"name": "random"},
        "trials": 4,
        "final": 0,
    }
    alike = [{}, {"client.optimizer.lr": 0.05}, {"server.optimizer": MOMENTUM}]
    others = [{}, {"seed": 4}, {"cohort.size": 3}]
    return {
        "run": Case({**adam}, kind="run"),
        "run two phases": Case({"client.correction": {"name": "mime", "base": "adam"}}, kind="run"),
        "resume scaffold": Case(scaffold, kind="resume"),
        "resume adam": Case(adam, kind="resume"),
        "left and resumed": Case(adafl, kind="left"),
        "left and resumed scaffold": Case(scaffold, kind="left"),
        "trials": Case({"trials.count": 2, "trials.vary": ["model", "cohort"]}, kind="trials"),
        "trials of data": Case(
            {"trials": 2, "data": {"name": "synthetic", "clients": 9, "sizes": 12}, "rounds": 2}, None, "trials"
        ),
        "trials vary data": Case(
            {
                "trials": {"count": 2, "vary": ["data"]},
                "data": {"name": "digits", "clients": 9},
                "client.max_local_steps": 2,
            },
            None,
            "trials",
        ),
        "sweep": Case({}, kind="sweep", more={"cohort.size": [2, 5]}),
        "sweep of choices": Case(
            {"trials": 2}, kind="sweep", more={"server.optimizer": [{"name": "adam", "lr": 0.1}, MOMENTUM]}
        ),
        "runs in lockstep": Case({"model": WIDE, "rounds": 4}, kind="runs", more=alike),
        "runs in lockstep prox": Case(
            {"client.correction": {"name": "prox", "mu": 0.1}, "model": WIDE}, kind="runs", more=alike
        ),
        "runs in lockstep adam": Case({"client.optimizer": {"name": "adam", "lr": 0.01}}, kind="runs", more=alike[::2]),
        "runs apart": Case({"client.correction.name": "scaffold"}, kind="runs", more=others),
        "tune grid": Case({"rounds": 4}, kind="tune", more={**grid, "seeds": 2, "final": 1}),
        "tune random": Case({"rounds": 4}, kind="tune", more=drawn),
        "error of the cohort": Case({"cohort.size": 13}),
        "error of the loss": Case({}, own=OWN["wrong loss"]),
        "centralized": Case({"model": WIDE}, kind="centralized"),
    }


def on_ray(local: Mapping[str, Case]) -> dict[str, Case]:
    """The cases that are run on Ray too."""
    names = [
        "server adam with glad",
        "aggregator median",
        "weighting ida clip",
        "correction scaffold",
        "correction mime adam",
        "diagnostics probe",
        "sampler adafl",
        "systems over-selection",
        "fine_tuning",
        "own module and loss",
        "own server optimizer",
        "own objective",
        "own correction",
        "own transforms",
        "own sampler that learns",
        "own aggregator of products",
        "model resnet56 batch",
        "resume scaffold",
        "trials",
        "runs in lockstep",
    ]
    return {
        f"on Ray: {name}": local[name]._replace(
            on_ray=True, kind="run" if local[name].kind == "rounds" else local[name].kind
        )
        for name in names
    }
