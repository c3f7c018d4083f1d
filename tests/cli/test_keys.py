"""`raysim keys` says of each key what the schema says."""

from __future__ import annotations

import json

import jsonschema
import pytest

from manual import configuration
from raysim.errors import ExperimentError
from raysim.experiment import keys
from raysim.experiment.experiment import Experiment
from tests.support.command import Raysim


def said(raysim: Raysim, *arguments: str) -> str:
    assert raysim(*arguments) == 0
    return raysim.out


def test_all_keys_of_an_experiment_are_listed(raysim: Raysim) -> None:
    lines = said(raysim, "keys").splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == list(Experiment.model_fields)
    assert all(line.startswith("    ") and line.strip() for line in lines[1::2])


def test_a_table_shows_its_choices_with_their_keys(raysim: Raysim) -> None:
    text = said(raysim, "keys", "client.optimizer")
    assert text.startswith("client.optimizer: a table, by its name: sgd, adam, adamw, adagrad, own; default sgd\n")
    adam = text[text.index('name = "adam":') : text.index('name = "adamw":')]
    assert "    beta1: a number in [0, 1); default 0.9\n        Decay of the first moment.\n" in adam


def test_a_key_of_several_choices_is_told_of_each(raysim: Raysim) -> None:
    text = said(raysim, "keys", "client.optimizer.lr")
    assert "client.optimizer.lr [of adam]: a number in [0, 1e6]; default 0.001\n" in text
    assert "client.optimizer.lr [of sgd]: a number in [0, 1e6]; default 0.1\n" in text


def test_keys_of_the_tuning_are_explained_too(raysim: Raysim) -> None:
    assert "the number of rounds until a figure reaches a target" in said(raysim, "keys", "tuning.objective")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("client.optimiser", r"client has no key 'optimiser' \(did you mean client.optimizer\?\)"),
        ("rouns", r"an experiment has no key 'rouns' \(did you mean rounds\?\)"),
        ("cohort.zzz", r"cohort has no key 'zzz': there are .*size"),
        ("rounds.size", r"rounds has no key 'size'\."),
    ],
)
def test_an_unknown_key_is_an_error_that_names_the_nearest(key: str, message: str) -> None:
    with pytest.raises(ExperimentError, match=message):
        keys.find(key, configuration.ELSEWHERE)


def test_every_key_of_the_reference_is_found() -> None:
    paths = [(table, key) for table in configuration.described() for s in table.sections for key in s.model_fields]
    assert len(paths) > 200
    for table in configuration.described():
        for section in table.sections:
            for key in keys.keys(section, configuration.ELSEWHERE):
                found = keys.find(f"{table.path}.{key.name}", configuration.ELSEWHERE)
                assert any(owner is section for owner, _ in found)


def test_the_schema_accepts_a_file_and_refuses_an_unknown_key(raysim: Raysim) -> None:
    schema = json.loads(said(raysim, "keys", "--schema"))
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate({"cohort": {"size": 2}, "tuning": {"space": {}}}, schema)
    for wrong in ({"cohort": {"size": 2}, "round": 3}, {"cohort": {"size": 2}, "tuning": {"trial": 4}}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)
