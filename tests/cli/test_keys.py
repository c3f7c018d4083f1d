"""`raysim keys` says of each key what the schema says."""

from __future__ import annotations

import json

import jsonschema
import pytest

from manual import configuration
from raysim.cli.keys import _listed
from raysim.config.section import Section
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
    assert "client.optimizer.lr [of adam, adamw]: a number in [0, 1e6]; default 0.001\n" in text
    assert "client.optimizer.lr [of sgd, own]: a number in [0, 1e6]; default 0.1\n" in text


def test_a_key_that_all_choices_have_alike_is_told_of_once(raysim: Raysim) -> None:
    text = said(raysim, "keys", "model.lora")
    assert text.count("model.lora") == 1
    assert text.startswith("model.lora [of linear, mlp, ")
    assert text.count("\n    r: ") == 1


def test_the_name_of_a_choice_shows_this_choice_alone(raysim: Raysim) -> None:
    text = said(raysim, "keys", "client.correction.prox")
    assert text.startswith('name = "prox": FedProx.\n    mu: a number in [0, 1e6]; must be given\n')
    assert text.count("name = ") == 1
    whole = said(raysim, "keys", "client.correction")
    assert text in whole
    assert said(raysim, "keys", "client.correction.prox.mu").startswith("client.correction.prox.mu: a number")


@pytest.mark.parametrize("table", ["client.optimizer", "cohort.sampler", "data", "client.correction"])
def test_the_key_that_holds_the_name_shows_the_table(raysim: Raysim, table: str) -> None:
    assert said(raysim, "keys", f"{table}.name") == said(raysim, "keys", table)
    assert said(raysim, "keys", f"{table}.name", "--json") == said(raysim, "keys", table, "--json")


def test_a_key_without_a_meaning_has_one_line() -> None:
    class Bare(Section):
        share: float = 0.5

    assert list(_listed(keys.keys(Bare, configuration.ELSEWHERE))) == ["share: a number; default 0.5"]


def test_keys_of_the_tuning_are_explained_too(raysim: Raysim) -> None:
    assert "the number of rounds until a figure reaches a target" in said(raysim, "keys", "tuning.objective")


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("client.optimiser", r"client has no key 'optimiser' \(did you mean client.optimizer\?\)"),
        ("rouns", r"an experiment has no key 'rouns' \(did you mean rounds\?\)"),
        ("cohort.zzz", r"cohort has no key 'zzz': there are .*size"),
        ("rounds.zzz", r"rounds has no key 'zzz'\."),
        ("rounds.size", r"rounds has no key 'size': there is data\.size, cohort\.size\."),
        ("lr", r"an experiment has no key 'lr': there is client\.optimizer\.lr, .* and \d more\."),
        ("learning_rate", r"an experiment has no key 'learning_rate': there is client\.optimizer\.lr, "),
        ("prox", r"an experiment has no key 'prox': there is client\.correction\.prox\."),
        ("client.correction.proxx", r"correction has no key 'proxx' \(did you mean client\.correction\.prox\?\)"),
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
