"""Computes products in another type than weights are kept in, by torch.autocast."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any

import torch

from raysim.client.trainers.layers.linear import LARGE


def products_in(precision: torch.dtype | None, device: torch.device) -> AbstractContextManager[object]:
    """Compute products in this type inside the block; None: as the weights are kept."""
    if precision is None:
        return nullcontext()
    if precision == torch.bfloat16 and device.type == "cpu" and not _onednn_has_bf16():
        return _without_onednn(precision)
    return _autocast(device.type, precision)


def has_large_products(shapes: Iterable[tuple[int, ...]]) -> bool:
    """Whether trainers with hand-written gradients make a product of parameters of these shapes in another type.

    >>> has_large_products([(10, 64), (10,)]), has_large_products([(256, 256)]), has_large_products([(8, 1, 3, 3)])
    (False, True, True)
    """
    return any(len(shape) > 2 or (len(shape) == 2 and math.prod(shape) >= LARGE) for shape in shapes)


@contextmanager
def _autocast(device: str, precision: torch.dtype) -> Iterator[None]:
    try:
        with torch.autocast(device, precision):
            yield
    finally:
        # Inside a script's own torch.autocast, copies of weights would stay until that ends, and steps would not count.
        torch.clear_autocast_cache()


@contextmanager
def _without_onednn(precision: torch.dtype) -> Iterator[None]:
    # torch's LSTM asks oneDNN whether it takes float32, and hands it bfloat16, which it then has no kernel for. All
    # other operators ask for bfloat16, and so do without oneDNN on such a processor anyway.
    onednn: Any = torch.backends.mkldnn
    before, onednn.enabled = onednn.enabled, False
    try:
        with _autocast("cpu", precision):
            yield
    finally:
        onednn.enabled = before


@cache
def _onednn_has_bf16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
