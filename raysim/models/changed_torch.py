"""Finds out what of torch is no longer torch's own: functions and methods that a script has replaced, and active modes.

Hand-written layers and raysim's dropout stand for torch's functions and layers as torch has them. What a script has put
in their place is called by the module itself alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules import module as modules
from torch.overrides import _get_current_function_mode_stack
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from raysim.errors import ExperimentError

OWN_CODE = (Path(torch.__file__).parent, Path(__file__).parents[2])
"""The folders of torch and of raysim."""

FUNCTIONS: Mapping[Any, tuple[str, ...]] = MappingProxyType(
    {
        functional: (
            *("conv2d", "cross_entropy", "dropout", "embedding", "group_norm", "layer_norm", "linear", "max_pool2d"),
            *("mse_loss", "nll_loss", "log_softmax", "pad", "relu", "softmax", "tanh"),
        ),
        torch: (
            *("conv2d", "dropout", "embedding", "flatten", "group_norm", "layer_norm", "log_softmax", "lstm"),
            *("max_pool2d", "relu", "softmax", "tanh", "where"),
        ),
        Tensor: (
            *("__add__", "__matmul__", "__mul__", "__pow__", "__radd__", "__rmul__", "__sub__", "__truediv__"),
            *("contiguous", "flatten", "gather", "mean", "relu", "reshape", "squeeze", "sum", "tanh", "transpose"),
            *("unsqueeze", "view"),
        ),
    }
)
"""Functions that hand-written layers and losses stand for, by who has them."""

METHODS = ("forward", "_conv_forward", "__call__", "_wrapped_call_impl", "_call_impl", "__getattr__")
"""Methods by which a layer is called."""


def changes(layers: Sequence[type[nn.Module]]) -> tuple[str, ...]:
    """Return what is not torch's own, each in words for the middle of a sentence.

    Args:
        layers: classes of layers that trainers stand for; they are looked at beside nn.Sequential.
    """
    return (*replaced((nn.Sequential, *layers)), *_active())


def check_same(planned: Sequence[str], here: Sequence[str]) -> None:
    """Refuse a process in which torch is another than where the run was planned.

    Raises:
        ExperimentError: names what differs.
    """
    if lacking := [each for each in planned if each not in here]:
        raise ExperimentError(
            f"The script's process has {', '.join(lacking)}, but a worker that trains its clients does not: replace "
            f"functions in the file of the module or inside model=, which workers carry out too, or set "
            f"engine.workers = 0."
        )
    if added := [each for each in here if each not in planned]:
        raise ExperimentError(
            f"A worker has {', '.join(added)}, but the process that planned the run does not: replace functions before "
            f"the run begins."
        )


def replaced(
    layers: Sequence[type[nn.Module]],
    functions: Mapping[Any, Sequence[str]] = FUNCTIONS,
    methods: Sequence[str] = METHODS,
) -> Iterator[str]:
    """Yield the functions and methods that are not torch's own, likewise."""
    for owner, names in functions.items():
        for name in names:
            if not _is_function_of_torch(inspect.getattr_static(owner, name), name):
                yield f"a function of its own in the place of {owner.__name__}.{name}"
    holders = {(_holder(kind, name), name): None for kind in layers for name in methods}
    for kind, name in holders:
        if kind is not None and not _is_method_of(kind, vars(kind)[name]):
            yield f"a method of its own in the place of {kind.__name__}.{name}"


def _holder(kind: type[nn.Module], name: str) -> type | None:
    """The class that the method is inherited from."""
    return next((each for each in kind.__mro__ if name in vars(each)), None)


def _is_function_of_torch(function: Any, name: str) -> bool:
    made = _is_own(function) if isinstance(function, FunctionType) else inspect.isroutine(function)
    return made and function.__name__ in (name, name.strip("_"))


def _is_method_of(kind: type, method: Any) -> bool:
    """Whether the class itself defines the method."""
    is_own = isinstance(method, FunctionType) and _is_own(method)
    return is_own and method.__qualname__.rpartition(".")[0] == kind.__qualname__


def _is_own(function: FunctionType) -> bool:
    # Of the code, because functools.wraps gives a wrapper the name and the module of what it wraps.
    file = Path(function.__code__.co_filename)
    return any(file.is_relative_to(folder) for folder in OWN_CODE)


def _active() -> Iterator[str]:
    for mode in (*_get_current_function_mode_stack(), *_get_current_dispatch_mode_stack()):
        # torch's own, of a default device, makes tensors there and changes none.
        if not isinstance(mode, DeviceContext):
            yield f"an active mode {type(mode).__name__}"
    if modules._has_any_global_hook():
        yield "a hook of all modules"
