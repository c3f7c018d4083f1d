"""Refuses a function that returns something else when it is called again with the same arguments.

It keeps a count or draws from a generator of its own. Then results depend on the order of the calls, and so on chunks
and workers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysim.config.form import has_values
from raysim.errors import RaysimError

RELATIVE = 1e-6
"""Difference, relative to the largest number, that is none: a kernel's order of additions depends on alignment."""

BLOCK = 1 << 16
"""Numbers that are compared at a time: eleven million at once, in new memory, take six times as long."""


def check_repetition(
    what: str, once: object, again: object, error: type[RaysimError], remedy: str, drew: bool = False
) -> None:
    """Raise `error` unless two calls with the same arguments have returned the same, and drew nothing.

    Args:
        what: names the function, as a message begins.
        once, again: what it returned; tensors, arrays and numbers in them are compared.
        error: its class.
        remedy: the message's last sentence.
        drew: whether the second call has moved a generator of the function's own on (`OwnGenerators`).
    """
    if drew:
        raise error(f"{what} draws from a generator of its own, so its results depend on the calls before. {remedy}")
    if not is_same(once, again):
        raise error(
            f"{what} returned something else when it was called again with the same arguments: it counts or changes "
            f"something from call to call, or draws from a generator of its own. {remedy}"
        )


def copied(value: Any) -> Any:
    """Return a value with copies of the tensors and arrays in it, for a second call may return the same memory.

    Named tuples stay of their class; other tuples and lists become plain ones, and mappings dicts: a class of a
    script's may ask for other arguments, or change what it is given.

    >>> before = torch.zeros(1)
    >>> after = copied({"a": (before, 1)})
    >>> after, after["a"][0] is before
    ({'a': (tensor([0.]), 1)}, False)
    """
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, Mapping):
        return {name: copied(each) for name, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        # Past a `__new__` of the class, as `_make` does.
        return tuple.__new__(type(value), map(copied, value))
    if isinstance(value, tuple | list):
        return (tuple if isinstance(value, tuple) else list)(map(copied, value))
    return value


def is_same(one: object, other: object) -> bool:
    """Return whether two values are the same, as far as they are tensors, arrays, numbers, or contain these.

    >>> is_same({"a": torch.ones(2), "b": "x"}, {"a": torch.ones(2), "b": "y"}), is_same([1.0], [2.0])
    (True, False)
    """
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        if not (has_values(one) and has_values(other)):
            # Nothing to compare; whoever needs numbers refuses them by their form.
            return True
        alike = (one.shape, one.dtype, one.layout) == (other.shape, other.dtype, other.layout)
        return alike and is_close(one, other, RELATIVE)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    if isinstance(one, Real) and isinstance(other, Real):
        return bool(one == other or (one != one and other != other))
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(is_same(value, other[key]) for key, value in one.items())
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        return len(one) == len(other) and all(map(is_same, one, other))
    return type(one) is type(other)


def is_close(one: Tensor, other: Tensor, relative: float) -> bool:
    """Return whether tensors of one shape differ by at most a share of the largest finite number of both.

    >>> is_close(torch.tensor([1.0, 100.0]), torch.tensor([1.05, 100.0]), 1e-3)
    True
    """
    a, b = (tensor.detach().to_dense() for tensor in (one, other))
    if a.dtype == b.dtype and torch.equal(a, b):
        return True
    most = relative * max((_largest(each) for pair in _blocks(a, b) for each in pair), default=0.0)
    return all(torch.allclose(*pair, rtol=0.0, atol=most, equal_nan=True) for pair in _blocks(a, b))


def _blocks(a: Tensor, b: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield both, some numbers at a time, in float64."""
    for first, second in zip(a.reshape(-1).split(BLOCK), b.reshape(-1).split(BLOCK), strict=True):
        if first.numel():
            yield first.to(torch.float64), second.to(torch.float64)


def _largest(numbers: Tensor) -> float:
    return float(numbers.nan_to_num(0.0, 0.0, 0.0).abs().max())
