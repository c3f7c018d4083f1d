"""Partitions: laws that all of them keep, and what each one is for."""

from __future__ import annotations

from functools import partial

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from raysim.arrays import Int64s
from raysim.data.dealing import deal_test
from raysim.data.holdout import Holdout, hold_out_examples
from raysim.data.partitioned import Partitioned, assign
from raysim.data.partitions.cut import apportion, even_sizes
from raysim.data.partitions.dirichlet import Dirichlet
from raysim.data.partitions.dirichlet_reassign import DirichletReassign
from raysim.data.partitions.iid import Iid
from raysim.data.partitions.natural import Natural
from raysim.data.partitions.pachinko import Pachinko
from raysim.data.partitions.partition import LABEL_FREE, Partition
from raysim.data.partitions.partition import divide as divide_by
from raysim.data.partitions.quantity import Quantity
from raysim.data.partitions.shards import Shards
from raysim.data.partitions.shuffled import Shuffled, Unshuffled, mix
from raysim.errors import ExperimentError

ALL: list[Unshuffled | Shuffled] = [
    Iid(),
    Shards(),
    Dirichlet(alpha=0.3),
    Dirichlet(alpha=1e-6, prior="empirical"),
    DirichletReassign(alpha=0.3),
    DirichletReassign(alpha=1e-6, prior="uniform"),
    DirichletReassign(alpha=1e-6, fill="remaining"),
    Shuffled(sizes_of=Dirichlet(alpha=0.3)),
    Pachinko(),
    Pachinko(alpha=1e-6, beta=1e-6),
    Quantity(sigma=3),
]
COARSE = np.array([0, 0, 1, 1, 2, 2, 2, 3, 3, 3])
divide = partial(divide_by, coarse_of=COARSE)
TEN_CLASSES = np.repeat(np.arange(10), 600)


def ids(partition: Unshuffled | Shuffled) -> str:
    return str(partition.model_dump())


def is_partition(parts: list[Int64s], num_examples: int) -> bool:
    return sorted(np.concatenate(parts).tolist()) == list(range(num_examples))


def shares(parts: list[Int64s], labels: Int64s) -> npt.NDArray[np.float64]:
    counts = np.stack([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])
    result: npt.NDArray[np.float64] = counts / counts.sum(axis=1, keepdims=True)
    return result


@pytest.mark.parametrize("partition", ALL, ids=ids)
@given(data=st.data(), seed=st.integers(0, 2**32), share=st.floats(0, 1))
def test_every_example_goes_to_exactly_one_client_and_every_client_gets_one(
    partition: Unshuffled | Shuffled, data: st.DataObject, seed: int, share: float
) -> None:
    labels = np.array(data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=60)), np.int64)
    num_clients = data.draw(st.integers(1, len(labels)))
    parts = divide(partition, labels, num_clients, seed)
    mixed = mix(parts, share, seed)
    for each in (parts, mixed):
        assert len(each) == num_clients
        assert is_partition(each, len(labels))
        assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in each)
    assert [len(part) for part in mixed] == [len(part) for part in parts]


@pytest.mark.parametrize("partition", ALL, ids=ids)
def test_the_seed_alone_decides(partition: Unshuffled | Shuffled) -> None:
    once, again, other = (divide(partition, TEN_CLASSES, 20, seed) for seed in (1, 1, 2))
    assert all((a == b).all() for a, b in zip(once, again, strict=True))
    assert any(len(a) != len(b) or (a != b).any() for a, b in zip(once, other, strict=True))


@pytest.mark.parametrize("partition", [Iid(), Dirichlet(alpha=0.1), DirichletReassign(alpha=0.1)], ids=ids)
def test_sizes_are_as_even_as_possible(partition: Unshuffled) -> None:
    sizes = [len(part) for part in divide(partition, TEN_CLASSES, 7, seed=0)]
    assert sizes == even_sizes(6000, 7).tolist() == [858, 857, 857, 857, 857, 857, 857]


