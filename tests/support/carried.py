"""Carries a strange table through an experiment's stations, up to rounds in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal

import numpy as np

import raysim
from raysim.config import overrides
from raysim.engine.plan.resolve import resolve
from raysim.errors import RaysimError
from raysim.experiment import sweep
from raysim.experiment.expand import trials_of
from tests.support.small_data import make_clients
from tuning.section import section_of

BASE: Mapping[str, Any] = {
    "rounds": 1,
    "data": {"name": "digits", "clients": 4},
    "model": {"name": "linear"},
    "cohort": {"size": 2},
    "engine": {"workers": 0},
}
"""Tables that strange ones replace."""

Station = Literal["validated", "planned", "run"]
"""How far an accepted table is carried."""

Outcome = Literal["refused", "accepted"]

IMAGES = ("cnn", "cnn_mcmahan", "cnn_tutorial", "resnet18_gn", "resnet56", "mobilenet_v2_gn")
TEXTS = ("lstm_char", "lstm_word", "transformer_word")
LONGEST = 10_000
"""Characters that an error may have: it is read in a terminal."""


@cache
def dataset(model: str) -> raysim.FederatedDataset:
    """Return a dataset for a model: images, texts, or five features."""
    rng = np.random.default_rng(0)
    clients: dict[str, tuple[Any, Any]]
    if model in IMAGES:
        clients = {str(c): (rng.random((3, 3, 32, 32), dtype=np.float32), np.arange(3) % 2) for c in range(3)}
    elif model in TEXTS:
        clients = {str(c): (rng.integers(0, 9, (4, 6)), rng.integers(0, 9, (4, 6))) for c in range(3)}
    elif model == "bilstm":
        clients = {str(c): (rng.integers(0, 9, (4, 6)), np.arange(4) % 3) for c in range(3)}
    else:
        clients = make_clients([5, 3, 6, 4], prefix="")
    return raysim.FederatedDataset.from_clients(train=clients, test=clients)


def carry(table: Mapping[str, Any], station: Station) -> Outcome:
    """Validate a table, and carry the experiment on if it is accepted.

    Raises:
        Exception: any but raysim's: a fault.
        AssertionError: an error whose text is not a sentence, or an experiment that its own record does not give back.
    """
    try:
        experiment = raysim.Experiment.model_validate(table)
        _recorded(experiment)
        if experiment.tuning is not None:
            section_of(experiment)
        if station != "validated":
            _planned(experiment, station)
    except RaysimError as error:
        check_said(str(error))
        return "refused"
    return "accepted"


def check_said(text: str) -> None:
    """Check that an error can be read in a terminal."""
    assert text.strip(), "an empty message"
    assert len(text) <= LONGEST, f"a message of {len(text)} characters: {text[:200]}"
    text.encode("utf-8")
    assert not {"\0", "\x1b"} & set(text), f"control characters: {text!r}"


def _recorded(experiment: raysim.Experiment) -> None:
    again = raysim.Experiment.model_validate(json.loads(experiment.to_json()))
    assert again == experiment, "its record gives another experiment"
    assert again.fingerprint("") == experiment.fingerprint("")
    json.dumps(experiment.said(), allow_nan=False)
    list(zip(range(3), trials_of(experiment), strict=False))


def _planned(experiment: raysim.Experiment, station: Station) -> None:
    model = "" if experiment.model is None else experiment.model.name
    client = experiment.client.model_copy(update={"max_local_steps": 2})
    short = experiment.model_copy(
        update={
            "data": None,
            "rounds": min(experiment.rounds, 2),
            "client": client,
            "trials": type(experiment.trials)(),
            "engine": experiment.engine.model_copy(update={"workers": 0}),
        }
    )
    if station == "planned":
        plan = resolve(experiment.model_copy(update={"data": None}), dataset=dataset(model))
        assert plan.fingerprint
        cohorts = plan.cohorts()
        drawn = cohorts.sample(cohorts.init(), 0)
        plan.chunks(np.unique(drawn), 0)
        return
    for _ in raysim.rounds(short, dataset=dataset(model)):
        pass


def carry_changes(base: Mapping[str, Any], changes: list[str], station: Station) -> Outcome:
    """Carry `--set` texts, on an experiment's tables."""
    try:
        table = overrides.apply(base, changes, ())
    except RaysimError as error:
        check_said(str(error))
        return "refused"
    return carry(table, station)


def carry_sweep(base: Mapping[str, Any], texts: list[str]) -> Outcome:
    """Carry `--sweep` texts."""
    try:
        for point in sweep.points(raysim.Experiment.model_validate(base), sweep.parse(texts)):
            _recorded(point.experiment)
            assert len(point.folder.encode()) < 256, f"a folder's name of {len(point.folder)} characters"
            assert not {"/", "\0"} & set(point.folder)
    except RaysimError as error:
        check_said(str(error))
        return "refused"
    return "accepted"
