"""Pretrained vectors of words: each word of the data has its own, and training leaves them as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import raysim
from raysim.data.sources import ag_news
from raysim.data.sources.published import SourceFile
from raysim.data.tokens import words
from raysim.engine.plan.resolve import resolve
from tests.support import tiny

Make = Callable[..., raysim.Experiment]


@pytest.fixture
def sections(tmp_path: Path) -> dict[str, Any]:
    """Sections of data and model; words that the vectors do not have among the data's, and the other way round."""
    tiny.write(tmp_path, "ag_news")
    vectors = tiny.glove(tmp_path / "glove.txt", width=3)
    data = {
        "name": "ag_news",
        "clients": 2,
        "root": str(tmp_path / "ag_news_csv"),
        "tokens": {"name": "words", "vocabulary": 50, "length": 4},
    }
    model = {"name": "bilstm", "embedding": 3, "hidden": 2, "vectors": str(vectors), "pooling": "last", "dropout": 0.2}
    return {"cohort": {"size": 2}, "data": data, "model": model, "rounds": 2, "engine": {"workers": 0}}


def test_a_words_row_is_its_vector(sections: dict[str, Any], experiment: Make) -> None:
    plan = resolve(experiment(**sections))
    rows = plan.model.module().get_parameter("embedding.weight")
    assert rows.shape == (52, 3)
    texts, _ = ag_news.read(SourceFile(Path(sections["data"]["root"]) / "train.csv"))
    numbers = words.most_frequent(texts, 50)
    by_word = {word: [float(number) for number in rest] for word, *rest in map(str.split, lines(sections))}
    assert {"oil", "again"} <= numbers.keys() & by_word.keys()
    for word, number in numbers.items():
        torch.testing.assert_close(rows[number], torch.tensor(by_word.get(word, [0.0] * 3)))


def lines(sections: dict[str, Any]) -> list[str]:
    return Path(sections["model"]["vectors"]).read_text().splitlines()


def test_vectors_are_not_trained_nor_sent(sections: dict[str, Any], experiment: Make, tmp_path: Path) -> None:
    result = raysim.run(experiment(**sections), path=tmp_path / "run")
    assert {"lstm.weight_ih_l0", "fc.weight"} <= result.params.keys()
    assert "embedding.weight" not in result.params


def test_frozen_vectors_of_a_file_are_not_said_to_be_drawn(
    sections: dict[str, Any], experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    for freeze, said in ([], False), (["embedding*"], False), (["embedding*", "fc.*"], True), (["lstm.*"], True):
        caplog.clear()
        raysim.rounds(experiment(**{**sections, "model": {**sections["model"], "freeze": freeze}}))
        assert ("freezes values that the seed has drawn" in caplog.text) is said
    del sections["model"]["vectors"]
    raysim.rounds(experiment(**{**sections, "model": {**sections["model"], "freeze": ["embedding*"]}}))
    assert "model.freeze freezes values that the seed has drawn" in caplog.text


def test_other_vectors_are_another_experiment(sections: dict[str, Any], experiment: Make) -> None:
    before = resolve(experiment(**sections)).fingerprint
    assert before == resolve(experiment(**sections)).fingerprint
    tiny_file = Path(sections["model"]["vectors"])
    tiny_file.write_text(tiny_file.read_text().replace("oil 0.25", "oil 0.75"))
    assert before != resolve(experiment(**sections)).fingerprint


def test_words_that_are_not_known_have_no_vectors(sections: dict[str, Any], experiment: Make) -> None:
    data = raysim.FederatedDataset.from_clients({"a": (np.array([[1, 2], [3, 0]]), [0, 1])})
    given = {**sections, "cohort": {"size": 1}, "model": {**sections["model"], "vocabulary": 9}}
    with pytest.raises(raysim.ExperimentError, match=r"model\.vectors needs data whose words raysim numbers: ag_news"):
        resolve(experiment(**given), dataset=data)