def test_shards_give_two_labels_where_the_numbers_divide() -> None:
    parts = divide(Shards(), TEN_CLASSES, 100, seed=0)  # 200 shards of 30, 20 per class
    assert {len(part) for part in parts} == {60}
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) == 2


def test_a_shard_across_a_border_gives_one_label_more() -> None:
    parts = divide(Shards(shards=8), TEN_CLASSES, 4, seed=0)  # shards of 750 begin inside classes of 600
    assert max(len(np.unique(TEN_CLASSES[part])) for part in parts) <= 2 * 2 + 2


def test_more_shards_than_examples_or_fewer_than_clients_are_refused() -> None:
    for num_shards in (3, 6001):
        with pytest.raises(ExperimentError, match="clients <= shards <= examples must hold"):
            divide(Shards(shards=num_shards), TEN_CLASSES, 4, seed=0)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_reassign"])
def test_large_alpha_approaches_the_prior(name: str) -> None:
    labels = np.repeat(np.arange(3), (600, 300, 100))
    for prior, expected in (("empirical", [0.6, 0.3, 0.1]), ("uniform", [1 / 3, 1 / 3, 1 / 3])):
        partition = TypeAdapter(Partition).validate_python({"name": name, "alpha": 1e7, "prior": prior})
        first = divide(partition, labels, 10, seed=0)[0]  # later ones take what is left of the rarer classes
        # Labels drawn from q have standard deviation sqrt(q (1 - q) / 100) < 0.05; proportions taken have none.
        tolerance = 0.2 if name == "dirichlet" else 0.011
        np.testing.assert_allclose(shares([first], labels)[0], expected, atol=tolerance)


@pytest.mark.parametrize("name", ["dirichlet", "dirichlet_reassign"])
@pytest.mark.parametrize("prior", ["uniform", "empirical"])
def test_small_alpha_approaches_one_label_per_client(name: str, prior: str) -> None:
    partition = TypeAdapter(Partition).validate_python({"name": name, "alpha": 1e-6, "prior": prior})
    parts = divide(partition, TEN_CLASSES, 100, seed=0)
    largest = shares(parts, TEN_CLASSES).max(axis=1)
    assert (largest == 1).mean() > 0.8  # those that come when a class runs out have two


def test_skew_falls_with_alpha() -> None:
    largest = [
        shares(divide(Dirichlet(alpha=alpha), TEN_CLASSES, 100, 0), TEN_CLASSES).max(axis=1).mean()
        for alpha in (0.01, 0.1, 1, 10, 1000)
    ]
    assert largest == sorted(largest, reverse=True)


def test_reassigned_shares_are_exact_while_classes_last() -> None:
    """The first client takes n_k q_k of each class by largest remainder: the sum of its counts is its size."""
    parts = divide(DirichletReassign(alpha=1e9), np.repeat(np.arange(4), 250), 10, seed=0)
    assert [np.bincount(part // 250, minlength=4).tolist() for part in parts[:1]] == [[25, 25, 25, 25]]


def test_what_is_left_fills_the_place_of_a_class_that_ran_out() -> None:
    """A client of 500 examples wants one class alone, and none has as many: it gets all of the class, and of the others
    in proportion to what is left of them."""
    labels = np.repeat(np.arange(4), (400, 300, 200, 100))
    parts = divide(DirichletReassign(alpha=1e-9, fill="remaining"), labels, 2, seed=1)
    counts = [np.bincount(labels[part], minlength=4).tolist() for part in parts]
    wanted = int(np.argmax(counts[0]))
    sizes = np.array([400, 300, 200, 100])
    others = np.where(np.arange(4) == wanted, 0, sizes)
    expected = apportion(500 - int(sizes[wanted]), others.astype(np.float64), np.arange(4))
    expected[wanted] = sizes[wanted]
    assert counts[0] == expected.tolist()


def test_clients_have_more_classes_where_the_remaining_ones_fill() -> None:
    """Clients with at least three effective classes (exp of the entropy) among MNIST's labels: FedNLP's code has 20, 4
    and 24 with its seeds 0, 1, 2, and over 30 seeds 15 on average with a standard deviation of 3.5."""
    labels = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])

    def many(partition: DirichletReassign, seed: int) -> int:
        q = shares(divide(partition, labels, 100, seed), labels)
        entropy = -np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0).sum(axis=1)
        return int((np.exp(entropy) >= 3).sum())

    assert [many(DirichletReassign(alpha=0.1), seed) for seed in range(3)] == [0, 1, 0]
    remaining = [many(DirichletReassign(alpha=0.1, fill="remaining"), seed) for seed in range(10)]
    assert 10 < np.mean(remaining) < 20


