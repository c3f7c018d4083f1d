"""Torch's operators as instructions of the compiled interpreter: one or a few for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from raysim.client.trainers.kernel.operators import Code
from raysim.client.trainers.recording import norms, windows
from raysim.client.trainers.recording.instruction_list import InstructionList, NotInterpreted, viewed
from raysim.client.trainers.recording.own_kernels import OwnKernels
from raysim.client.trainers.recording.simplify import storage
from raysim.client.trainers.recording.tape import Op

_aten = torch.ops.aten

_WITH_INDICES = frozenset(
    {
        *("scatter_add", "scatter_add_", "gather", "nll_loss_forward", "nll_loss_backward"),
        *("embedding", "embedding_dense_backward"),
        *("max_pool2d_with_indices", "max_pool2d_with_indices_backward"),
    }
)
"""Operators that take or make whole numbers beside others."""

_UNSET = frozenset({"empty_like", "new_empty", "new_empty_strided"})
"""Operators that make memory, to which others write."""

MOST_PLACES = 256
"""Of an axis that is gone along place by place, with an instruction for each. Sums along 20 places of (10, 20, 32, 32)
take torch 800 us, and the interpreter 30; along 20 of (10, 20, 64) 15 and a pause (AMD EPYC, Zen 4)."""

MOST_ONE_AT_A_TIME = 1 << 13
"""Numbers up to which logarithms, and softmaxes over another axis than the last, are interpreted: torch takes several
numbers at a time. Steps with little else: with 4,800 numbers .3 to .7 of the recording's time, with 9,600 .4 to 1.15,
with 19,200 .5 to 1.7, with 123,000 1.5 to 3.4 (AMD EPYC, Zen 4)."""

Lower = Callable[[InstructionList, Any, Mapping[str, Any]], None]
"""(list, results, arguments by name): adds what makes the results, whose tensors say where."""


def makes_numbers(op: Op) -> bool:
    """Whether the operator makes more than memory."""
    return _name(op) not in _UNSET


def knows(op: Op, values: Callable[[Any], Any]) -> bool:
    """Whether the operator makes a view, or there are instructions for it and for the types of its numbers.

    Args:
        op: of the program.
        values: the tensor of a slot.
    """
    name = _name(op)
    made, operands = ([values(slot) for slot in slots] for slots in (op.result_slots, op.operands))
    held = {storage(one) for one in operands}
    if not op.function._schema.is_mutable and all(storage(one) in held for one in made):
        return True
    if name == "add_" and all(one.dtype == torch.int64 for one in made):
        return isinstance(op.args[1], int)
    if name.removesuffix("_") not in _LOWERED and name not in _UNSET:
        return False
    numbers = made[:1] if name in _WITH_INDICES else [*made, *operands]
    return all(one.is_floating_point() for one in numbers) and len({one.dtype for one in numbers}) <= 1


def lower(op: Op, results: Any, args: Sequence[Any], kwargs: Mapping[str, Any], lines: InstructionList) -> None:
    """Add the operator's instructions.

    Args:
        op: one that `knows`.
        results, args, kwargs: its, with tensors in the place of slots.
        lines: what they are added to.

    Raises:
        NotInterpreted: the operator is known, but not with these arguments; says what of them.
    """
    name = _name(op)
    names = [argument.name for argument in op.function._schema.arguments]
    named = {**dict(zip(names, args, strict=False)), **kwargs}
    if isinstance(op.function, OwnKernels):
        windows.convolution_back(lines, results, named, has_kernels_in_c=True)
        return
    _LOWERED[name.removesuffix("_")](lines, args[0] if name.endswith("_") else results, named)


def _name(op: Op) -> str:
    return str(op.function._schema.name).removeprefix("aten::")


def _copied(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.COPY, out, named["self"])


def _reshaped(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a = named["self"]
    # It is contiguous: the numbers of `a` in order.
    lines.by_number(Code.COPY, out.view(a.shape), a)


def _unary(code: Code) -> Lower:
    return lambda lines, out, named: lines.by_number(code, out, named["self"])


def _arithmetic(code: Code) -> Lower:
    def lower(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
        a, b, scale = named["self"], named["other"], named.get("alpha", 1)
        if out.dtype == torch.int64 and code is Code.ADD and a is out and isinstance(b, int):
            lines.count(out, b * scale)
            return
        if named.get("rounding_mode") is not None:
            raise NotInterpreted("divides with rounding")
        if not isinstance(b, Tensor):
            number = float(b)
            match code:
                case Code.ADD:
                    lines.by_number(Code.LINEAR, out, a, p=1.0, q=scale * number)
                case Code.SUBTRACT:
                    lines.by_number(Code.LINEAR, out, a, p=1.0, q=-scale * number)
                case Code.MULTIPLY:
                    lines.by_number(Code.LINEAR, out, a, p=number, q=0.0)
                case _:
                    inverse = 1 / number if number else math.copysign(math.inf, number)
                    lines.by_number(Code.LINEAR, out, a, p=inverse, q=0.0)
            return
        lines.by_number(code, out, a, b, p=float(scale))

    return lower


def _rsub(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a, b = named["self"], named["other"]
    scale = float(named.get("alpha", 1))
    if isinstance(b, Tensor):
        lines.by_number(Code.SUBTRACT, out, b, a, p=scale)
    else:
        lines.by_number(Code.LINEAR, out, a, p=-scale, q=float(b))


def _neg(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.LINEAR, out, named["self"], p=-1.0)


def _power(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a, exponent = named["self"], named["exponent"]
    if isinstance(exponent, Tensor):
        # Its number may be another one in the next step.
        raise NotInterpreted("raises to a power that is computed")
    match exponent:
        case 1:
            lines.by_number(Code.COPY, out, a)
        case 2:
            lines.by_number(Code.MULTIPLY, out, a, a)
        case 3:
            square = lines.new_like(a)
            lines.by_number(Code.MULTIPLY, square, a, a)
            lines.by_number(Code.MULTIPLY, out, square, a)
        case 0.5:
            lines.by_number(Code.SQUARE_ROOT, out, a)
        case -0.5:
            _inverse_root(lines, out, named)
        case -1:
            lines.by_number(Code.RECIPROCAL, out, a)
        case -2:
            lines.by_number(Code.MULTIPLY, out, a, a)
            lines.by_number(Code.RECIPROCAL, out, out)
        case _:
            raise NotInterpreted(f"raises to the power {exponent}")


def _logarithm(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    _check_size(out, "has logarithms that torch is faster at")
    lines.by_number(Code.LOGARITHM, out, named["self"])


def _check_size(out: Tensor, otherwise: str) -> None:
    if out.numel() > MOST_ONE_AT_A_TIME:
        raise NotInterpreted(otherwise)


def _inverse_root(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.SQUARE_ROOT, out, named["self"])
    lines.by_number(Code.RECIPROCAL, out, out)


def _back(code: Code, other: str) -> Lower:
    return lambda lines, out, named: lines.by_number(code, out, named["grad_output"], named[other])


def _threshold(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.THRESHOLD_SLOPE, out, named["grad_output"], named["self"], p=float(named["threshold"]))


def _gelu(exact: Code, approximate: Code) -> Lower:
    def lower(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
        code = exact if named.get("approximate", "none") == "none" else approximate
        operands = [named[name] for name in ("grad_output", "self") if name in named]
        lines.by_number(code, out, *operands)

    return lower


def _elu(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    p, q = _elu_scales(named)
    lines.by_number(Code.ELU, out, named["self"], p=p, q=q)


def _elu_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    code = Code.ELU_SLOPE if named["is_result"] else Code.ELU_BACK
    p, q = _elu_scales(named)
    lines.by_number(code, out, named["grad_output"], named["self_or_result"], p=p, q=q)


def _elu_scales(named: Mapping[str, Any]) -> tuple[float, float]:
    """Of its exponential, and of its line."""
    if named.get("input_scale", 1) != 1:
        raise NotInterpreted("scales the input of an elu")
    scale = float(named.get("scale", 1))
    return scale * float(named.get("alpha", 1)), scale


def _softplus(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.SOFTPLUS, out, named["self"], p=_softplus_threshold(named))


def _softplus_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.SOFTPLUS_BACK, out, named["grad_output"], named["self"], p=_softplus_threshold(named))


def _softplus_threshold(named: Mapping[str, Any]) -> float:
    if named.get("beta", 1) != 1:
        raise NotInterpreted("scales the input of a softplus")
    return float(named.get("threshold", 20))


def _hardsigmoid(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.LINEAR, out, named["self"], p=1 / 6, q=0.5)
    lines.by_number(Code.CLAMP, out, out, p=0.0, q=1.0)


def _hardsigmoid_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.CLAMP_SLOPE, out, named["grad_output"], named["self"], p=-3.0, q=3.0)
    lines.by_number(Code.LINEAR, out, out, p=1 / 6)


def _glu(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    values, gates = named["self"].chunk(2, named.get("dim", -1))
    lines.by_number(Code.SIGMOID, out, gates)
    lines.by_number(Code.MULTIPLY, out, values, out)


def _glu_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    dy, dim = named["grad_output"], named["dim"]
    (values, gates), (into, into_gates) = (one.chunk(2, dim) for one in (named["self"], out))
    shares, product = lines.new(*dy.shape), lines.new(*dy.shape)
    lines.by_number(Code.SIGMOID, shares, gates)
    lines.by_number(Code.MULTIPLY, into, dy, shares)
    lines.by_number(Code.MULTIPLY, product, dy, values)
    lines.by_number(Code.SIGMOID_SLOPE, into_gates, product, shares)


def _leaky(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.LEAKY_RELU, out, named["self"], p=float(named.get("negative_slope", 0.01)))


def _leaky_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    slope = float(named["negative_slope"])
    lines.by_number(Code.LEAKY_RELU_SLOPE, out, named["grad_output"], named["self"], p=slope)


def _hardtanh(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    least, most = float(named.get("min_val", -1)), float(named.get("max_val", 1))
    lines.by_number(Code.CLAMP, out, named["self"], p=least, q=most)


def _hardtanh_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    least, most = float(named["min_val"]), float(named["max_val"])
    lines.by_number(Code.CLAMP_SLOPE, out, named["grad_output"], named["self"], p=least, q=most)


def _repeated(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a, times = named["self"], named["repeats"]
    a = a.view(*(1 for _ in range(len(times) - a.dim())), *a.shape)
    apart = [size for pair in zip(times, a.shape, strict=True) for size in pair]
    each = [size for one in a.shape for size in (1, one)]
    lines.by_number(Code.COPY, out.view(apart), viewed(a, each))


def _summed(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    _sum_over(lines, out, named, 1.0)


def _averaged(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    _sum_over(lines, out, named, out.numel() / named["self"].numel())


def _sum_over(lines: InstructionList, out: Tensor, named: Mapping[str, Any], scale: float) -> None:
    a, axes = named["self"], named.get("dim")
    over = {axis % a.dim() for axis in axes} if axes and a.dim() else set(range(a.dim()))
    shape = [1 if axis in over else size for axis, size in enumerate(a.shape)]
    into = out.view(shape)
    lines.sum(into, a)
    if scale != 1:
        lines.by_number(Code.LINEAR, out, out, p=scale)


def _mm(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.product(out, named["self"], named["mat2"])


def _addmm(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    beta, alpha = (float(named.get(name, 1)) for name in ("beta", "alpha"))
    a, b = (named.get(f"mat{i}", named.get(f"batch{i}")) for i in (1, 2))
    lines.product(out, a, b, alpha, beta, added=named["self"])


def _softmax(code: Code) -> Lower:
    def lower(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
        if named.get("half_to_float"):
            raise NotInterpreted("has a softmax of halves")
        out, a = _last(named["dim"], out, named["self"])
        lines.rows(code, out.shape[-1], [out], [a])

    return lower


def _softmax_back(code: Code) -> Lower:
    def lower(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
        out, dy, y = _last(named["dim"], out, named["grad_output"], named["output"])
        lines.rows(code, out.shape[-1], [out], [dy, y])

    return lower


def _last(axis: int, *tensors: Tensor) -> list[Tensor]:
    """The tensors, the first of which is made, with this axis behind the others."""
    if axis % tensors[0].dim() != tensors[0].dim() - 1:
        _check_size(tensors[0], "has softmaxes that torch is faster at")
    return [one.movedim(axis, -1) for one in tensors]


def _scatter_add(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    dim, index, source = named["dim"], named["index"], named["src"]
    if dim % out.dim() != out.dim() - 1 or index.shape[:-1] != out.shape[:-1]:
        raise NotInterpreted("scatters over another axis than the last")
    source = source[tuple(slice(0, size) for size in index.shape)]
    if out is not named["self"]:
        lines.by_number(Code.COPY, out, named["self"])
    lines.at(
        Code.ADD_AT, index.shape, out, index, source, [out.stride(), index.stride(), source.stride()], out.shape[-1]
    )


def _gathered(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a, dim, index = named["self"], named["dim"], named["index"]
    if a.dim() == 0 or dim % a.dim() != a.dim() - 1 or index.shape[:-1] != a.shape[:-1]:
        raise NotInterpreted("gathers over another axis than the last")
    lines.at(Code.TAKE_AT, index.shape, out, index, a, [out.stride(), index.stride(), a.stride()], a.shape[-1])


def _class_losses(lines: InstructionList, results: Sequence[Tensor], named: Mapping[str, Any]) -> None:
    (losses, total), a, target = results, named["self"], _classes(named)
    strides = [[*losses.stride(), 0], [*target.stride(), 0], a.stride()]
    lines.at(Code.TAKE_AT, [len(a), 1], losses, target, a, strides, a.shape[1], float(named["ignore_index"]))
    lines.by_number(Code.LINEAR, losses, losses, p=-1.0)
    # What weights add up to, of losses that are not averaged.
    lines.by_number(Code.FILL, total)


def _class_losses_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    dy, target = named["grad_output"], _classes(named)
    strides = [out.stride(), [*target.stride(), 0], [*dy.stride(), 0]]
    lines.by_number(Code.FILL, out)
    lines.at(Code.ADD_AT, [len(out), 1], out, target, dy, strides, out.shape[1], float(named["ignore_index"]))
    lines.by_number(Code.LINEAR, out, out, p=-1.0)


def _classes(named: Mapping[str, Any]) -> Tensor:
    """The targets of losses of which there is one for each row."""
    if named["weight"] is not None or named["reduction"] != 0 or named["self"].dim() != 2:
        raise NotInterpreted("weighs or averages losses of classes")
    target: Tensor = named["target"]
    return target


def _embedding(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    table, index = named["weight"], named["indices"]
    if not (table.is_contiguous() and out.is_contiguous()):
        raise NotInterpreted("looks rows up that are not contiguous")
    width = table.shape[1]
    strides = [out.stride(), [*index.stride(), 0], [*(0 for _ in index.shape), 1]]
    lines.at(Code.TAKE_ROWS, [*index.shape, width], out, index, table, strides, len(table))


def _embedding_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    dy, index = named["grad_output"], named["indices"]
    if named["scale_grad_by_freq"] or not out.is_contiguous():
        raise NotInterpreted("scales an embedding's gradient")
    lines.by_number(Code.FILL, out)
    strides = [[*(0 for _ in index.shape), 1], [*index.stride(), 0], dy.stride()]
    padding = float(named["padding_idx"])
    lines.at(Code.ADD_ROWS, [*index.shape, dy.shape[-1]], out, index, dy, strides, len(out), padding)


def _cat(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    at, dim = 0, named.get("dim", 0)
    for one in named["tensors"]:
        if one.numel() == 0:
            continue
        lines.by_number(Code.COPY, out.narrow(dim, at, one.shape[dim]), one)
        at += one.shape[dim]


def _stack(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    for at, one in enumerate(named["tensors"]):
        lines.by_number(Code.COPY, out.select(named.get("dim", 0), at), one)


def _cumulated(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    a, dim = named["self"], named["dim"]
    made, given = _places(out, dim), _places(a, dim)
    lines.by_number(Code.COPY, made[0], given[0])
    for before, to, one in zip(made, made[1:], given[1:], strict=False):
        lines.by_number(Code.ADD, to, before, one, p=1.0)


def _flipped(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    if len(named["dims"]) != 1:
        raise NotInterpreted("turns several axes round")
    (dim,) = named["dims"]
    for to, one in zip(_places(out, dim), reversed(_places(named["self"], dim)), strict=True):
        lines.by_number(Code.COPY, to, one)


def _places(a: Tensor, dim: int) -> Sequence[Tensor]:
    """What lies at each place of the axis."""
    if a.dim() == 0 or not 0 < a.shape[dim] <= MOST_PLACES:
        raise NotInterpreted("goes along an axis place by place that has none or many")
    return a.unbind(dim)


def _select_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.FILL, out)
    lines.by_number(Code.COPY, out.select(named["dim"], named["index"]), named["grad_output"])


def _slice_back(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.FILL, out)
    part = _aten.slice.Tensor(out, named["dim"], named["start"], named["end"], named["step"])
    lines.by_number(Code.COPY, part, named["grad_output"])


def _fill(number: float | str) -> Lower:
    """With a number, or with the argument of this name."""

    def lower(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
        value = named[number] if isinstance(number, str) else number
        if isinstance(value, Tensor):
            # Its number may be another one in the next step.
            lines.by_number(Code.COPY, out, value)
        else:
            lines.by_number(Code.FILL, out, p=float(value))

    return lower


def _written(lines: InstructionList, out: Tensor, named: Mapping[str, Any]) -> None:
    lines.by_number(Code.COPY, out, named["src"])


_LOWERED: Mapping[str, Lower] = MappingProxyType(
    {
        "clone": _copied,
        "contiguous": _copied,
        "_to_copy": _copied,
        "reshape": _reshaped,
        "_unsafe_view": _reshaped,
        "add": _arithmetic(Code.ADD),
        "sub": _arithmetic(Code.SUBTRACT),
        "mul": _arithmetic(Code.MULTIPLY),
        "div": _arithmetic(Code.DIVIDE),
        "rsub": _rsub,
        "neg": _neg,
        "pow": _power,
        "exp": _unary(Code.EXPONENTIAL),
        "rsqrt": _inverse_root,
        "sqrt": _unary(Code.SQUARE_ROOT),
        "reciprocal": _unary(Code.RECIPROCAL),
        "relu": _unary(Code.RELU),
        "threshold_backward": _threshold,
        "hardtanh": _hardtanh,
        "hardtanh_backward": _hardtanh_back,
        "repeat": _repeated,
        "leaky_relu": _leaky,
        "leaky_relu_backward": _leaky_back,
        "tanh": _unary(Code.TANH),
        "tanh_backward": _back(Code.TANH_SLOPE, "output"),
        "sigmoid": _unary(Code.SIGMOID),
        "sigmoid_backward": _back(Code.SIGMOID_SLOPE, "output"),
        "gelu": _gelu(Code.GELU, Code.GELU_TANH),
        "gelu_backward": _gelu(Code.GELU_BACK, Code.GELU_TANH_BACK),
        "elu": _elu,
        "elu_backward": _elu_back,
        "softplus": _softplus,
        "softplus_backward": _softplus_back,
        "mish": _unary(Code.MISH),
        "mish_backward": _back(Code.MISH_BACK, "self"),
        "hardsigmoid": _hardsigmoid,
        "hardsigmoid_backward": _hardsigmoid_back,
        "glu": _glu,
        "glu_backward": _glu_back,
        "silu": _unary(Code.SILU),
        "silu_backward": _back(Code.SILU_BACK, "self"),
        "hardswish": _unary(Code.HARDSWISH),
        "hardswish_backward": _back(Code.HARDSWISH_BACK, "self"),
        "sum": _summed,
        "mean": _averaged,
        "mm": _mm,
        "bmm": _mm,
        "addmm": _addmm,
        "baddbmm": _addmm,
        "_softmax": _softmax(Code.SOFTMAX),
        "_log_softmax": _softmax(Code.LOG_SOFTMAX),
        "_softmax_backward_data": _softmax_back(Code.SOFTMAX_SLOPE),
        "_log_softmax_backward_data": _softmax_back(Code.LOG_SOFTMAX_SLOPE),
        "scatter_add": _scatter_add,
        "gather": _gathered,
        "nll_loss_forward": _class_losses,
        "nll_loss_backward": _class_losses_back,
        "embedding": _embedding,
        "embedding_dense_backward": _embedding_back,
        "cat": _cat,
        "cumsum": _cumulated,
        "flip": _flipped,
        "stack": _stack,
        "select_backward": _select_back,
        "slice_backward": _slice_back,
        "zeros_like": _fill(0.0),
        "ones_like": _fill(1.0),
        "new_zeros": _fill(0.0),
        "new_full": _fill("fill_value"),
        "zero": _fill(0.0),
        "fill": _fill("value"),
        "copy": _written,
        "log": _logarithm,
        "abs": _unary(Code.ABSOLUTE),
        "sgn": _unary(Code.SIGN),
        "sign": _unary(Code.SIGN),
        "convolution": windows.convolution,
        "convolution_backward": windows.convolution_back,
        "max_pool2d_with_indices": windows.max_pool,
        "max_pool2d_with_indices_backward": windows.max_pool_back,
        "avg_pool2d": windows.average_pool,
        "avg_pool2d_backward": windows.average_pool_back,
        "native_group_norm": norms.group_norm,
        "native_group_norm_backward": norms.group_norm_back,
        "native_layer_norm": norms.layer_norm,
        "native_layer_norm_backward": norms.layer_norm_back,
        "native_batch_norm": norms.batch_norm,
        "native_batch_norm_backward": norms.batch_norm_back,
    }
)
