"""Refuses modules that raysim cannot hold: their tensors have to become views of flat vectors that raysim writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from raysim.config.plain import shown
from raysim.config.user_call import raised
from raysim.errors import ModelError
from raysim.models import changed_torch

FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
WHOLE = frozenset(
    {
        torch.bool,
        *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
    }
)


class _Named(NamedTuple):
    name: str
    tensor: Tensor
    is_parameter: bool


def check(module: nn.Module) -> None:
    """Check a module that a factory made.

    Raises:
        ModelError: it is compiled by torch.jit; or it has a tensor without values, of another kind than numbers side by
            side, or in the memory of another one; or a hook that raysim would not call. Names the tensor or the layer.
            Or it cannot be turned to training and evaluation as torch's modules can.
    """
    for name, child in module.named_modules():
        where = f"layer {name!r}" if name else "the module"
        if isinstance(child, torch.jit.ScriptModule):
            raise ModelError(
                f"model= must return a module of Python, but {where} is compiled by torch.jit, which lets nobody put "
                f"its tensors elsewhere: return the module that it was made of."
            )
        if type(child) is nn.Dropout:
            _check_dropout(child, where)
    named = list(_named(module))
    for each in named:
        if why := _obstacle(each):
            raise ModelError(f"model= must return a module of plain tensors with values, but {each.name!r} {why}.")
    _check_memory(named)
    _check_turns(module)


def _check_turns(module: nn.Module) -> None:
    """Raise ModelError if a module does not return itself where it is turned to evaluation or to training."""
    was = module.training
    for turned, call in ((module.eval, "eval()"), (module.train, "train()")):
        try:
            returned: object = turned()
        except Exception as error:
            raise ModelError(
                f"model= must return a module that can be turned to training and evaluation, but its {call} raised "
                f"{raised(error)}. torch's method is train(self, mode=True)."
            ) from error
        if returned is not module:
            raise ModelError(
                f"model= must return a module whose train(mode) and eval() return the module, as torch's do, but its "
                f"{call} returned {shown(returned)}: end the method by `return self`."
            )
    module.train(was)


def _check_dropout(layer: nn.Dropout, where: str) -> None:
    """Raise ModelError if the layer does more than torch's."""
    if layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks or layer._backward_pre_hooks:
        raise ModelError(
            f"model= must return a module without hooks on nn.Dropout, but {where} has some: raysim draws its masks "
            f"itself. Put the hook on the layer around it."
        )
    own = ["a forward of its own"] if any(name in vars(layer) for name in changed_torch.METHODS) else []
    if own := [*own, *changed_torch.replaced([nn.Dropout], {functional: ("dropout",)}, ("forward",))]:
        raise ModelError(
            f"model= must return a module whose nn.Dropout is torch's, but {where} has {', '.join(own)}: raysim draws "
            f"its masks itself. Write a layer of another class."
        )


def check_initial(named: Mapping[str, Tensor], where: str = "") -> None:
    """Refuse initial values, by name, that are not finite; `where`: they come from, as the beginning of a message."""
    for name, tensor in named.items():
        if not bool(torch.isfinite(tensor).all()):
            count = int((~torch.isfinite(tensor)).sum())
            raise ModelError(
                f"{where}The initial values must be finite, but {count} of the {tensor.numel()} of {name!r} are not, "
                f"as {tensor.dtype}: no update of such a model would be."
            )


def lost_by_rounding(module: nn.Module, dtype: torch.dtype) -> list[str]:
    """Name the floating buffers whose values another dtype does not hold apart.

    Rounding changes most values a little, which is no loss. These lose more: one whose values become 0 or infinite, and
    one of which less than half of the different values stay different, such as seconds since 1970 in float32.
    """
    return [name for name, buffer in module.named_buffers() if _loses(buffer.detach(), dtype)]


def _loses(buffer: Tensor, dtype: torch.dtype) -> bool:
    if not buffer.is_floating_point() or buffer.dtype.itemsize <= dtype.itemsize:
        return False
    rounded = buffer.to(dtype)
    if bool(((rounded == 0) & (buffer != 0)).any()) or not torch.equal(rounded.isinf(), buffer.isinf()):
        return True
    return 2 * len(rounded.unique()) < len(buffer.unique())


def _named(module: nn.Module) -> Iterator[_Named]:
    for name, parameter in module.named_parameters():
        yield _Named(name, parameter, True)
    for name, buffer in module.named_buffers():
        yield _Named(name, buffer, False)


def _obstacle(each: _Named) -> str | None:
    """Why a tensor cannot be held, as the end of a sentence about it."""
    name, tensor, is_parameter = each
    if isinstance(tensor, nn.UninitializedParameter | nn.UninitializedBuffer):
        return "is lazy, so its shape is not known: give layers their sizes"
    if tensor.is_meta:
        return "is on the device 'meta', so it has no values: make the module on the CPU"
    if tensor.is_quantized or tensor.layout != torch.strided:
        return f"is quantized or sparse ({tensor.dtype}, {tensor.layout}): make it dense"
    if tensor.dtype not in FLOATS | WHOLE:
        kinds = "real and imaginary part apart" if tensor.is_complex() else "another dtype"
        return f"has the dtype {tensor.dtype}, and vectors of a model hold real numbers: keep it as {kinds}"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "has a name that UTF-8 cannot hold, as files of a run must"
    if is_parameter and getattr(tensor, "_post_accumulate_grad_hooks", None):
        return "has a hook for accumulated gradients, and raysim accumulates none: use register_hook"
    return None


def _check_memory(named: list[_Named]) -> None:
    """Raise ModelError if two tensors lie in the same memory: torch would change both, raysim one of them."""
    places = sorted(
        (tensor.data_ptr(), tensor.data_ptr() + _span_bytes(tensor), name)
        for name, tensor, _ in named
        if tensor.numel() and tensor.device.type == "cpu"
    )
    for (_, end, name), (start, _, other) in pairwise(places):
        if start < end:
            raise ModelError(
                f"model= must return a module whose tensors have memory of their own, but {name!r} and {other!r} share "
                f"some: use one and the same nn.Parameter in both places."
            )


def _span_bytes(tensor: Tensor) -> int:
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
