"""Defines an experiment of scripts/same-numbers, the keys of all of them, and the choices that none uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import raysim

TRAINER = ("trainer", "form")
"""What the key of `engine` is called that says how local training is computed; the first that is there counts."""


UNUSED = {
    "ag_news.AgNews.train = noisyag": "needs the published files",
    "ag_news.AgNews.noisyag_root": "a path",
    "bilstm.Bilstm.vectors": "a path",
    "cifar.Cifar10.train_files": "a path",
    "cifar.Cifar10.test_files": "a path",
    "distilbert.Distilbert.name = distilbert": "needs pretrained weights",
    "distilbert.Distilbert.path": "a path",
    "emnist.Emnist.form = leaf": "needs the published files",
    "emnist_idx.EmnistIdx.split = balanced": "needs the published files",
    "emnist_idx.EmnistIdx.split = byclass": "needs the published files",
    "emnist_idx.EmnistIdx.split = bymerge": "needs the published files",
    "emnist_idx.EmnistIdx.split = digits": "needs the published files",
    "emnist_idx.EmnistIdx.split = mnist": "needs the published files",
    "experiment.EngineSection.cpus_per_worker": "placement",
    "experiment.EngineSection.cuda_graphs = False": "needs a card",
    "experiment.EngineSection.cuda_graphs = True": "needs a card",
    "experiment.EngineSection.gpus_per_worker": "placement",
    "experiment.EngineSection.precision = tf32": "needs a card",
    "experiment.EngineSection.wait_s": "placement",
    "experiment.Experiment.tuning": "the cases of studies pass it by keyword",
    "gld.Gld.set = gld160k": "needs the published files",
    "model.ModelChoice.init": "a path",
    "pretrained.Pretrained.length": "needs a pretrained tokeniser",
    "pretrained.Pretrained.name = pretrained": "needs a pretrained tokeniser",
    "pretrained.Pretrained.path": "a path",
    "section.ClientSection.hold_frozen_norms = True": "needs a module with frozen norms",
    "shakespeare.Shakespeare.form = leaf": "needs the published files",
    "shakespeare.Shakespeare.form = tiny": "needs the published files",
}
"""Choices of the schema that no case uses, and why; every other one is used."""


Kind = Literal["rounds", "run", "resume", "left", "trials", "sweep", "runs", "tune", "centralized"]


class Case(NamedTuple):
    """An experiment, and how it is carried out.

    settings: by dotted key, over `BASE`; None removes a key. data: a name of `datasets`; None: the settings say it.
    kind: what of the API carries it out. more: the sweep's values, the study's settings, or the runs' differences.
    own: what a script passes besides; where a revision takes no such keyword, the case is not run on it. on_ray: with
    two workers.
    """

    settings: Mapping[str, Any]
    data: str | None = "vectors"
    kind: Kind = "rounds"
    more: Any = None
    own: Mapping[str, Any] = {}
    on_ray: bool = False


BASE: dict[str, Any] = {
    "name": "case",
    "seed": 3,
    "rounds": 3,
    "model.name": "linear",
    "client.optimizer.lr": 0.2,
    "client.batch_size": 4,
    "cohort.size": 5,
    "evaluation.every": 2,
}


def experiment(case: Case) -> raysim.Experiment:
    """The case's experiment, with the keys that this tree has."""
    table: dict[str, Any] = {}
    for key, value in {**BASE, **case.settings}.items():
        _put(table, key.split("."), value)
    engine = table.setdefault("engine", {})
    if "trainer" in engine:
        known = type(raysim.Experiment.model_validate({"cohort": {"size": 1}}).engine).model_fields
        engine[next(name for name in TRAINER if name in known)] = engine.pop("trainer")
    if case.on_ray:
        engine["workers"] = 2
    return raysim.Experiment.model_validate(table)


def _put(table: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        table = table.setdefault(name, {})
    if value is None:
        table.pop(path[-1], None)
    elif isinstance(value, Mapping):
        table[path[-1]] = {}
        for key, each in value.items():
            _put(table[path[-1]], str(key).split("."), each)
    else:
        table[path[-1]] = value
