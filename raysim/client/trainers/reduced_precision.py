"""Computes products in another type than weights are kept in, by torch.autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from raysim.client.trainers.layers.linear import LARGE
from raysim.models.lstm import Lstm


def products_in(precision: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Compute products in this type inside the block; None: as the weights are kept. On a CPU LSTMs stay in float32."""
    if precision is None:
        return nullcontext()
    return _but_for_lstms(precision) if device.type == "cpu" else _autocast(device.type, precision)


def has_large_products(module: nn.Module, device_kind: str) -> bool:
    """Whether trainers with hand-written gradients make a product of the module's weights in another type.

    >>> has_large_products(nn.Linear(64, 10), "cpu"), has_large_products(nn.Conv2d(1, 8, 3), "cpu")
    (False, True)
    >>> [has_large_products(nn.LSTM(256, 256), kind) for kind in ("cpu", "cuda")]
    [False, True]
    """
    lstms = (child for child in module.modules() if isinstance(child, nn.LSTM | Lstm))
    as_kept = {id(p) for child in lstms for p in child.parameters()} if device_kind == "cpu" else set()
    return any(
        p.dim() > 2 or (p.dim() == 2 and p.numel() >= LARGE) for p in module.parameters() if id(p) not in as_kept
    )


@contextmanager
def _autocast(device: str, precision: torch.dtype) -> Iterator[None]:
    try:
        with torch.autocast(device, precision):
            yield
    finally:
        # Inside a script's own torch.autocast, copies of weights would stay until that ends, and steps would not count.
        torch.clear_autocast_cache()


@contextmanager
def _but_for_lstms(precision: torch.dtype) -> Iterator[None]:
    with _autocast("cpu", precision), LstmsInFloat32():
        yield


class LstmsInFloat32(TorchFunctionMode):
    """Calls torch's LSTM in float32, as trained weights are, and not in autocast's type.

    On a CPU that is quicker: for 77 local steps of W3, 1.5 s in bfloat16 for .84 (Intel Xeon with AMX). And torch asks
    oneDNN whether it takes float32, and then hands it bfloat16, which it may have no kernel for.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not torch.lstm:
            return func(*args, **(kwargs or {}))
        with torch.autocast("cpu", enabled=False):
            return func(*map(_in_float32, args), **{key: _in_float32(one) for key, one in (kwargs or {}).items()})


def _in_float32(value: Any) -> Any:
    """Return the tensors with numbers of fewer bits in float32; also weights, where they are frozen."""
    if isinstance(value, list | tuple):
        return [_in_float32(one) for one in value]
    is_short = isinstance(value, Tensor) and value.is_floating_point() and value.dtype.itemsize < 4
    return value.float() if is_short else value
