"""The fold: one tree, whoever holds which leaves and in whatever order they arrive."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raysim.cohort.tree import TreeFold, deal, fold, middle


def bracket(left: str, right: str) -> str:
    return f"({left}{right})"


@pytest.mark.parametrize(
    ("count", "tree"),
    [(1, "0"), (2, "(01)"), (3, "((01)2)"), (4, "((01)(23))"), (5, "(((01)2)(34))"), (6, "(((01)2)((34)5))")],
)
def test_the_tree_is_fixed_by_the_number_of_leaves(count: int, tree: str) -> None:
    assert fold((str(i) for i in range(count)), bracket, count) == tree


@given(st.data(), st.integers(1, 40), st.integers(1, 5))
def test_any_workers_in_any_order_give_the_same_tree(data: st.DataObject, count: int, workers: int) -> None:
    owners = data.draw(st.lists(st.integers(0, workers - 1), min_size=count, max_size=count))
    order = data.draw(st.permutations(range(count)))
    driver: TreeFold[str] = TreeFold(count, bracket)
    held = [TreeFold(count, bracket) for _ in range(workers)]
    for leaf in order:
        held[owners[leaf]].put_leaf(f"<{leaf}>", leaf)
        if data.draw(st.booleans()):  # a worker may hand over what it holds at any moment
            for node, value in held[owners[leaf]].take():
                driver.put(value, node)
    for worker in held:
        for node, value in worker.take():
            driver.put(value, node)
    assert driver.value == fold((f"<{i}>" for i in range(count)), bracket, count)


def test_a_worker_with_a_whole_subtree_holds_one_value() -> None:
    worker = TreeFold(16, bracket)
    for leaf in (11, 8, 10, 9):
        worker.put_leaf("x", leaf)
    assert [node for node, _ in worker.take()] == [(8, 12)]


def test_what_is_held_may_be_held_otherwise() -> None:
    tree: TreeFold[str] = TreeFold(3, lambda left, right: f"({left} {right})")
    tree.put_leaf("c", 2)
    tree.change(str.upper)
    tree.put_leaf("a", 0)
    tree.put_leaf("b", 1)
    assert tree.value.count("C") == 1
    assert sorted(tree.value.replace("(", "").replace(")", "").split()) == ["C", "a", "b"]


def test_a_leaf_put_twice_is_refused() -> None:
    tree = TreeFold(4, bracket)
    tree.put_leaf("a", 0)
    with pytest.raises(ValueError, match="twice"):
        tree.put_leaf("a", 0)


@given(st.lists(st.integers(1, 1000), min_size=2, max_size=64))
def test_dealing_levels_the_halves(costs: list[int]) -> None:
    dealt = deal(costs, costs)
    assert sorted(dealt) == sorted(costs)
    half = middle(0, len(costs))
    assert abs(sum(dealt[:half]) - sum(dealt[half:])) <= max(costs)


def test_dealing_puts_the_cheap_beside_the_costly() -> None:
    assert deal("abcd", [60, 20, 20, 10]) == ["a", "d", "b", "c"]
    assert deal("dbca", [10, 20, 20, 60]) == ["a", "d", "b", "c"]
