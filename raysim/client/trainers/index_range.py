"""Refuses indices for which a table has no row, where tables of several clients lie one behind the other.

torch would read another client's row there, or the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


def check_not_negative(x: Tensor, rows: Tensor) -> None:
    """Raise IndexError if one of these rows of whole numbers has one below 0, as torch does where it looks them up for
    one client. On a card its kernels fail: local steps do not wait for it."""
    if x.is_floating_point():
        return
    if x.device.type != "cpu":
        torch._assert_async((x.index_select(0, rows) >= 0).all())
    elif bool((x < 0).any()) and (least := int(x.index_select(0, rows).min())) < 0:
        raise IndexError(f"index {least} is out of range: rows of nn.Embedding are counted from 0")


class IndicesChecked(TorchFunctionMode):
    """Compares the indices of nn.Embedding with its rows inside the block, also under torch.func.vmap."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch's function returns."""
        named = kwargs or {}
        if func is torch.nn.functional.embedding:
            _check(*_first_two(args, named, ("input", "weight")))
        elif func is torch.embedding:
            _check(*reversed(_first_two(args, named, ("weight", "indices"))))
        return func(*args, **named)


def _first_two(args: Sequence[Any], named: Mapping[str, Any], names: tuple[str, str]) -> list[Any]:
    return [*args[:2], *(named[name] for name in names[len(args) :] if name in named)]


def _check(indices: Tensor, weight: Tensor) -> None:
    # Unlike a lookup, it is an error for each client's table by itself; values under vmap cannot be asked for.
    weight.detach()[:, 0].gather(0, indices.reshape(-1).long())
