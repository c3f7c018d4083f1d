"""A model that is scored on data that were prepared in another way says so: its scores mean little there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim.api import other_examples
from tests.support.small_data import make_clients

Make = Callable[..., raysim.Experiment]
Data = raysim.FederatedDataset


def changed(change: Callable[[np.ndarray], np.ndarray], labels: Callable[[np.ndarray], np.ndarray] = np.copy) -> Data:
    """The test's clients as others, whose x and y are changed."""
    clients = make_clients([25] * 4, seed=1, prefix="t")
    return Data.from_clients(
        train={name: (change(np.asarray(x)), labels(np.asarray(y))) for name, (x, y) in clients.items()}
    )


def said(tmp_path: Path, dataset: Data, other: Data, experiment: Make, caplog: pytest.LogCaptureFixture) -> list[str]:
    raysim.run(experiment(), dataset=dataset, path=tmp_path / "run")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "raysim"):
        raysim.evaluate(tmp_path / "run", dataset=dataset, data=other, split="train")
    return caplog.messages


@pytest.mark.parametrize("change", [lambda x: x / 4, lambda x: 3 * x, lambda x: x + 5, lambda x: 0 * x])
def test_other_scaling_is_said(
    change: Callable[[np.ndarray], np.ndarray],
    tmp_path: Path,
    dataset: Data,
    experiment: Make,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (message,) = said(tmp_path, dataset, changed(change), experiment, caplog)
    assert message.endswith("scores mean little if it was scaled in another way")


def test_data_that_are_scaled_alike_have_no_warning(
    tmp_path: Path, dataset: Data, experiment: Make, caplog: pytest.LogCaptureFixture
) -> None:
    assert said(tmp_path, dataset, changed(np.copy), experiment, caplog) == []
    assert said(tmp_path / "same", dataset, dataset, experiment, caplog) == []


def test_pixels_are_compared_as_the_model_sees_them(experiment: Make) -> None:
    """Bytes with a factor, and the same values as numbers, are alike; bytes without one may be names."""
    pixels = np.random.default_rng(0).integers(0, 256, (40, 5), dtype=np.uint8)
    y = np.arange(40) % 3
    numbers = Data.from_clients(train={"a": ((pixels / 255).astype(np.float32), y)})
    stored = Data.from_clients(train={"a": (pixels, y)})
    scaled = replace(stored, x=replace(stored.x, scale=1 / 255), fingerprint="scaled")
    assert list(other_examples.remarks(experiment(), numbers, scaled)) == []
    (raw,) = other_examples.remarks(experiment(), scaled, stored)
    assert raw.startswith("x of the data has mean 1")


def test_numbers_of_words_are_those_of_one_vocabulary(tmp_path: Path) -> None:
    news = {"name": "newsgroups", "root": str(tmp_path), "clients": 2}
    exp = raysim.Experiment(model={"name": "linear"}, cohort={"size": 1}, data=news)
    one, other = (Data.from_clients(train={"a": (np.full((3, 4), k), np.arange(3))}) for k in (1, 9))
    (message,) = other_examples.remarks(exp, one, other)
    assert message.startswith("x are numbers of words, in the run's own vocabulary")
    own = exp.changed({"data": {"name": "digits", "clients": 2}})
    assert list(other_examples.remarks(own, one, other)) == []


def test_other_labels_that_are_left_out_are_said(experiment: Make) -> None:
    texts = Data.from_clients(train={"a": (np.ones((3, 2), np.int64), np.ones((3, 2), np.int64))})
    marked = replace(texts, y=replace(texts.y, padding=0, uncounted=(1,)), fingerprint="other")
    assert list(other_examples.remarks(experiment(), marked, replace(texts, fingerprint="third"))) == [
        "the data leave out other labels than the run's: none, where the run leaves out 0, 1"
    ]