def test_natural_keeps_the_sources_clients() -> None:
    keys = np.array(["bo", "al", "bo", "cy", "al"])
    parts = divide(Natural(), np.zeros(5, np.int64), 0, 0, client_keys=keys)
    assert [part.tolist() for part in parts] == [[1, 4], [0, 2], [3]]
    with pytest.raises(ExperimentError, match="needs a source with natural clients"):
        divide(Natural(), np.zeros(5, np.int64), 2, 0)


def test_shuffled_has_the_sizes_of_the_other_and_none_of_its_skew() -> None:
    keys = np.repeat(np.arange(20), np.arange(20) * 25 + 25)
    labels = keys % 10
    natural = divide(Natural(), labels, 0, 0, client_keys=keys)
    parts = divide(Shuffled(sizes_of=Natural()), labels, 0, 0, client_keys=keys)
    assert [len(part) for part in parts] == [len(part) for part in natural]
    assert shares(natural, labels).max(axis=1).min() == 1
    assert shares(parts, labels)[-1].max() < 0.3


def test_mix_goes_from_the_partition_to_its_shuffled_twin() -> None:
    parts = divide(Shards(), TEN_CLASSES, 100, seed=0)
    largest = [shares(mix(parts, share, 0), TEN_CLASSES).max(axis=1).mean() for share in (0.0, 0.25, 0.5, 0.75, 1.0)]
    assert largest == sorted(largest, reverse=True)
    assert all((a == b).all() for a, b in zip(mix(parts, 0.0, 0), parts, strict=True))
    kept = [np.intersect1d(a, b).size for a, b in zip(mix(parts, 0.5, 0), parts, strict=True)]
    assert min(kept) >= 30  # of 60 examples, half are never given up


def test_too_many_clients_are_refused() -> None:
    with pytest.raises(ExperimentError, match=r"data\.clients must be in 1\.\.5, the number of examples, but is 6"):
        divide(Iid(), np.zeros(5, np.int64), 6, 0)


@given(total=st.integers(0, 500), weights=st.lists(st.integers(0, 30), min_size=1, max_size=9).filter(any))
def test_apportioning_is_largest_remainder(total: int, weights: list[int]) -> None:
    counts = apportion(total, np.array(weights, np.float64), np.arange(len(weights)))
    assert counts.sum() == total
    for count, weight in zip(counts.tolist(), weights, strict=True):
        floor, remainder = divmod(total * weight, sum(weights))
        assert floor <= count <= floor + (remainder > 0)


def test_apportioning_five_seats() -> None:
    # Quotas 2.5, 1.5, 1.0: one seat is left for two equal remainders, and priority decides.
    weights = np.array([5.0, 3.0, 2.0])
    assert apportion(5, weights, np.array([0, 1, 2])).tolist() == [3, 1, 1]
    assert apportion(5, weights, np.array([1, 0, 2])).tolist() == [2, 2, 1]


def test_test_examples_follow_each_class() -> None:
    train_labels = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    parts = [
        np.array([0, 1, 2]),
        np.array([3, 4, 5, 6, 7]),
    ]  # class 0: three and one; class 1: none and all
    test_labels = np.repeat([0, 1, 2], (40, 20, 10))
    dealt = deal_test(parts, train_labels, test_labels, seed=0)
    assert is_partition(dealt, 70)
    assert [np.bincount(test_labels[part], minlength=3).tolist() for part in dealt] == [[30, 0, 5], [10, 20, 5]]


