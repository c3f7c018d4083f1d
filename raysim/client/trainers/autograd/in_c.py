"""Lets autograd's local step compute convolutions in C: it has no recorded operators to replace.

Inside a block each call of torch's function is looked at. One that gains becomes a node of autograd's graph, whose
forward and backward pass are those that recorded steps call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from raysim.client.trainers.autograd.convolution import AXES, computed
from raysim.client.trainers.kernel.kernels import Kernels


def by_kernels(kernels: Kernels, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Compute in C what these kernels gain by, of numbers of this dtype, in a block that may be entered again."""
    return nullcontext() if kernels.winograd is None and kernels.depthwise is None else InC(kernels, dtype)


class InC(TorchFunctionMode):
    """Computes functions of torch in C inside the block: forward, and backward if autograd's engine runs there.

    Whatever is more than a gradient of plain numbers is torch's: of tangents, under torch.func, in other types.

    Args:
        kernels: those to use.
        dtype: of the numbers that they take.
    """

    def __init__(self, kernels: Kernels, dtype: torch.dtype) -> None:
        super().__init__()
        self._kernels, self._dtype = kernels, dtype

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What torch's function returns."""
        named = kwargs or {}
        looked_at = func in AXES and _only_autograd_looks_on()
        made = computed(AXES[func], args, named, self._kernels, self._dtype) if looked_at else None
        return func(*args, **named) if made is None else made


def _only_autograd_looks_on() -> bool:
    return (
        not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._is_tracing()
        and not torch.compiler.is_compiling()
    )
