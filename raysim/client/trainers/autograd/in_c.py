"""Lets autograd's local step compute convolutions in C: it has no recorded operators to replace.

Inside a block each call of torch's function is looked at. One that gains becomes a node of autograd's graph, whose
forward and backward pass are those that recorded steps call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from raysim.client.trainers.autograd.convolution import AXES, computed
from raysim.client.trainers.kernel import depthwise, winograd
from raysim.client.trainers.kernel.kernels import NONE_USED, Kernels, KernelsUsed

LEAST_NUMBERS = 8_192
"""Of a convolution's kernels that are to be computed by minimal filtering: to look at each function that a module calls
takes a tenth of a small module's step, which smaller ones do not save."""


def gained(module: nn.Module) -> KernelsUsed:
    """Return which kernels a module's steps by autograd gain by, if its maps are large enough."""
    filters = any(winograd.may_gain(p.shape) and p.numel() >= LEAST_NUMBERS for p in module.parameters())
    return KernelsUsed(winograd=filters, depthwise=depthwise.any_in(module, depthwise.gains_much))


def by_kernels(module: nn.Module, kernels: Kernels, dtype: torch.dtype) -> AbstractContextManager[object]:
    """Compute in C what the module gains by of these kernels, of numbers of this dtype, in a block that may be entered
    again.

    A module with a backward hook of the older kind is torch's: such a hook sees the gradients of torch's own node.
    """
    has_hook = any(child._is_full_backward_hook is False for child in module.modules())
    gains = NONE_USED if has_hook else gained(module)
    taken = Kernels(
        winograd=kernels.winograd if gains.winograd else None, depthwise=kernels.depthwise if gains.depthwise else None
    )
    return InC(taken, dtype) if any(taken) else nullcontext()


class InC(TorchFunctionMode):
    """Computes convolutions in C inside the block.

    Whatever is more than a gradient of plain numbers is torch's: of tangents, under torch.func, in other types, in what
    torch compiles. So is what a checkpoint computes again for `torch.autograd.grad`, which takes modes off; the engine
    itself does not. Nodes of the graph have other names and attributes than torch's.

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
        # First, because the compiler reads this code too.
        if torch.compiler.is_compiling() or func not in AXES or not _only_autograd_looks_on():
            return func(*args, **named)
        made = computed(AXES[func], args, named, self._kernels, self._dtype)
        return func(*args, **named) if made is None else made


def _only_autograd_looks_on() -> bool:
    return (
        not torch.is_autocast_enabled("cpu")
        and not torch._C._are_functorch_transforms_active()
        and forward_ad._current_level < 0
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._is_tracing()
    )