def test_equal_remainders_do_not_favour_a_client() -> None:
    labels = np.repeat(np.arange(50), 10)
    parts = divide(Iid(), labels, 500, seed=0)  # one example each: a single test example per class has 10 equal takers
    owners = [len(part) for part in deal_test(parts, labels, np.arange(50), seed=0)]
    assert sum(owners) == 50
    taken = np.flatnonzero(owners)
    assert 100 < taken.mean() < 400


SECTION = {"clients": 10, "partition": {"name": "dirichlet", "alpha": 0.5}}


def assigned(seed: int = 0, **settings: object) -> dict[str, dict[str, list[int]]]:
    section = Partitioned.model_validate(SECTION | settings)
    split_clients = assign(section, np.arange(200) % 4, np.arange(40) % 4, seed)
    return {name: {k: rows.tolist() for k, rows in clients} for name, clients in split_clients.items()}


def test_held_out_clients_leave_with_their_examples() -> None:
    whole, held = assigned(), assigned(holdout=0.3)
    assert (len(held["train"]), len(held["validation"])) == (7, 3)
    assert {**held["train"], **held["validation"]} == whole["train"]
    assert held["test"] == whole["test"]


def test_held_out_examples_stay_with_their_client() -> None:
    whole, held = assigned(), assigned(holdout_examples=0.25)
    for client, rows in whole["train"].items():
        assert sorted(held["train"][client] + held["validation"][client]) == rows
        assert len(held["validation"][client]) == 5  # of 20
    assert held["test"] == whole["test"]


def test_a_client_keeps_its_last_training_example() -> None:
    train, validation = hold_out_examples(np.array([4]), 0.9, client=0, seed=0)
    assert (train.tolist(), validation.tolist()) == ([4], [])


def test_pooled_test_examples_are_one_client() -> None:
    assert assigned(test_clients="pooled")["test"] == {"test": list(range(40))}


def test_other_clients_have_the_test_examples_by_the_same_partition() -> None:
    labels, tested = np.repeat(np.arange(100), 50), np.repeat(np.arange(100), 10)
    section = Partitioned.model_validate({"clients": 50, "partition": {"name": "pachinko"}, "test_clients": 10})
    coarse_of = np.arange(100) % 20
    split = assign(section, labels, tested, 0, coarse_of)
    assert [client for client, _ in split["test"]] == [f"test-{number}" for number in range(10)]
    parts = [part for _, part in split["test"]]
    assert is_partition(parts, 1000)
    assert {len(part) for part in parts} == {100}
    # Pachinko's first client prefers few of the twenty coarse labels; the one who trains prefers others.
    preferred = [
        {int(coarse) for coarse in np.argsort(-np.bincount(coarse_of[own], minlength=20))[:2]}
        for own in (labels[split["train"][0][1]], tested[parts[0]])
    ]
    counts = np.bincount(coarse_of[tested[parts[0]]], minlength=20)
    assert counts[sorted(preferred[1])].sum() > 50
    assert preferred[0] != preferred[1]
    # They are there in addition: nothing of the training clients changes.
    pooled = assign(section.model_copy(update={"test_clients": "pooled"}), labels, tested, 0, coarse_of)
    assert all((a == b).all() for (_, a), (_, b) in zip(split["train"], pooled["train"], strict=True))


def test_other_clients_for_test_are_mixed_as_those_that_train() -> None:
    classes = [
        np.mean([len({x % 4 for x in part}) for part in assigned(test_clients=10, mix=share)["test"].values()])
        for share in (0.0, 1.0)
    ]
    assert classes[0] < classes[1], "mixed clients have more classes"


def test_there_are_at_most_as_many_test_clients_as_test_examples() -> None:
    with pytest.raises(ExperimentError, match=r"data.test_clients must be in 1..40, .* but is 41"):
        assigned(test_clients=41)
    # Else the shards would be those of the training examples, of which there are enough.
    said = r"data\.test_clients = 5 deals the 40 test examples by the same partition: .* 5 clients, 60 shards"
    with pytest.raises(ExperimentError, match=said):
        assigned(test_clients=5, partition={"name": "shards", "shards": 60})


