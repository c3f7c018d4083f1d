"""Notices writes to tensors that a script's function must only read.

A function may write on some batches alone, which a trial before the first round does not see. Writes through NumPy and
`.data` are not noticed.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor


def version(tensor: Tensor) -> int:
    """How often it was written to; a tensor of inference mode does not say."""
    return -1 if tensor.is_inference() else tensor._version


def versions(*tensors: Tensor) -> tuple[int, ...]:
    """How often each was written to; see `version`."""
    return tuple(map(version, tensors))


def named(of: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a mapping, by names as in "state['c']"."""
    return {f"{of}[{name!r}]": tensor for name, tensor in tensors.items()}


def check_unwritten(
    what: str, before: tuple[int, ...], read: Mapping[str, Tensor], error: type[Exception] = ValueError
) -> None:
    """Raise an error if one of the tensors was written to.

    Args:
        what: names the function, as the message begins.
        before: the tensors' `versions`, in this order.
        read: by the names that the function knows them by.
        error: its class.
    """
    for name, old, new in zip(read, before, versions(*read.values()), strict=True):
        if new != old:
            raise error(f"{what} must not write to {name}, but it did: work on a copy, {name}.clone().")
