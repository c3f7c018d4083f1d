"""Sources with clients of their own: who takes part, and their examples divided anew."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from raysim.data.field import Field
from raysim.data.populated import Populated, populate
from raysim.data.source import LABEL, ClientRows, Population
from raysim.errors import DataError, ExperimentError

SIZES = {"ann": 5, "bob": 1, "cyd": 3, "dan": 8}
TESTED = {"ann": 2, "bob": 1, "eve": 1}
Rows = dict[tuple[str, str], list[int]]


def population(y: Field = LABEL, validating: bool = False) -> Population:
    """Example i of all training examples is i, its label i % 2; test examples count from 100."""

    def split(name: str, sizes: dict[str, int], start: int) -> Iterator[ClientRows]:
        for client, size in sizes.items():
            x = np.arange(start, start + size)
            start += size
            labels = np.broadcast_to((x % 2).reshape(-1, *[1] * len(y.shape)), (size, *y.shape))
            # In two pieces, as large clients come.
            for part in (slice(0, 1), slice(1, None)):
                yield ClientRows(name, client, x[part], labels[part])

    def stream() -> Iterator[ClientRows]:
        yield from split("train", SIZES, 0)
        if validating:
            yield from split("validation", {"val": 2}, 50)
        yield from split("test", TESTED, 100)

    return Population({"name": "letters"}, Field((), "int64"), y, 2, lambda: list(SIZES), stream)


def made(seed: int = 0, source: Population | None = None, **keys: Any) -> Rows:
    rows: Rows = {}
    for part in populate(Populated.model_validate(keys), source or population(), seed):
        rows.setdefault((part.split, part.client), []).extend(part.x.tolist())
    return rows


def split(rows: Rows, name: str) -> dict[str, list[int]]:
    return {client: x for (which, client), x in rows.items() if which == name}


def test_natural_clients_are_those_of_the_source() -> None:
    rows = made()
    assert {client: len(x) for client, x in split(rows, "train").items()} == SIZES
    assert split(rows, "train")["cyd"] == [6, 7, 8]
    assert split(rows, "test") == {"ann": [100, 101], "bob": [102], "eve": [103]}


def test_few_examples_leave_a_client_out_of_every_split() -> None:
    rows = made(min_examples=3)
    assert set(split(rows, "train")) == {"ann", "cyd", "dan"}
    assert set(split(rows, "test")) == {"ann", "eve"}
    with pytest.raises(DataError, match="none of 4 has min_examples = 9 examples"):
        made(min_examples=9)


def test_the_first_examples_are_kept() -> None:
    assert split(made(max_examples=2), "train") == {"ann": [0, 1], "bob": [5], "cyd": [6, 7], "dan": [9, 10]}


def test_so_many_clients_are_drawn_by_the_seed() -> None:
    drawn = [tuple(split(made(seed, clients=2), "train")) for seed in range(20)]
    assert drawn == [tuple(split(made(seed, clients=2), "train")) for seed in range(20)]
    assert {len(ids) for ids in drawn} == {2}
    assert {client for ids in drawn for client in ids} == set(SIZES)
    assert made(clients=4) == made(clients=9) == made()


def test_clients_or_examples_are_held_out() -> None:
    rows = made(holdout=0.5)
    assert len(split(rows, "train")) == len(split(rows, "validation")) == 2
    assert sorted({**split(rows, "train"), **split(rows, "validation")}) == sorted(SIZES)
    rows = made(holdout_examples=0.25)
    assert {client: len(x) for client, x in split(rows, "validation").items()} == {
        "ann": 1,
        "bob": 0,
        "cyd": 1,
        "dan": 2,
    }
    for client, size in SIZES.items():
        assert len(split(rows, "train")[client]) + len(split(rows, "validation")[client]) == size


def test_a_source_with_validation_clients_needs_no_holdout() -> None:
    assert split(made(source=population(validating=True)), "validation") == {"val": [50, 51]}
    either: tuple[dict[str, Any], ...] = ({"holdout": 0.5}, {"holdout_examples": 0.5})
    for keys in either:
        with pytest.raises(ExperimentError, match="validation clients of its own"):
            made(source=population(validating=True), **keys)


def test_all_test_examples_can_be_one_clients() -> None:
    assert split(made(test_clients="pooled"), "test") == {"test": [100, 101, 102, 103]}
    iid = made(partition={"name": "iid"}, clients=2, test_clients="pooled")
    assert split(iid, "test") == {"test": [100, 101, 102, 103]}


@pytest.mark.parametrize("partition", ["iid", "shards", "quantity"])
def test_another_partition_divides_all_training_examples(partition: str) -> None:
    rows = made(partition={"name": partition}, clients=3)
    train = split(rows, "train")
    assert list(train) == ["0", "1", "2"]
    assert sorted(x for part in train.values() for x in part) == list(range(17))
    assert split(rows, "test") == split(made(), "test")


def test_test_examples_can_be_dealt_by_the_partition() -> None:
    rows = made(partition={"name": "shards"}, clients=2, test_clients="partition")
    tested = split(rows, "test")
    assert sorted(x for part in tested.values() for x in part) == [100, 101, 102, 103]
    for client, part in tested.items():
        assert {x % 2 for x in part} <= {x % 2 for x in split(rows, "train")[client]}


def test_the_sizes_of_the_sources_clients_without_their_skew() -> None:
    rows = made(partition={"name": "shuffled", "sizes_of": {"name": "natural"}})
    assert [len(x) for x in split(rows, "train").values()] == list(SIZES.values())


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_natural_clients_give_a_share_of_their_examples_to_all(share: float) -> None:
    alone = {client: set(x) for client, x in split(made(), "train").items()}
    kept = []
    for seed in range(40):
        rows = made(seed, mix=share)
        train = split(rows, "train")
        assert {client: len(x) for client, x in train.items()} == SIZES
        assert sorted(x for part in train.values() for x in part) == list(range(17))
        assert split(rows, "test") == split(made(), "test")
        kept.append(len(alone["dan"] & set(train["dan"])))
    # Of dan's 8 examples 8 (1 - share) stay; of the others come back as many as dan gives of what all give, of 17.
    given = {0.5: (4, 10), 1.0: (8, 17)}[share]  # floor(n / 2 + 1/2) of 5, 1, 3 and 8 are 3, 1, 2 and 4
    expected = 8 - given[0] + given[0] ** 2 / given[1]
    assert abs(np.mean(kept) - expected) < 0.7  # about four standard errors of 40 draws
    assert made(mix=0.0) == made()


def test_mixed_clients_are_chosen_cut_and_held_out_as_those_that_are_not() -> None:
    keys: dict[str, Any] = {"min_examples": 3, "max_examples": 4, "holdout": 0.34}
    plain, mixed = made(5, **keys), made(5, **keys, mix=1.0)
    assert {place: len(x) for place, x in mixed.items()} == {place: len(x) for place, x in plain.items()}
    examples = [sorted(x for (name, _), part in of.items() if name != "test" for x in part) for of in (plain, mixed)]
    assert examples[0] == examples[1]
    assert plain != mixed


def test_examples_without_a_label_can_be_mixed() -> None:
    assert len(split(made(source=population(Field((4,), "int64")), mix=0.5), "train")) == 4


def test_examples_without_a_single_label_are_not_divided_by_it() -> None:
    texts = population(Field((4,), "int64"))
    assert len(split(made(source=texts, partition={"name": "iid"}, clients=3), "train")) == 3
    with pytest.raises(ExperimentError, match=r"'shards' divides by label, but .* has 4 labels: choose iid, quantity"):
        made(source=texts, partition={"name": "shards"}, clients=3)


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ({"partition": {"name": "iid"}}, "partition 'iid' needs clients"),
        ({"test_clients": "partition"}, "natural clients keep their own"),
        ({"holdout": 0.1, "holdout_examples": 0.1}, "cannot both be set"),
        ({"partition": {"name": "shuffled", "sizes_of": {"name": "natural"}}, "clients": 3}, "remove clients"),
    ],
)
def test_keys_that_do_not_go_together(keys: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        Populated.model_validate(keys)


def test_what_leaves_nobody_to_divide_says_so() -> None:
    with pytest.raises(DataError, match="none of 4 has min_examples = 9 examples"):
        made(partition={"name": "iid"}, clients=2, min_examples=9)
    whole = population()
    trained = replace(whole, stream=lambda: (rows for rows in whole.stream() if rows.split == "train"))
    assert split(made(source=trained, partition={"name": "iid"}, clients=2), "test") == {}
    with pytest.raises(DataError, match=r"data\.test_clients = 'partition' deals the test examples, .* has none"):
        made(source=trained, partition={"name": "iid"}, clients=2, test_clients="partition")


def test_clients_that_are_left_out_do_not_empty_a_split_in_silence() -> None:
    """Who is held out does not depend on min_examples; of four clients, half have at least five examples."""
    met = set()
    for seed in range(12):
        try:
            rows = made(seed, holdout=0.5, min_examples=5)
        except DataError as error:
            met.add(str(error).rpartition(", but ")[2])
        else:
            assert [len(split(rows, name)) for name in ("train", "validation")] == [1, 1]
    assert met == {"2 of 2 and 0 of 2 are left", "0 of 2 and 2 of 2 are left"}


@pytest.mark.parametrize("split", ["test", "validation"])
def test_training_clients_that_are_left_out_do_not_take_a_whole_split_with_them(
    split: str, caplog: pytest.LogCaptureFixture
) -> None:
    def stream() -> Iterator[ClientRows]:
        yield ClientRows("train", "ann", np.arange(5), np.zeros(5, np.int64))
        yield ClientRows("train", "bob", np.arange(1), np.zeros(1, np.int64))
        yield ClientRows(split, "bob", np.arange(7), np.zeros(7, np.int64))

    source = replace(population(), stream=stream, train_ids=lambda: ["ann", "bob"])
    assert len(made(source=source)[split, "bob"]) == 7
    said = f"at least one {split} client must be left, but all 7 examples of the split"
    if split == "test":
        with pytest.raises(DataError, match=said):
            made(source=source, min_examples=2)
        assert len(made(source=source, min_examples=2, test_clients="pooled")["test", "test"]) == 7
    else:
        # Most runs do not evaluate on it.
        assert list(made(source=source, min_examples=2)) == [("train", "ann")]
        assert said in caplog.text