@given(num_clients=st.integers(2, 100), share=st.floats(0.01, 0.99), seed=st.integers(0, 99))
def test_a_holdout_divides_the_clients(num_clients: int, share: float, seed: int) -> None:
    holdout = Holdout(num_clients, share, seed)
    train, validation = holdout.train(), holdout.validation()
    assert (len(train), len(validation)) == (holdout.num_train, holdout.num_validation)
    assert abs(len(validation) - share * num_clients) <= 0.5
    assert sorted([*train.tolist(), *validation.tolist()]) == list(range(num_clients))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"holdout": 0.1, "holdout_examples": 0.1}, "cannot both be set"),
        ({"holdout": 0.04}, "0.04 of 10 clients is 0"),
        ({"holdout": 0.96}, "0.96 of 10 clients is 10"),
        ({"holdout": 1.0}, "less than 1"),
        ({"mix": 1.5}, "less than or equal to 1"),
        ({"partition": {"name": "natural"}}, "needs a source with natural clients"),
        ({"partition": {"name": "shuffled", "sizes_of": {"name": "natural"}}}, "a source with natural clients"),
        ({"partition": {"name": "iid", "alpha": 1.0}}, "alpha"),
        ({"partition": {"name": "dirichlet"}}, "alpha"),
        ({"partition": {"name": "dirichlet", "alpha": 0}}, "greater than or equal to"),
        ({"partition": {"name": "dirichelt", "alpha": 1}}, "'dirichlet'"),
        ({"clients": 0}, "greater than or equal to 1"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Partitioned.model_validate(SECTION | settings)


def test_quantity_skew_is_in_the_sizes_alone() -> None:
    even = divide(Quantity(sigma=0), TEN_CLASSES, 10, seed=0)
    assert {len(part) for part in even} == {600}
    parts = divide(Quantity(sigma=1), TEN_CLASSES, 200, seed=0)
    logs = np.log([len(part) for part in parts])
    # The deviation of 200 draws is within 3 / sqrt(2 * 200) = 0.15 of sigma, up to the rounding of small sizes.
    assert abs(logs.std() - 1) < 0.25
    largest = max(parts, key=len)
    assert np.abs(shares([largest], TEN_CLASSES) - 0.1).max() < 5 * np.sqrt(0.09 / len(largest))


def test_partitions_without_labels_give_the_same_parts_for_any() -> None:
    for kind in LABEL_FREE:
        if kind is not Natural:
            one, other = (divide(kind(), labels, 30, seed=3) for labels in (TEN_CLASSES, TEN_CLASSES[::-1].copy()))
            assert all((a == b).all() for a, b in zip(one, other, strict=True))


def test_pachinko_prefers_coarse_labels_and_spreads_inside_them() -> None:
    labels = np.repeat(np.arange(100), 500)
    coarse_of = np.arange(100) % 20
    parts = divide_by(Pachinko(alpha=1e-6, beta=1e4), labels, 500, 0, coarse_of=coarse_of)
    assert {len(part) for part in parts} == {100}
    # The first clients, before anything runs out: one coarse label, and its five fine labels about 20 times each.
    for part in parts[:5]:
        fine = np.bincount(labels[part], minlength=100)
        assert len(set((np.flatnonzero(fine) % 20).tolist())) == 1
        assert (fine > 0).sum() == 5
        assert np.abs(fine[fine > 0] - 20).max() < 5 * 4  # a binomial's deviation is sqrt(100 * .2 * .8) = 4


def test_pachinko_with_large_alpha_and_beta_is_as_the_whole() -> None:
    labels = np.repeat(np.arange(100), 500)
    parts = divide_by(Pachinko(alpha=1e4, beta=1e4), labels, 10, 0, coarse_of=np.arange(100) // 5)
    # The last clients get what the others left, which varies more.
    assert np.abs(shares(parts[:5], labels) - 0.01).max() < 5 * np.sqrt(0.01 / 5000)


def test_pachinko_needs_two_levels_of_labels() -> None:
    with pytest.raises(ExperimentError, match="needs coarse and fine labels"):
        divide_by(Pachinko(), TEN_CLASSES, 10, seed=0)
