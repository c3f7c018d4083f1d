"""A model that is scored on data that were prepared in another way says so: its scores mean little there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import raysim
from raysim.api import class_means, label_order, other_examples
from raysim.api.class_means import ClassMeans
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
    kind, raw = other_examples.remarks(experiment(), scaled, stored)
    assert raw.startswith("x of the data has mean 1")
    # Such a model ends with "mat1 and mat2 must have the same dtype".
    assert kind == (
        "x of the data are whole numbers for the model, and those of the run's own are floating-point numbers: most "
        "models take one kind"
    )


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


def shown(own: Data, other: Data, experiment: Make) -> list[str]:
    return list(other_examples.remarks(experiment(), own, other))


def drawn(seed: int, shape: tuple[int, ...], classes: int = 3, clients: int = 6) -> tuple[np.ndarray, np.ndarray]:
    """Examples of classes with means of their own, and a client for each 60 of them."""
    means = np.random.default_rng(0).normal(size=(classes, *shape))
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, size=60 * clients)
    return (means[y] + rng.normal(size=(len(y), *shape))).astype(np.float32), y


def dealt(x: np.ndarray, y: np.ndarray) -> Data:
    parts = zip(np.split(x, len(x) // 60), np.split(y, len(y) // 60), strict=True)
    return Data.from_clients(train={f"c{k}": pair for k, pair in enumerate(parts)})


IMAGES: dict[str, tuple[tuple[int, ...], Callable[[np.ndarray], np.ndarray], str]] = {
    "channels first": ((3, 6, 6), lambda x: x[:, ::-1], "axis 0 in the order 2, 1, 0"),
    "channels last": ((6, 6, 3), lambda x: x[..., [1, 2, 0]], "axis 2 in the order 2, 0, 1"),
    "mirrored": ((6, 7), lambda x: x[:, :, ::-1], "axis 1 mirrored"),
    "turned": ((1, 6, 6), lambda x: x.transpose(0, 1, 3, 2), "axes 1 and 2 exchanged"),
    "turned by 90 degrees": ((6, 6), lambda x: np.rot90(x, axes=(1, 2)), "axes 0 and 1 exchanged and axis 1 mirrored"),
}


@pytest.mark.parametrize("which", IMAGES)
def test_another_order_of_an_image_is_said(which: str, experiment: Make) -> None:
    """The order is the one that makes the other data those of the run; brighter images in theirs have none."""
    shape, change, order = IMAGES[which]
    (x, y), (its_x, its_y) = drawn(1, shape), drawn(2, shape)
    own = dealt(x, y)
    (found,) = shown(own, dealt(change(its_x), its_y), experiment)
    assert found == (
        f"x of the data looks like that of the run's own with {order}: scores mean little if they were prepared in "
        f"another order"
    )
    assert shown(own, dealt(its_x, its_y), experiment) == []
    assert shown(own, dealt(1.5 * its_x + 0.3, its_y), experiment) == []
    other_kind = np.random.default_rng(5).normal(size=shape).astype(np.float32)
    assert shown(own, dealt(its_x + other_kind, its_y), experiment) == []


@pytest.mark.parametrize("classes", [2, 3, 20])
@pytest.mark.parametrize("order", [[0, 4, 2, 3, 1, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0]])
def test_another_order_of_features_is_said(classes: int, order: list[int], experiment: Make) -> None:
    (x, y), (its_x, its_y) = drawn(1, (8,), classes, 30), drawn(2, (8,), classes, 30)
    own, own_values = dealt(x, y), dealt(x, y.astype(np.float32))
    (found,) = shown(own, dealt(its_x[:, order], its_y), experiment)
    moved = [f"{at} like {like}" for at, like in enumerate(order) if at != like]
    listed = ", ".join(moved[:3]) + ", ..." * (len(moved) > 3)
    assert found.startswith(f"features of x of the data look like others of the run's own: {listed}: scores mean")
    assert shown(own, dealt(its_x, its_y), experiment) == []
    assert shown(own, dealt(its_x * 1.4 - 0.2, its_y), experiment) == []
    assert shown(own_values, dealt(its_x, its_y.astype(np.float32)), experiment) == []


def test_nothing_is_said_of_orders_that_chance_may_make(experiment: Make) -> None:
    """Features without meaning, few examples, and values that are not finite or do not differ."""
    rng = np.random.default_rng(0)
    for shape in ((40,), (3, 5, 5)):
        x, y = rng.normal(size=(2, 360, *shape)).astype(np.float32), rng.integers(0, 3, (2, 360))
        assert shown(dealt(x[0], y[0]), dealt(x[1], y[1]), experiment) == []
        x[1, 7] = np.nan
        assert shown(dealt(x[0], y[0]), dealt(x[1], y[1]), experiment) == []
        assert shown(dealt(np.ones_like(x[0]), y[0]), dealt(np.ones_like(x[1]), y[0] * 0), experiment) == []
        few = Data.from_clients(train={"a": (x[0, :4], y[0, :4])})
        assert shown(dealt(x[0], y[0]), few, experiment) == []


def texts(names: np.ndarray, seed: int, length: int = 20) -> Data:
    """Rows of numbers by a law of a few frequent ones and many others, filled up with 0."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, len(names) + 1)
    rows = names[rng.choice(len(names), (80, length), p=shares / shares.sum())]
    rows[np.arange(length) >= rng.integers(length // 2, length + 1, (80, 1))] = 0
    return Data.from_clients(
        train={f"c{k}": (part, np.zeros(20, np.int64)) for k, part in enumerate(np.split(rows, 4))}
    )


def test_numbers_of_another_tokeniser_are_said(experiment: Make) -> None:
    names = 1 + np.random.default_rng(1).permutation(1_000)
    own = texts(names, 1)
    assert shown(own, texts(names, 2), experiment) == []
    (found,) = shown(own, texts(1 + np.random.default_rng(2).permutation(1_000), 2), experiment)
    assert found.startswith("x of the data are other numbers than those of the run's own: of the most frequent ones")
    few = Data.from_clients(train={"a": (np.full((2, 20), 5), np.arange(2))})
    assert shown(own, few, experiment) == []


def renumbered(dataset: Data, numbers: np.ndarray) -> Data:
    """The dataset with other numbers for the same labels."""
    clients = {dataset.train.id_of(k): dataset.train.client(k) for k in range(len(dataset.train))}
    return Data.from_clients(train={name: (x, numbers[y]) for name, (x, y) in clients.items()})


@pytest.mark.parametrize(
    ("shape", "numbers", "listed"),
    [
        ((6, 6), [1, 0], "0 like 1, 1 like 0"),
        ((20,), [0, 3, 1, 2], "1 like 2, 2 like 3, 3 like 1"),
        ((3, 6, 6), [4, 3, 2, 1, 0], "0 like 4, 1 like 3, 3 like 1, ..."),
    ],
)
def test_another_order_of_labels_is_said(
    shape: tuple[int, ...], numbers: list[int], listed: str, experiment: Make
) -> None:
    own, its = (dealt(*drawn(seed, shape, len(numbers))) for seed in (1, 2))
    assert shown(own, its, experiment) == []
    (found,) = shown(own, renumbered(its, np.array(numbers)), experiment)
    assert found == (
        f"classes of the data look like others of the run's own: {listed}: scores mean little if classes are numbered "
        f"in another order"
    )


def classified(seed: int, number: int = 360, classes: int = 4, words: int = 3_000, length: int = 30) -> Data:
    """Texts of classes, each with some words of its own among words of all, filled up with 0."""
    rng = np.random.default_rng(seed)
    own = 1 + np.random.default_rng(0).permutation(words).reshape(classes, -1)[:, :40]
    y = rng.integers(0, classes, number)
    common = 1 + rng.zipf(1.3, (number, length)) % words
    x = np.where(rng.random((number, length)) < 0.2, own[y[:, None], rng.integers(0, 40, (number, length))], common)
    x[np.arange(length) >= rng.integers(length // 2, length + 1, (number, 1))] = 0
    return dealt(x, y)


@pytest.mark.parametrize(("numbers", "listed"), [([1, 0, 2, 3], "0 like 1, 1 like 0"), ([3, 2, 1, 0], "0 like 3, ")])
def test_another_order_of_the_labels_of_texts_is_said(numbers: list[int], listed: str, experiment: Make) -> None:
    own, its = classified(1), classified(2)
    assert shown(own, its, experiment) == []
    (found,) = shown(own, renumbered(its, np.array(numbers)), experiment)
    assert found.startswith(f"classes of the data look like others of the run's own: {listed}")


def test_nothing_is_said_of_labels_of_texts_that_tell_nothing(experiment: Make) -> None:
    own, its = classified(1), classified(2)
    at_random = np.random.default_rng(3).integers(0, 4, 360)
    clients = {its.train.id_of(k): its.train.client(k) for k in range(len(its.train))}
    mixed = {name: (x, at_random[60 * k : 60 * k + 60]) for k, (name, (x, _)) in enumerate(clients.items())}
    assert shown(own, Data.from_clients(train=mixed), experiment) == []
    few = {name: (x[:2], y[:2]) for name, (x, y) in clients.items()}
    assert shown(own, Data.from_clients(train=few), experiment) == []


@pytest.mark.parametrize(
    ("kept", "moved", "bounds", "is_said"),
    [
        (20.0, 1.0, label_order.OF_VALUES, True),
        (9.0, 0.1, label_order.OF_VALUES, False),
        (20.0, 3.0, label_order.OF_VALUES, False),
        (400.0, 11.0, label_order.OF_VALUES, False),
        (5.0, 1.0, label_order.OF_NAMES, True),
        (1.9, 0.1, label_order.OF_NAMES, False),
        (5.0, 1.5, label_order.OF_NAMES, False),
        (20.0, 2.1, label_order.OF_NAMES, False),
    ],
)
def test_labels_are_in_another_order_where_data_fit_well_there_and_badly_as_they_come(
    kept: float, moved: float, bounds: label_order.Bounds, is_said: bool
) -> None:
    """Of two classes with one feature each is `kept` away from itself, and `moved` from the other one."""
    width = np.sqrt(kept) + np.sqrt(moved)
    mine = ClassMeans(np.array([[0.0], [width]]), np.full((2, 1), 0.5), np.array([0, 1]))
    its = ClassMeans(np.array([[np.sqrt(kept)], [np.sqrt(moved)]]), np.full((2, 1), 0.5), np.array([0, 1]))
    assert label_order._moved(mine, its, bounds) == ([(0, 1), (1, 0)] if is_said else [])


NAMES, MOVED = [1, 2, 3, 4], [4, 2, 3, 1]


def test_another_order_of_a_small_alphabet_is_said(experiment: Make) -> None:
    """All numbers are there in both, so only their frequencies tell."""
    shares = np.array([0.4, 0.3, 0.2, 0.1])
    own, its, moved = (texts_of(np.array(names), shares, seed) for names, seed in ((NAMES, 1), (NAMES, 2), (MOVED, 3)))
    assert shown(own, its, experiment) == []
    assert shown(own, moved, experiment) == [
        "numbers in x of the data are as frequent as others of the run's own: 1 like 4, 4 like 1. Scores mean little "
        "if they are names of the same things in another order"
    ]


def texts_of(names: np.ndarray, shares: np.ndarray, seed: int) -> Data:
    x = np.random.default_rng(seed).choice(names, (80, 40), p=shares)
    return Data.from_clients(train={f"c{k}": (part, np.zeros(20, np.int64)) for k, part in enumerate(np.split(x, 4))})


def test_names_are_counted_example_by_example_and_others_are_not() -> None:
    x = np.array([[3.0, 5.0, 3.0], [9.0, 4.0, 5.0]])
    assert class_means._counted(x, np.array([5.0, 3.0, 9.0])).tolist() == [[1.0, 2.0, 0.0], [1.0, 0.0, 1.0]]


def test_means_of_names_take_more_examples_of_a_class_than_means_of_values() -> None:
    few = dealt(np.arange(120 * 5).reshape(120, 5) % 7, np.arange(120) % 5)
    assert class_means.class_means(few, few, 10) is not None
    assert class_means.class_means(few, few, 10, of_names=True) is None
