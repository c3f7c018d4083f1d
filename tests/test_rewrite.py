"""Rewriting an experiment file keeps what people wrote beside its values."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from raysim import ExperimentError
from raysim.config.overrides import rewritten


def test_comments_and_order_stay() -> None:
    text = '# mine\nname = "x" # why\n[engine]\nworkers = 0\n'
    got = rewritten(text, {"engine.trainer": "stacked", "engine.chunk_size": 16, "name": "y"})
    assert got.startswith('# mine\nname = "y" # why\n')
    assert tomllib.loads(got) == {"name": "y", "engine": {"workers": 0, "trainer": "stacked", "chunk_size": 16}}


def test_tables_that_are_not_there_are_added() -> None:
    got = rewritten("[cohort]\nsize = 3\n", {"client.optimizer.lr": 0.5, "cohort.size": 4})
    assert tomllib.loads(got) == {"cohort": {"size": 4}, "client": {"optimizer": {"lr": 0.5}}}


def test_inline_tables_stay_inline() -> None:
    text = 'client.optimizer = { name = "sgd", lr = 0.1 } # tuned\n'
    assert rewritten(text, {"client.optimizer.lr": 0.5}) == 'client.optimizer = { name = "sgd", lr = 0.5 } # tuned\n'


def test_keys_and_tables_can_go() -> None:
    text = '# mine\nname = "x"\n[tuning]\ntrials = 3\n[tuning.space]\na.b = 1\n[cohort] # who\nsize = 3\nseed = 4\n'
    got = rewritten(text, {"name": "y"}, ["tuning", "cohort.seed", "nothing.here"])
    assert got == '# mine\nname = "y"\n[cohort] # who\nsize = 3\n'


@pytest.mark.parametrize(
    ("text", "values", "meant"),
    [
        (
            'data.name = "digits"\ndata.clients = 5\nrounds = 2\n',
            {"data.partition.name": "iid"},
            {"data": {"name": "digits", "clients": 5, "partition": {"name": "iid"}}, "rounds": 2},
        ),
        (
            'client.optimizer.name = "sgd"\nclient.epochs = 5\n[server]\nlr = 1\n',
            {"client.optimizer": {"name": "adam", "lr": 0.5}},
            {"client": {"optimizer": {"name": "adam", "lr": 0.5}, "epochs": 5}, "server": {"lr": 1}},
        ),
        ("[a]\nb.c.d = [1]\nb.c . e = 2\n", {"a.b.c.d": [{"f": 1}]}, {"a": {"b": {"c": {"d": [{"f": 1}], "e": 2}}}}),
        (
            'data = { name = "digits" } # mine\n',
            {"data.partition.name": "iid"},
            {"data": {"name": "digits", "partition": {"name": "iid"}}},
        ),
    ],
)
def test_lines_with_dotted_keys_stay_in_their_tables(text: str, values: dict[str, Any], meant: dict[str, Any]) -> None:
    got = rewritten(text, values)
    assert tomllib.loads(got) == meant
    assert ("# mine" in got) == ("# mine" in text)


def test_a_key_below_a_value_is_refused() -> None:
    with pytest.raises(ExperimentError, match=r"'?engine.trainer'? goes through '?engine'?, which is a value"):
        rewritten("engine = 3\n", {"engine.trainer": "stacked"})
    assert rewritten("engine = 3\n", {}, ["engine.trainer"]) == "engine = 3\n"
