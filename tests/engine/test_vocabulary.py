"""A model of texts knows as many words as the data number, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysim
from raysim.engine.plan.resolve import resolve
from raysim.run_folder.experiment_record import stored_passed

Make = Callable[..., raysim.Experiment]

ROW = '"{label}","Oil, up","A barrel costs more"\n'


@pytest.fixture
def news(tmp_path: Path) -> dict[str, Any]:
    """A section of data whose words have numbers below 52."""
    for split in ("train.csv", "test.csv"):
        (tmp_path / split).write_text("".join(ROW.format(label=label) for label in (1, 2, 3, 4)), encoding="utf-8")
    tokens = {"name": "words", "vocabulary": 50, "length": 4}
    return {"name": "ag_news", "clients": 2, "root": str(tmp_path), "tokens": tokens}


def embedding(experiment: raysim.Experiment) -> tuple[int, ...]:
    layout = resolve(experiment).model.params
    return tuple(layout.shapes[layout.names.index("embedding.weight")])


SMALL = {"name": "bilstm", "embedding": 3, "hidden": 2}
ONE = {"size": 1}


@pytest.mark.parametrize(("given", "rows"), [({}, 52), ({"vocabulary": 52}, 52), ({"vocabulary": 60}, 60)])
def test_it_follows_from_the_tokens_unless_it_is_given(
    given: dict[str, int], rows: int, news: dict[str, Any], experiment: Make
) -> None:
    assert embedding(experiment(cohort=ONE, data=news, model={**SMALL, **given})) == (rows, 3)


def test_fewer_words_than_the_tokens_have_are_refused_with_both_keys(news: dict[str, Any], experiment: Make) -> None:
    problem = r"model.vocabulary >= data.tokens.vocabulary \+ 2 = 52 must hold, .* but got 51: leave it out"
    with pytest.raises(raysim.ExperimentError, match=problem):
        resolve(experiment(cohort=ONE, data=news, model={**SMALL, "vocabulary": 51}))


def test_of_data_from_a_script_nothing_is_known(news: dict[str, Any], experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients({"a": (np.array([[1, 2], [3, 0]]), [0, 1])})
    with pytest.raises(raysim.ModelError, match=r"model.vocabulary = 'auto'"):
        resolve(experiment(cohort=ONE, data=news, model=SMALL), dataset=data)
    assert (
        resolve(experiment(cohort=ONE, data=news, model={**SMALL, "vocabulary": 4}), dataset=data).choice.trainer
        == "interpreted"
    )


def test_runs_that_share_their_data_know_its_words_too(news: dict[str, Any], experiment: Make, tmp_path: Path) -> None:
    """What a sweep or a study opens once for all runs is that of the section, and was not passed by a script."""
    given = experiment(cohort=ONE, data=news, model=SMALL, rounds=1, engine={"workers": 0})
    swept = raysim.run_sweep(given, {"client.optimizer.lr": [0.1, 0.2]}, path=tmp_path / "swept", progress=False)
    alone = raysim.run(given.changed(["client.optimizer.lr=0.1"]), path=tmp_path / "alone", progress=False)
    assert swept.points[0].rounds["loss"].equals(alone.rounds["loss"])
    assert stored_passed(swept.points[0].path) == stored_passed(alone.path)
