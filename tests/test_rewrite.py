"""Rewriting an experiment file keeps what people wrote beside its values."""

from __future__ import annotations

import tomllib

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
