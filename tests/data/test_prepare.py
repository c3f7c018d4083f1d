"""prepare: from a section to a dataset, and describe: from a dataset to text."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from pydantic import TypeAdapter, ValidationError

from raysim.data import FederatedDataset
from raysim.data.describe import describe, summary
from raysim.data.prepare import prepare
from raysim.data.section import Data, Digits, Synthetic
from raysim.data.sources import digits
from raysim.errors import DataError


def all_rows(data: FederatedDataset, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    split = data.split(name)
    pairs = [split.client(position) for position in range(len(split))]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def test_digits_are_all_there_once() -> None:
    data = prepare(Digits(clients=10, holdout=0.2), seed=0)
    assert (data.x.shape, data.x.dtype, data.x.scale, data.num_classes) == ((1, 8, 8), "uint8", 1 / 16, 10)
    assert (len(data.train), len(data.split("validation")), len(data.split("test"))) == (8, 2, 10)
    x = np.concatenate([all_rows(data, name)[0] for name in data.splits])
    expected = digits.load_digits(0)
    both = np.concatenate([expected.train_x, expected.test_x])
    assert sorted(row.tobytes() for row in x) == sorted(row.tobytes() for row in both)
    assert len(x) == 1797
    assert x.max() == 16


def test_a_fifth_of_each_digit_is_for_test() -> None:
    labels = np.concatenate([all_rows(prepare(Digits(clients=3), 0), name)[1] for name in ("train", "test")])
    per_class = np.bincount(labels)
    tested = np.bincount(all_rows(prepare(Digits(clients=3), 0), "test")[1])
    assert tested.tolist() == ((per_class + 2) // 5).tolist()


def test_the_sections_seed_comes_before_the_experiments(monkeypatch: pytest.MonkeyPatch) -> None:
    own = prepare(Digits(clients=5, seed=7), seed=0)
    assert own.fingerprint == prepare(Digits(clients=5), seed=7).fingerprint
    assert own.fingerprint != prepare(Digits(clients=5), seed=0).fingerprint


def test_the_second_time_nothing_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(Digits(clients=5), seed=0)

    def never(seed: int) -> None:
        raise AssertionError("loaded again")

    monkeypatch.setattr("raysim.data.sources.digits.load_digits", never)
    assert prepare(Digits(clients=5), seed=0).fingerprint == first.fingerprint
    with pytest.raises(DataError, match="loaded again"):
        prepare(Digits(clients=6), seed=0)


def test_a_section_is_chosen_by_name() -> None:
    adapter: TypeAdapter[object] = TypeAdapter(Data)
    section = adapter.validate_python(
        {"name": "digits", "clients": 4, "partition": {"name": "shuffled", "sizes_of": {"name": "shards"}}}
    )
    assert isinstance(section, Digits)
    assert adapter.validate_json(section.model_dump_json()) == section
    with pytest.raises(ValidationError, match="'digits', 'synthetic', 'quadratic', 'mnist', 'fashion_mnist', 'emnist'"):
        adapter.validate_python({"name": "digit", "clients": 4})
    with pytest.raises(ValidationError, match="root"):
        adapter.validate_python({"name": "digits", "clients": 4, "root": "somewhere"})


def test_a_description_counts_clients_examples_and_labels() -> None:
    x = np.zeros((4, 2), np.float32)
    data = FederatedDataset.from_clients(
        {"a": (x, [0, 1, 1, 1]), "b": (x[:1], [0]), "c": (x[:2], [1, 1])}, test={"a": (x[:0], np.array([], int))}
    )
    assert summary(data).splitlines()[2:] == [
        "task         classification, 2 classes",
        "train        clients 3, examples 7, sizes 1 to 4",
        "test         clients 1, examples 0, sizes 0",
    ]
    assert repr(data) == f"FederatedDataset\n{summary(data)}"
    text = describe(data)
    assert "x            float32[2]" in text
    assert "classification, 2 classes" in text
    assert f"fingerprint  {data.fingerprint}" in text
    assert "clients   3" in text
    assert "examples  7" in text
    assert "sizes     min 1, median 2, max 4" in text
    two = FederatedDataset.from_clients({k: (np.zeros((k, 1)), np.zeros(k)) for k in (1, 2)})
    assert "sizes     min 1, median 1.5, max 2" in describe(two)
    assert "0  2   28.6 %" in text
    assert "1  5   71.4 %" in text
    assert "examples  0" in text


def test_a_description_of_many_clients_is_of_a_sample_and_says_so() -> None:
    text = describe(prepare(Synthetic(clients=10**9, sizes=10), seed=0))
    assert "clients   1,000,000,000" in text
    assert "examples  900,000 (of 100,000 clients)" in text
    assert "labels (of 1,000 clients)" in text
    assert "train        clients 1,000,000,000, examples 900,000, sizes 9 (of 100,000 clients)" in summary(
        prepare(Synthetic(clients=10**9, sizes=10), seed=0)
    )


def test_a_regression_has_no_labels_to_count() -> None:
    text = describe(FederatedDataset.from_clients({"a": (np.zeros((2, 1)), np.array([0.5, 1.5]))}))
    assert "task         regression" in text
    assert "labels" not in text
