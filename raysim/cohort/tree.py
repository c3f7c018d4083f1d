"""Defines the order of addition: a fixed binary tree over chunk indices.

Floating addition is not associative, so the tree, not the arrival, decides which sums are added. The tree halves the
range of chunks again and again; a node is the range [start, stop) that it covers. Whoever holds both halves of a range
may add them, so a worker can combine what it trained before anything travels, and the bits are the same for any number
of workers. `deal` says which chunk goes to which leaf so that the halves of every range cost about the same: 2, 4 or 8
workers then hold whole subtrees, and send one sum each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""The range [start, stop) of leaves that the node covers."""


class Family(NamedTuple):
    """A node's place: its parent, and the other half of it."""

    parent: Node
    sibling: Node


def middle(start: int, stop: int) -> int:
    """Where a range of at least two leaves is halved; the left half takes the odd one.

    >>> middle(0, 5)
    3
    """
    return (start + stop + 1) // 2


@lru_cache(maxsize=64)
def families(num_leaves: int) -> Mapping[Node, Family]:
    """Parent and sibling of every node but the root of the tree with that many leaves.

    >>> families(3)[(0, 1)]
    Family(parent=(0, 2), sibling=(1, 2))
    """
    found: dict[Node, Family] = {}
    ranges = [(0, num_leaves)]
    while ranges:
        start, stop = ranges.pop()
        if stop - start > 1:
            left, right = (start, middle(start, stop)), (middle(start, stop), stop)
            found[left] = Family((start, stop), right)
            found[right] = Family((start, stop), left)
            ranges += [left, right]
    return found


def deal(items: Sequence[T], costs: Sequence[float]) -> list[T]:
    """Place items on the leaves, so that the halves of every range cost about the same.

    Costliest first, ties in order, each goes to the cheaper half that has room.

    >>> deal("abcd", [6, 2, 2, 1])
    ['a', 'd', 'b', 'c']
    """
    costliest_first = sorted(range(len(items)), key=lambda index: -costs[index])
    return [items[index] for index in _dealt(costliest_first, costs)]


def _dealt(costliest_first: list[int], costs: Sequence[float]) -> list[int]:
    if len(costliest_first) <= 1:
        return costliest_first
    left, right = _Half(middle(0, len(costliest_first))), _Half(len(costliest_first) // 2)
    for index in costliest_first:
        takes_left = left.room and (not right.room or left.cost <= right.cost)
        (left if takes_left else right).add(index, costs[index])
    return _dealt(left.held, costs) + _dealt(right.held, costs)


class _Half:
    def __init__(self, room: int) -> None:
        self.room, self.cost = room, 0.0
        self.held: list[int] = []

    def add(self, index: int, cost: float) -> None:
        self.held.append(index)
        self.cost += cost
        self.room -= 1


class TreeFold(Generic[T]):
    """Holds the maximal subtrees known so far of a tree with `num_leaves` leaves.

    What it is given is its own: `add` may write the sum into either argument.
    """

    def __init__(self, num_leaves: int, add: Callable[[T, T], T]) -> None:
        if num_leaves < 1:
            raise ValueError(f"num_leaves >= 1 must hold, but got {num_leaves}.")
        self._families = families(num_leaves)
        self._root: Node = (0, num_leaves)
        self._add = add
        self._held: dict[Node, T] = {}

    def put(self, value: T, node: Node) -> None:
        """Give a node's value and add it to its sibling as far up as siblings are held."""
        while node != self._root:
            parent, sibling = self._families[node]
            if sibling not in self._held:
                break
            other = self._held.pop(sibling)
            value = self._add(value, other) if node < sibling else self._add(other, value)
            node = parent
        if node in self._held:
            raise ValueError(f"Chunks {node} were put twice: a sum would count their clients twice.")
        self._held[node] = value

    def put_leaf(self, value: T, index: int) -> None:
        """Give the value of one chunk."""
        self.put(value, (index, index + 1))

    def change(self, how: Callable[[T], T]) -> None:
        """Put something else of the same worth in the place of all that is held."""
        self._held = {node: how(value) for node, value in self._held.items()}

    def take(self) -> list[tuple[Node, T]]:
        """Hand over the maximal subtrees held, leaving none."""
        held, self._held = sorted(self._held.items(), key=lambda item: item[0]), {}
        return held

    @property
    def value(self) -> T:
        """The sum over all leaves, once every leaf has arrived."""
        return self._held[self._root]


def fold(values: Iterable[T], add: Callable[[T, T], T], num_leaves: int) -> T:
    """The tree's sum of `num_leaves` values in order of index, holding at most one value per level at a time.

    >>> fold("abcde", lambda left, right: f"({left}{right})", 5)
    '(((ab)c)(de))'
    """
    tree: TreeFold[T] = TreeFold(num_leaves, add)
    for index, value in enumerate(values):
        tree.put_leaf(value, index)
    return tree.value
