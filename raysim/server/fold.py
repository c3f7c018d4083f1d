"""The order of addition: a fixed binary tree over chunk indices.

Floating addition is not associative, so the tree, not the arrival, decides which sums are added. Node (level, i) covers
chunks i * 2^level up to (i + 1) * 2^level; a node without a right sibling is passed up unchanged. Whoever holds both
children may add them, so a worker can combine what it trained before anything travels, and the bits are the same for
any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")
Node = tuple[int, int]
"""(level, index)."""


class TreeFold(Generic[T]):
    """Holds the maximal subtrees known so far of a tree with `num_leaves` leaves."""

    def __init__(self, num_leaves: int, add: Callable[[T, T], T]) -> None:
        if num_leaves < 1:
            raise ValueError(f"num_leaves >= 1 must hold, but got {num_leaves}.")
        self._num_leaves = num_leaves
        self._add = add
        self._held: dict[Node, T] = {}
        self._root: Node = ((num_leaves - 1).bit_length(), 0)

    def put(self, value: T, index: int, level: int = 0) -> None:
        """Give a node's value (by default a leaf's) and add it to its sibling as far up as siblings are held."""
        while (level, index) != self._root:
            sibling = index ^ 1
            if sibling << level < self._num_leaves:
                if (level, sibling) not in self._held:
                    break
                other = self._held.pop((level, sibling))
                value = self._add(value, other) if index < sibling else self._add(other, value)
            level, index = level + 1, index >> 1
        if (level, index) in self._held:
            raise ValueError(f"Node {(level, index)} was put twice: a sum would count its clients twice.")
        self._held[(level, index)] = value

    def take(self) -> list[tuple[Node, T]]:
        """Hand over the maximal subtrees held, leaving none."""
        held, self._held = sorted(self._held.items(), key=lambda item: item[0]), {}
        return held

    @property
    def complete(self) -> bool:
        """Whether every leaf has arrived."""
        return self._root in self._held

    @property
    def value(self) -> T:
        """The sum over all leaves; only when `complete`."""
        return self._held[self._root]


def fold(values: Iterable[T], add: Callable[[T, T], T], num_leaves: int) -> T:
    """The tree's sum of `num_leaves` values in order of index, holding at most one value per level at a time."""
    tree: TreeFold[T] = TreeFold(num_leaves, add)
    for index, value in enumerate(values):
        tree.put(value, index)
    return tree.value
